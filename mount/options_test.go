package mount_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/podvol/podvol/mount"
)

func TestCheckOptions(t *testing.T) {
	for _, good := range [][]string{
		nil,
		{"ro", "nfsvers=4.1", "rsize=1048576", "soft", "timeo=600", "retrans=2", "noresvport"},
		{"uid=1000", "file_mode=0777", "vers=3.0", "username=bob", "domain=EX AMPLE", `path=C:\dir\x`},
		{"discard", "nouser", "noauto", "_netdev", "x-systemd.automount", "comment=x", "bindings", "shared_cache", "usrquota", "loopback=1"},
	} {
		if err := mount.CheckOptions(good); err != nil {
			t.Errorf("%q: %v", good, err)
		}
	}
	for _, bad := range []string{
		"bind", "rbind", "move", "remount", "BIND", "bind=x", "loop", "loop=/dev/loop0", "Loop", "offset=512", "sizelimit=1", "encryption=aes",
		"helper=sh", "uhelper=udisks", "HELPER=x", "X-mount.mkdir", "X-mount.mkdir=0777", "x-mount.mkdir", "X-MOUNT.owner=0", "X-mount.subdir=/",
		"verity.hashdevice=/etc/shadow", "shared", "rshared", "slave", "rslave", "private", "rprivate", "unbindable", "runbindable",
		"user", "user=bob", "users", "owner", "group", "group=disk",
		"", "-o", "-v", "--bind", "ro,bind", ",", "ro\nbind", "ro\x00", "ro\tbind", "ro\x7f", `a="x`, `ro\`, "=bind", " bind", "bind ", " ", "my option",
	} {
		err := mount.CheckOptions([]string{"ro", bad})
		e, ok := errors.AsType[*mount.OptionError](err)
		if !ok || e.Option != bad || e.Reason == "" {
			t.Errorf("%q: err = %v", bad, err)
		}
	}
}

// Whatever is wrong with an option, the value behind its name stays unsaid.
func TestARefusedOptionShowsNoValue(t *testing.T) {
	for _, bad := range []string{
		"sec=sys,password=hunter2", " password=hunter2", "password =hunter2", "pass\nword=hunter2", "-o password=hunter2", "password hunter2",
		"user=a%hunter2", "password=hunter2\x1b", `password="hunter2`, `password=hunter2\`, "loop=hunter2", "=hunter2", "ro,hunter2",
	} {
		err := mount.CheckOptions([]string{bad})
		if err == nil || strings.Contains(err.Error(), "hunter2") || !strings.Contains(err.Error(), "<masked>") {
			t.Errorf("%q: err = %v", bad, err)
		}
	}
	if err := mount.CheckOptions([]string{"bind"}); !strings.Contains(err.Error(), `"bind"`) {
		t.Error(err)
	}
}

func TestCheckSource(t *testing.T) {
	for _, good := range []string{"10.0.0.1:/nfs", "[fd00::1]:/nfs", "//srv/My Share", "/dev/sdb1", "tmpfs", "UUID=x"} {
		if err := mount.CheckSource(good); err != nil {
			t.Errorf("%q: %v", good, err)
		}
	}
	for _, bad := range []string{"", "-t", "--bind", "-", "a\nb", "a\x00b", "a\rb", "\x1b[2J"} {
		err := mount.CheckSource(bad)
		e, ok := errors.AsType[*mount.SourceError](err)
		if !ok || e.Source != bad || e.Reason == "" {
			t.Errorf("%q: err = %v", bad, err)
		}
	}
}

// mountEight splits options as libmount does: at commas that are neither
// within double quotes nor after a backslash.
func mountEight(list string) (words []string) {
	word, quoted := "", false
	for i, c := range []byte(list) {
		if c == '"' {
			quoted = !quoted
		}
		if c == ',' && !quoted && (i == 0 || list[i-1] != '\\') {
			words, word = append(words, word), ""
			continue
		}
		word += string([]byte{c})
	}
	return append(words, word)
}

func FuzzCheckOptions(f *testing.F) {
	for _, seed := range []string{"ro\nnfsvers=4", "bind", "a=\"\nremount\n\"", "x\\\nbind", "X-mount.mkdir", "ro,bind", "Rshared", "a\xff", "ı"} {
		f.Add(seed)
	}
	dangerous := []string{
		"bind", "rbind", "move", "remount", "loop", "helper", "uhelper", "user", "users", "owner", "group",
		"shared", "slave", "private", "unbindable", "rshared", "rslave", "rprivate", "runbindable",
	}
	f.Fuzz(func(t *testing.T, lines string) {
		options := strings.Split(lines, "\n")
		if mount.CheckOptions(options) != nil {
			return
		}
		joined := strings.Join(options, ",")
		if got := mountEight(joined); !slices.Equal(got, options) {
			t.Errorf("%q is %q to mount(8)", options, got)
		}
		if strings.ContainsAny(joined, "\x00\n") {
			t.Errorf("%q was accepted", joined)
		}
		for _, option := range options {
			name, _, _ := strings.Cut(strings.ToLower(strings.TrimSpace(option)), "=")
			if slices.Contains(dangerous, strings.TrimSpace(name)) || strings.HasPrefix(name, "x-mount.") || strings.HasPrefix(option, "-") {
				t.Errorf("%q was accepted", option)
			}
		}
	})
}
