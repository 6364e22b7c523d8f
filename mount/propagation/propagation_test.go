package propagation

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/util/testenv/testtool"
)

// node is a process as /proc shows it.
type node struct {
	ns1, pid  string // of process 1's mount namespace, and of this process's PID namespace; ours is "mnt:[2]"
	otherRoot bool
	user      bool // in a user namespace
	hostPeers string
}

func (n node) proc(t *testing.T) proc {
	t.Helper()
	dir := t.TempDir()
	link := func(to string, name ...string) {
		path := filepath.Join(append([]string{dir}, name...)...)
		testtool.Must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		testtool.Must(t, os.Symlink(to, path))
	}
	root := testtool.MkdirAll(t, dir, "root")
	link("mnt:[2]", "self", "ns", "mnt")
	link(n.pid, "self", "ns", "pid")
	link(root, "self", "root")
	if n.ns1 != "" {
		link(n.ns1, "1", "ns", "mnt")
	}
	if n.otherRoot {
		root = testtool.MkdirAll(t, dir, "other")
	}
	link(root, "1", "root")
	ids := "0 0 4294967295\n"
	if n.user {
		ids = "0 1000 1\n"
	}
	testtool.WriteFile(t, ids, dir, "self", "uid_map")
	testtool.WriteFile(t, "21 1 8:1 / / rw shared:"+n.hostPeers+" - ext4 /dev/sda1 rw\n", dir, "1", "mountinfo")
	return proc{dir: dir}
}

func TestHides(t *testing.T) {
	host := node{ns1: "mnt:[2]", pid: firstPIDNamespace, hostPeers: "1"}
	hostPID := node{ns1: "mnt:[1]", pid: firstPIDNamespace, otherRoot: true, hostPeers: "1"}
	ownPID := node{ns1: "mnt:[2]", pid: "pid:[9]", hostPeers: "1"}
	unshared := node{ns1: "mnt:[1]", pid: firstPIDNamespace, hostPeers: "1"}
	rootless := unshared
	rootless.user = true
	unseen := node{pid: firstPIDNamespace}
	at := func(target, root, fstype string, fields ...string) mount.Entry {
		return mount.Entry{Target: target, Root: root, FSType: fstype, Propagation: fields}
	}
	for name, tc := range map[string]struct {
		node  node
		holds mount.Entry
		want  Place
	}{
		"a host of systemd":                      {host, at("/", "/", "ext4", "shared:1"), ""},
		"a host that shares nothing":             {host, at("/", "/", "ext4"), ""},
		"a disk of a host that shares nothing":   {host, at("/var", "/", "ext4"), ""},
		"a container with Bidirectional":         {hostPID, at("/root", "/var", "ext4", "shared:1"), ""},
		"a container with HostToContainer":       {hostPID, at("/root", "/var", "ext4", "master:1"), Container},
		"a container without propagation":        {hostPID, at("/root", "/var", "ext4"), Container},
		"a container that shares with itself":    {hostPID, at("/root", "/var", "ext4", "shared:7"), Container},
		"a container without a volume":           {hostPID, at("/", "/", "overlay"), Container},
		"own processes, Bidirectional":           {ownPID, at("/root", "/var", "ext4", "shared:1"), ""},
		"own processes, HostToContainer":         {ownPID, at("/root", "/var", "ext4", "master:1"), Container},
		"own processes, no propagation":          {ownPID, at("/root", "/var", "ext4"), Container},
		"own processes, no volume":               {ownPID, at("/", "/", "overlay"), Container},
		"a node of kind":                         {ownPID, at("/", "/", "overlay", "shared:5"), ""},
		"a test in a PID namespace":              {ownPID, at("/", "/", "ext4"), ""},
		"a test in a mount namespace":            {unshared, at("/", "/", "ext4"), ""},
		"a bind of a test in a mount namespace":  {unshared, at("/tmp/x", "/tmp/y", "ext4"), ""},
		"unshare(1) without root":                {rootless, at("/", "/", "ext4", "master:1"), ""},
		"a service with PrivateTmp":              {unshared, at("/", "/", "ext4", "shared:8", "master:1"), Service},
		"process 1 may not be asked, shared":     {unseen, at("/", "/", "ext4", "shared:1"), ""},
		"process 1 may not be asked, private":    {unseen, at("/root", "/var", "ext4"), ""},
		"process 1 may not be asked, and master": {unseen, at("/root", "/var", "ext4", "master:1"), Container},
	} {
		t.Run(name, func(t *testing.T) {
			if got := tc.node.proc(t).hides(tc.holds); got != tc.want {
				t.Errorf("it runs in %q, want %q", got, tc.want)
			}
		})
	}
}

func TestWarning(t *testing.T) {
	w := &Warning{Dir: "/var/lib/kubelet", Mount: mount.Entry{Target: "/var/lib/kubelet", Propagation: []string{"master:3"}}, Place: Container}
	if text := w.String(); !strings.Contains(text, "/var/lib/kubelet") || !strings.Contains(text, "only takes mounts") {
		t.Errorf("text %q", text)
	}
	for _, want := range []string{"mountPropagation: Bidirectional", `mountPath: "/var/lib/kubelet"`, `hostPath: {path: "/var/lib/kubelet"`, "privileged: true"} {
		if !strings.Contains(w.Advice(), want) {
			t.Errorf("the advice lacks %q: %s", want, w.Advice())
		}
	}
	w.Inward = true
	if advice := w.Advice(); !strings.Contains(advice, "mountPropagation: HostToContainer") || strings.Contains(advice, "privileged") {
		t.Errorf("advice %q", advice)
	}
	w = &Warning{Dir: "/d", Mount: mount.Entry{Target: "/"}, Place: Service}
	if !strings.Contains(w.String(), "is private") || !strings.Contains(w.Advice(), "PrivateTmp=") {
		t.Errorf("%s; %s", w, w.Advice())
	}
}

func TestOfAFakeMounter(t *testing.T) {
	fake := fakemount.New()
	defer fake.Close()
	if w, err := Of(fake, t.TempDir()); w != nil || err != nil {
		t.Errorf("%v, %v", w, err)
	}
}

func TestCheckWantsAnAbsoluteDirectory(t *testing.T) {
	fake := fakemount.New()
	defer fake.Close()
	if _, err := Check(fake.Table(), "kubelet"); err == nil {
		t.Error("a relative path was taken")
	}
}
