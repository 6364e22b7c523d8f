package nfs_test

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/plugins/nfs"
)

func TestParsePolicy(t *testing.T) {
	file, err := os.Open("../../../testdata/nfs/policy.yaml")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	got, err := nfs.ParsePolicy(file)
	if err != nil {
		t.Fatal(err)
	}
	want := nfs.InlinePolicy{Servers: []nfs.ServerPolicy{
		{
			Server:    "10.0.0.0/8",
			Allow:     []string{"vers=4.1", "vers=4.2", "nconnect", "hard", "soft", "timeo", "retrans", "noatime", "ro"},
			Defaults:  []string{"nosuid", "nodev"},
			MakeBelow: []string{"/export/pods"},
		},
		{Server: "*.storage.example.org", Allow: []string{"vers=3", "nolock", "sec=sys"}, Defaults: []string{"nosuid", "nodev", "noexec", "soft"}},
		{Server: "*", Defaults: []string{"nosuid", "nodev"}},
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	for _, text := range []string{"servers: []", "{}", `{"servers": [{"server": "*"}]}`} {
		if _, err := nfs.ParsePolicy(strings.NewReader(text)); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func TestParsePolicyRefuses(t *testing.T) {
	for name, tc := range map[string]struct{ text, because string }{
		"nothing":                  {"", "is empty"},
		"comments only":            {"# nothing\n", "is empty"},
		"two documents":            {"servers: []\n---\nservers: []\n", "more than one document"},
		"no YAML":                  {"servers:\n\t- server", "line 2"},
		"an unknown field":         {"servers:\n- server: \"*\"\n  alow: [hard]\n", "line 3: field alow not found in a server's entry"},
		"an unknown field on top":  {"server: x\n", "line 1: field server not found"},
		"a field twice":            {"servers:\n- server: a\n  server: b\n", "line 3"},
		"a list of lists":          {"servers:\n- server: a\n  allow: [[hard]]\n", "line 3"},
		"a word for a list":        {"servers: all\n", "into a list of servers"},
		"no server":                {"servers:\n- allow: [hard]\n", "servers[0].server: must be"},
		"a server twice":           {"servers:\n- server: Files.Example.org.\n- server: files.example.org\n", "servers[1].server: files.example.org is already in servers[0]"},
		"an address twice":         {"servers:\n- server: \"[fd00::1]\"\n- server: fd00:0::1\n", "servers[1].server: fd00::1"},
		"a network with host bits": {"servers:\n- server: 10.1.2.3/8\n", "is 10.0.0.0/8 meant?"},
		"a mapped network":         {"servers:\n- server: \"::ffff:10.0.0.0/104\"\n", "write it as IPv4"},
		"an export as server":      {"servers:\n- server: 10.0.0.1:/export\n", "is no network"},
		"a star within":            {"servers:\n- server: files.*.org\n", "is no host name"},
		"half an address":          {"servers:\n- server: \"10.1\"\n", "no name ends in a number"},
		"a suffix of an address":   {"servers:\n- server: \"*.1\"\n", "no name ends in a number"},
		"a port":                   {"servers:\n- server: files:2049\n", "is no host name"},
		"no name":                  {"servers:\n- server: \"*.\"\n", "must be a host name"},
		"a bad option":             {"servers:\n- server: \"*\"\n  allow: [\"hard,soft\"]\n", "servers[0].allow[0]: \"hard,soft\" is no option"},
		"an option with a newline": {"servers:\n- server: \"*\"\n  defaults: [\"a\\nb\"]\n", "servers[0].defaults[0]"},
		"upper case":               {"servers:\n- server: \"*\"\n  allow: [HARD]\n", "lower-case"},
		"bind":                     {"servers:\n- server: \"*\"\n  allow: [bind]\n", "another operation"},
		"remount as default":       {"servers:\n- server: \"*\"\n  defaults: [remount]\n", "another operation"},
		"x-mount":                  {"servers:\n- server: \"*\"\n  allow: [x-mount.mkdir]\n", "servers[0].allow[0]"},
		"fstab":                    {"servers:\n- server: \"*\"\n  allow: [x-systemd.automount]\n", "fstab"},
		"sloppy":                   {"servers:\n- server: \"*\"\n  allow: [sloppy]\n", "hide"},
		"another export":           {"servers:\n- server: \"*\"\n  allow: [\"source=files:/x\"]\n", "names another export"},
		"any export":               {"servers:\n- server: \"*\"\n  allow: [source]\n", "names another export"},
		"a value for a word":       {"servers:\n- server: \"*\"\n  allow: [\"rw=1\"]\n", "servers[0].allow[0]: \"rw=1\" is no option: \"rw\" takes no value"},
		"half a version":           {"servers:\n- server: \"*\"\n  defaults: [minorversion=1]\n", "servers[0].defaults: \"minorversion=1\" needs"},
		"any addr":                 {"servers:\n- server: \"*\"\n  allow: [addr]\n", "servers[0].allow[0]: \"addr\" reaches further"},
		"any sec":                  {"servers:\n- server: \"*\"\n  allow: [hard, sec]\n", "servers[0].allow[1]: \"sec\" reaches further"},
		"defaults that contradict": {"servers:\n- server: \"*\"\n  defaults: [hard, softerr]\n", "servers[0].defaults: \"hard\" and \"softerr\""},
		"two versions by default":  {"servers:\n- server: \"*\"\n  defaults: [vers=3, nfsvers=4.1]\n", "contradict"},
		"an unknown default":       {"servers:\n- server: \"*\"\n  defaults: [nosuid, bogus]\n", "servers[0].defaults[1]: \"bogus\" is no option"},
		"a default without value":  {"servers:\n- server: \"*\"\n  defaults: [timeo]\n", "needs a value"},
		"no such version":          {"servers:\n- server: \"*\"\n  defaults: [vers=9]\n", "servers[0].defaults[0]: \"vers=9\" asks for a version"},
		"no such minor version":    {"servers:\n- server: \"*\"\n  defaults: [nfsvers=4.3]\n", "there are 3, 4, 4.0"},
		"an old version":           {"servers:\n- server: \"*\"\n  defaults: [v2]\n", "there are 3, 4, 4.0"},
		"a relative export":        {"servers:\n- server: \"*\"\n  makeBelow: [export]\n", "servers[0].makeBelow[0]"},
		"an export that climbs":    {"servers:\n- server: \"*\"\n  makeBelow: [/export/../etc]\n", "servers[0].makeBelow[0]"},
		"all faults at once":       {"servers:\n- server: \"\"\n  allow: [bind]\n", "servers[0].allow[0]"},
		"a very large file":        {"# " + strings.Repeat("x", 1<<20), "larger"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := nfs.ParsePolicy(strings.NewReader(tc.text))
			if err == nil || !strings.Contains(err.Error(), tc.because) {
				t.Errorf("err = %v, want %q in it", err, tc.because)
			}
			if err != nil && strings.Contains(err.Error(), "nfs.") {
				t.Errorf("err names a type: %v", err)
			}
		})
	}
}

// Every option of nfs(5) can be a default, and so can those that a later kernel
// has, if they have a value.
func TestPolicyTakesAnyDefault(t *testing.T) {
	for _, o := range strings.Fields(`
		nfsvers=3 vers=3 vers=4 nfsvers=4.0 vers=4.1 vers=4.2 v3 v4 v4.0 v4.1 v4.2 soft softerr hard softreval nosoftreval intr nointr
		timeo=600 retrans=2 rsize=1048576 wsize=1048576 ac noac acregmin=3 acregmax=60 acdirmin=30 acdirmax=60 actimeo=5 bg fg nconnect=4
		max_connect=2 rdirplus nordirplus rdirplus=force retry=2 sec=krb5p sharecache nosharecache resvport noresvport lookupcache=none
		fsc nofsc fsc=tag xprtsec=tls proto=tcp6 udp tcp rdma port=2049 mountport=635 mountproto=tcp mounthost=h mountvers=3
		namlen=255 lock nolock cto nocto acl noacl local_lock=flock clientaddr=10.0.0.1 migration nomigration trunkdiscovery
		notrunkdiscovery posix write=eager nosuid nodev noexec noatime relatime ro rw sync async context=u:r:t later=1`) {
		if err := (nfs.InlinePolicy{Servers: []nfs.ServerPolicy{{Server: "*", Defaults: []string{o}}}}).Check(); err != nil {
			t.Error(err)
		}
	}
}

func FuzzParsePolicy(f *testing.F) {
	sample, err := os.ReadFile("../../../testdata/nfs/policy.yaml")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(string(sample))
	f.Add("servers:\n- {server: \"*\", allow: [vers=3, 'a b'], defaults: [hard, soft]}")
	f.Add("servers:\n- server: 10.0.0.0/8\n- server: fd00::/8\n  makeBelow: [/]")
	f.Fuzz(func(t *testing.T, text string) {
		policy, err := nfs.ParsePolicy(strings.NewReader(text))
		if err != nil {
			return
		}
		if err := policy.Check(); err != nil {
			t.Errorf("what was parsed is refused later: %v", err)
		}
		for _, s := range policy.Servers {
			for _, o := range slices.Concat(s.Allow, s.Defaults) {
				if strings.ContainsAny(o, ", \n\x00\"'\\") || strings.HasPrefix(o, "bind") && len(o) == 4 || o == "remount" {
					t.Errorf("option %q was let through", o)
				}
			}
			for _, dir := range s.MakeBelow {
				if !strings.HasPrefix(dir, "/") || slices.Contains(strings.Split(dir, "/"), "..") {
					t.Errorf("export %q was let through", dir)
				}
			}
		}
	})
}

// A policy that is made in Go is checked when the plugin is initialised.
func TestInitRefusesABadPolicy(t *testing.T) {
	p := nfs.New(nfs.Config{Inline: nfs.InlinePolicy{Servers: []nfs.ServerPolicy{{Server: "*", Allow: []string{"bind"}}, {Server: "*"}}}})
	err := p.Init(nil)
	wrong, ok := errors.AsType[*volume.Failure](err)
	if !ok || wrong.Cause != nfs.ErrBadPolicy || wrong.Subject != "servers[0].allow[0]" || !strings.Contains(err.Error(), "servers[1].server") {
		t.Errorf("err = %v", err)
	}
}
