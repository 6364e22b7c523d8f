package userns

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"golang.org/x/sys/unix"
)

func TestParse(t *testing.T) {
	ids, err := Parse(strings.NewReader("         0       1000          1\n         1     100000      65536\n"))
	if err != nil || !slices.Equal(ids, IDs{{0, 1000, 1}, {1, 100000, 65536}}) {
		t.Fatalf("%v, %v", ids, err)
	}
	for id, want := range map[int64]bool{-1: false, 0: true, 1: true, 1000: true, 65536: true, 65537: false, 1 << 32: false} {
		if ids.Has(id) != want {
			t.Errorf("Has(%d) is %v", id, !want)
		}
	}
	for _, bad := range []string{"0 1000\n", "0 x 1\n", "0 1 2 3\n", "0 1 4294967296\n"} {
		if _, err := Parse(strings.NewReader(bad)); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}

func TestOwnIDs(t *testing.T) {
	for name, read := range map[string]func() (IDs, error){"users": UIDs, "groups": GIDs} {
		ids, err := read()
		if err != nil || !ids.Has(int64(os.Geteuid())) {
			t.Errorf("%s: %v, %v", name, ids, err)
		}
	}
	if _, err := SetgroupsAllowed(); err != nil {
		t.Error(err)
	}
}

func TestSubordinate(t *testing.T) {
	tests := map[string]struct {
		file string
		want IDs
	}{
		"nothing":                      {"", IDs{{0, 1000, 1}}},
		"another user":                 {"bob:100000:65536\n", IDs{{0, 1000, 1}}},
		"by name":                      {"bob:1:2\nalice:100000:65536\n", IDs{{0, 1000, 1}, {1, 100000, 65536}}},
		"by id":                        {"1000:100000:65536\n", IDs{{0, 1000, 1}, {1, 100000, 65536}}},
		"several, one after the other": {"alice:100000:10\n1000:200000:5\n", IDs{{0, 1000, 1}, {1, 100000, 10}, {11, 200000, 5}}},
		"overlapping":                  {"alice:100000:10\nalice:100005:10\n", IDs{{0, 1000, 1}, {1, 100000, 10}}},
		"one's own id":                 {"alice:1000:10\n", IDs{{0, 1000, 1}}},
		"the last id of all":           {"alice:4294967290:65536\n", IDs{{0, 1000, 1}, {1, 4294967290, 5}}},
		"malformed":                    {"# alice\nalice\nalice:x:1\nalice:1:2:3\nalice:-1:2\nalice:7:0\n alice:5:6 \n", IDs{{0, 1000, 1}, {1, 5, 6}}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			ids, err := Subordinate(strings.NewReader(test.file), 1000, "alice", "1000")
			if err != nil || !slices.Equal(ids, test.want) {
				t.Errorf("%v, %v; want %v", ids, err, test.want)
			}
		})
	}
}

func TestExplain(t *testing.T) {
	tests := map[string]struct {
		files  map[string]string
		sysctl string
	}{
		"limit":    {map[string]string{"user/max_user_namespaces": "0\n", "kernel/unprivileged_userns_clone": "1\n"}, "user.max_user_namespaces"},
		"Debian":   {map[string]string{"user/max_user_namespaces": "7\n", "kernel/unprivileged_userns_clone": "0\n"}, "kernel.unprivileged_userns_clone"},
		"AppArmor": {map[string]string{"user/max_user_namespaces": "7\n", "kernel/apparmor_restrict_unprivileged_userns": "1\n"}, "kernel.apparmor_restrict_unprivileged_userns"},
		"a filter": {map[string]string{"user/max_user_namespaces": "7\n"}, ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			sysctls := fstest.MapFS{}
			for path, text := range test.files {
				sysctls[path] = &fstest.MapFile{Data: []byte(text)}
			}
			err := Explain(sysctls, unix.EPERM)
			if err.Sysctl != test.sysctl || !errors.Is(err, unix.EPERM) || !strings.Contains(err.Error(), "as root") ||
				(test.sysctl != "" && !strings.Contains(err.Error(), "sysctl -w "+test.sysctl+"="+err.Wanted)) {
				t.Errorf("%+v: %v", err, err)
			}
		})
	}
}

func FuzzSubordinate(f *testing.F) {
	f.Add("alice:100000:65536\nalice:4294967295:1\n")
	f.Fuzz(func(t *testing.T, text string) {
		ids, _ := Subordinate(strings.NewReader(text), 1000, "alice")
		var inside, outside uint64
		for i, r := range ids {
			inside, outside = uint64(r.Inside)+uint64(r.Size), uint64(r.Outside)+uint64(r.Size)
			if r.Size == 0 || inside > 1<<32-1 || outside > 1<<32-1 || ids[:i].Overlaps(r.Outside, r.Size) || ids[:i].Has(int64(r.Inside)) {
				t.Errorf("range %+v of %v", r, ids)
			}
		}
	})
}
