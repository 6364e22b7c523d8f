package cephfs_test

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/fakehost"
	"github.com/podvol/podvol/volume/plugins/cephfs"
)

// names are those that a node can look up.
type names map[string][]string

func (n names) LookupNetIP(_ context.Context, _, host string) (all []netip.Addr, err error) {
	for _, a := range n[host] {
		all = append(all, netip.MustParseAddr(a))
	}
	if all == nil {
		err = errors.New("no such host")
	}
	return all, err
}

// node is one with the plugin and a fake mounter.
type node struct {
	*testing.T
	fake   *fakemount.Mounter
	plugin volume.VolumePlugin
}

func newNode(t *testing.T, config cephfs.Config) *node {
	host := fakehost.New(t)
	host.Add(secret("ceph", map[string]string{"key": key}))
	host.Add(secret("nothing", map[string]string{"key": "not-a-key-but-hunter2"}))
	host.Add(secret("only", map[string]string{"userKey": key + "\n"}))
	host.Add(secret("both", map[string]string{"a": key, "b": key}))
	plugin := cephfs.New(config)
	if err := plugin.Init(host); err != nil {
		t.Fatal(err)
	}
	return &node{t, host.Fake, plugin}
}

func volumeOf(change func(*v1.CephFSVolumeSource)) *volume.Spec {
	s := &v1.CephFSVolumeSource{Monitors: []string{"10.0.0.1"}, SecretRef: &v1.LocalObjectReference{Name: "ceph"}}
	change(s)
	return volume.NewSpecFromVolume(&v1.Volume{Name: "v", VolumeSource: v1.VolumeSource{CephFS: s}})
}

func persistentOf(change func(*v1.PersistentVolume)) *volume.Spec {
	pv := &v1.PersistentVolume{}
	pv.Name = "pv"
	pv.Spec.CephFS = &v1.CephFSPersistentVolumeSource{Monitors: []string{"10.0.0.1"}}
	change(pv)
	return volume.NewSpecFromPersistentVolume(pv, false)
}

// setUp mounts a volume, and returns its mount.
func (n *node) setUp(spec *volume.Spec) (mount.Entry, error) {
	pod := fakehost.Pod("p")
	m, err := n.plugin.NewMounter(spec, pod)
	if err != nil {
		return mount.Entry{}, err
	}
	if err := m.SetUp(n.Context(), volume.MounterArgs{}); err != nil {
		return mount.Entry{}, err
	}
	mounts := table.Of(n.fake)
	e, mounted, err := mounts.At(m.GetPath())
	if err != nil || !mounted {
		n.Fatalf("not mounted: %v", err)
	}
	return e, nil
}

func TestMonitorsAreLookedUp(t *testing.T) {
	known := names{"mon.example.com": {"10.0.0.7", "2001:db8::7"}, "b": {"::ffff:10.0.0.8"}}
	for _, test := range []struct{ given, want string }{
		{"10.0.0.1", "10.0.0.1:6789"},
		{"10.0.0.1:3300", "10.0.0.1:3300"},
		{"::1", "[::1]:6789"},
		{"[2001:DB8:0::1]", "[2001:db8::1]:6789"},
		{"[2001:db8::1]:1", "[2001:db8::1]:1"},
		{"Mon.Example.com:7000", "10.0.0.7:7000,[2001:db8::7]:7000"},
		{"b", "10.0.0.8:6789"},
		{"10.0.0.1 10.0.0.1:6789 ::ffff:10.0.0.1 gone", "10.0.0.1:6789"},
	} {
		n := newNode(t, cephfs.Config{Resolver: known})
		e, err := n.setUp(volumeOf(func(s *v1.CephFSVolumeSource) { s.Monitors, s.Path = strings.Fields(test.given), "/a//b/." }))
		if err != nil || e.Source != test.want+":/a/b" || e.FSType != "ceph" {
			t.Errorf("%q: mounted %+v, %v", test.given, e, err)
		}
	}
	n := newNode(t, cephfs.Config{Resolver: known})
	_, err := n.setUp(volumeOf(func(s *v1.CephFSVolumeSource) { s.Monitors = []string{"gone", "gone.too"} }))
	if err == nil || !strings.Contains(err.Error(), "no such host") || volume.IsUncertain(err) {
		t.Errorf("names that are not known: %v", err)
	}
}

// A volume that is mounted stays so without names or keys.
func TestMountedStaysMounted(t *testing.T) {
	known := names{"mon": {"10.0.0.7"}}
	n := newNode(t, cephfs.Config{Resolver: known})
	spec := volumeOf(func(s *v1.CephFSVolumeSource) { s.Monitors, s.SecretRef.Name = []string{"mon"}, "only" })
	before, err := n.setUp(spec)
	if err != nil {
		t.Fatal(err)
	}
	delete(known, "mon")
	again := volumeOf(func(s *v1.CephFSVolumeSource) { s.Monitors, s.SecretRef.Name = []string{"mon"}, "none" })
	if e, err := n.setUp(again); err != nil || e.ID != before.ID {
		t.Errorf("%+v, %v", e, err)
	}
	for name, change := range map[string]func(*v1.CephFSVolumeSource){
		"another path":    func(s *v1.CephFSVolumeSource) { s.Path = "/other" },
		"another cluster": func(s *v1.CephFSVolumeSource) { s.Monitors = []string{"10.0.0.8"} },
		"read-only":       func(s *v1.CephFSVolumeSource) { s.Monitors, s.ReadOnly = []string{"mon"}, true },
	} {
		if _, err := n.setUp(volumeOf(change)); err == nil || !strings.Contains(err.Error(), "mounted there already") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestHostileSourcesAreRefused(t *testing.T) {
	many := make([]string, 400)
	for i := range many {
		many[i] = "10.0.0.1"
	}
	monitors := map[string][]string{
		"none": {}, "hundreds": many, "empty": {""}, "a list": {"10.0.0.1,10.0.0.2"}, "a path": {"10.0.0.1:/x"}, "a slash": {"a/b"},
		"a blank": {"10.0.0.1 "}, "a line": {"10.0.0.1\nx"}, "an option": {"10.0.0.1:6789:/,name=x"}, "port 0": {"10.0.0.1:0"}, "a large port": {"10.0.0.1:65536"},
		"no port": {"10.0.0.1:"}, "a signed port": {"10.0.0.1:+1"}, "no host": {":6789"}, "v2": {"v2:10.0.0.1:3300/0"}, "a zone": {"fe80::1%eth0"}, "half a bracket": {"[::1"},
		"a name in brackets": {"[mon]:1"}, "an old spelling": {"127.1"}, "hexadecimal": {"0x7f.0x1"}, "an octet": {"010.0.0.1"}, "a long name": {strings.Repeat("a", 300)},
		"a hyphen": {"-mon"}, "an at": {"admin@fsid.fs"}, "no address": {"0.0.0.0"}, "multicast": {"224.0.0.1"}, "an NUL": {"a\x00b"},
	}
	for name, list := range monitors {
		_, err := newNode(t, cephfs.Config{}).setUp(volumeOf(func(s *v1.CephFSVolumeSource) { s.Monitors = list }))
		wantInvalid(t, name, err, "cephfs.monitors")
	}
	for field, changes := range map[string][]func(*v1.CephFSVolumeSource){
		"cephfs.path": {
			func(s *v1.CephFSVolumeSource) { s.Path = "relative" },
			func(s *v1.CephFSVolumeSource) { s.Path = "/.." },
			func(s *v1.CephFSVolumeSource) { s.Path = "/a/../b" },
			func(s *v1.CephFSVolumeSource) { s.Path = "/a\nb" },
			func(s *v1.CephFSVolumeSource) { s.Path = "/" + strings.Repeat("a", 2000) },
		},
		"cephfs.user": {
			func(s *v1.CephFSVolumeSource) { s.User = "a,secret=x" },
			func(s *v1.CephFSVolumeSource) { s.User = "client.admin" },
			func(s *v1.CephFSVolumeSource) { s.User = "a b" },
			func(s *v1.CephFSVolumeSource) { s.User = "a=b" },
		},
		"cephfs.secretRef": {
			func(s *v1.CephFSVolumeSource) { s.SecretRef = nil },
			func(s *v1.CephFSVolumeSource) { s.SecretRef, s.SecretFile = nil, "/etc/shadow" },
			func(s *v1.CephFSVolumeSource) { s.SecretRef.Name = "nothing" },
			func(s *v1.CephFSVolumeSource) { s.SecretRef.Name = "both" },
		},
	} {
		for i, change := range changes {
			_, err := newNode(t, cephfs.Config{}).setUp(volumeOf(change))
			wantInvalid(t, field+" "+string(rune('0'+i)), err, field)
		}
	}
	for _, option := range []string{"noatime", "name=other", "SECRET=hunter2", "secretfile=/x", "key=other", "mon_addr=10.0.0.9:6789"} {
		_, err := newNode(t, cephfs.Config{}).setUp(persistentOf(func(pv *v1.PersistentVolume) {
			pv.Spec.MountOptions = []string{option}
			pv.Spec.CephFS.SecretRef = &v1.SecretReference{Namespace: "default", Name: "ceph"}
		}))
		if option != "noatime" {
			wantInvalid(t, option, err, "mountOptions")
		} else if err != nil {
			t.Errorf("option %s: %v", option, err)
		}
	}
	for _, option := range []string{"bind", "loop"} {
		_, err := newNode(t, cephfs.Config{}).setUp(persistentOf(func(pv *v1.PersistentVolume) { pv.Spec.MountOptions = []string{option} }))
		if _, ok := errors.AsType[*mount.OptionError](err); !ok || volume.IsUncertain(err) {
			t.Errorf("option %s: %v", option, err)
		}
	}
}

func wantInvalid(t *testing.T, name string, err error, field string) {
	t.Helper()
	invalid, ok := errors.AsType[*volume.InvalidSpecError](err)
	if !ok || !strings.HasPrefix(invalid.Field, field) || volume.IsUncertain(err) || len(err.Error()) > 700 || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("%s: %v, want one about %s", name, err, field)
	}
}

func TestKeysOfTheNode(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(filepath.Join(dir, name), mode); err != nil {
			t.Fatal(err)
		}
	}
	write("user.secret", key+"\n", 0o600)
	write("keyring", "[client.other]\n\tkey = AAAA\n[client.web]\n  key = "+key+"\n", 0o644)
	write("passwd", "root:hunter2:0:0\n", 0o600)
	write("open", key, 0o666)
	write("long", strings.Repeat("x", 1<<17), 0o600)
	if err := errors.Join(os.Symlink("/etc/passwd", filepath.Join(dir, "out")), os.Symlink("keyring", filepath.Join(dir, "in")), os.Mkdir(filepath.Join(dir, "sub"), 0o700)); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		file, user string
		works      bool
	}{
		{"user.secret", "", true}, {"keyring", "web", true}, {"in", "web", true},
		{"keyring", "admin", false}, {"passwd", "", false}, {"open", "", false}, {"long", "", false}, {"out", "", false}, {"sub", "", false}, {"none", "", false},
		{"../" + filepath.Base(dir) + "/../x", "", false}, {"/etc/passwd", "", false},
	} {
		path := test.file
		if !filepath.IsAbs(path) {
			path = dir + "/" + path
		}
		named := func(pv *v1.PersistentVolume) { pv.Spec.CephFS.User, pv.Spec.CephFS.SecretFile = test.user, path }
		_, err := newNode(t, cephfs.Config{KeyDir: dir}).setUp(persistentOf(named))
		if (err == nil) != test.works || volume.IsUncertain(err) || err != nil && strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s of user %q: %v", test.file, test.user, err)
		}
	}
	file := func(s *v1.CephFSVolumeSource) { s.SecretRef, s.SecretFile = nil, dir+"/user.secret" }
	if _, err := newNode(t, cephfs.Config{KeyDir: dir}).setUp(volumeOf(file)); err == nil || !strings.Contains(err.Error(), "does not lend") {
		t.Errorf("a pod may use the node's key: %v", err)
	}
	if _, err := newNode(t, cephfs.Config{KeyDir: dir, InlineKeyFiles: true}).setUp(volumeOf(file)); err != nil {
		t.Errorf("a pod that may: %v", err)
	}
}

// Each volume has the secret of its own namespace.
func TestSecretsOfPersistentVolumes(t *testing.T) {
	n := newNode(t, cephfs.Config{})
	for namespace, works := range map[string]bool{"default": true, "": false, "other": false} {
		_, err := n.setUp(persistentOf(func(pv *v1.PersistentVolume) {
			pv.Spec.CephFS.SecretRef = &v1.SecretReference{Name: "ceph", Namespace: namespace}
			pv.Name = "pv-" + namespace
		}))
		if (err == nil) != works {
			t.Errorf("namespace %q: %v", namespace, err)
		}
	}
}

func FuzzSource(f *testing.F) {
	for _, seed := range []string{"10.0.0.1:6789", "[::1]:1", "mon.example.com", "a,b", "::1", "1", "v2:1.2.3.4:3300/0", "[fe80::1%lo]:1", "a:b:c"} {
		f.Add(seed, "/a/b", "admin")
	}
	f.Fuzz(func(t *testing.T, monitor, path, user string) {
		n := newNode(t, cephfs.Config{Resolver: names{}})
		spec := volumeOf(func(s *v1.CephFSVolumeSource) { s.Monitors, s.Path, s.User = []string{monitor}, path, user })
		e, err := n.setUp(spec)
		if err != nil {
			if volume.IsUncertain(err) || strings.Contains(err.Error(), key) {
				t.Errorf("%q %q %q: %v", monitor, path, user, err)
			}
			return
		}
		addresses, at, ok := strings.Cut(e.Source, ":/")
		if !ok || strings.ContainsAny(addresses, ", /\n") || strings.HasPrefix(at, "../") || strings.ContainsAny(e.Source, "\n\x00") {
			t.Errorf("%q %q %q became %q", monitor, path, user, e.Source)
		}
		if _, err := netip.ParseAddrPort(addresses); err != nil {
			t.Errorf("%q became %q: %v", monitor, addresses, err)
		}
	})
}
