package iscsi_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/mount/host"
	"github.com/podvol/podvol/util/testenv/agent"
	"github.com/podvol/podvol/util/testenv/debs"
	"github.com/podvol/podvol/util/testenv/lio"
	"github.com/podvol/podvol/util/testenv/vmtest"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/plugins/iscsi"
)

// Disks of the kernel's own target, by the real initiator, in a machine of their own.
func TestDisksOfATargetInAMachine(t *testing.T) {
	programs := debs.Unpack(t, "openiscsi", "open-iscsi")
	paths := debs.Unpack(t, "multipath", "multipath-tools", "dmsetup")
	vmtest.RunOn(t, vmtest.Machine{KernelArgs: []string{"security=selinux"}}, func(t *testing.T) {
		startInitiator(t, programs)
		t.Run("from claim to file", testFromClaimToFile)
		t.Run("two disks of a session", testTwoDisks)
		t.Run("password", testPassword)
		t.Run("growth", testGrowth)
		t.Run("portal lost under a writer", testPortalLost)
		t.Run("portal lost under a teardown", testTearDownWithoutPortal)
		t.Run("device", testDevice)
		t.Run("restart", testRestart)
		t.Run("another disk", testAnotherDisk)
		t.Run("killed", testKilled)
		t.Run("initiator name", testInitiatorName)
		t.Run("two paths", testTwoPathsWithoutMultipathd)
		t.Run("multipath", func(t *testing.T) { testMultipath(t, paths) })
		t.Run("label", testLabel)
	})
}

func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

func command(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v: %s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// until waits for what the kernel or a daemon does, which tells of nothing.
func until(t *testing.T, what string, is func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(5 * time.Minute); !is(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not in five minutes", what)
		}
	}
}

// startInitiator runs open-iscsi's daemon until the test ends, and puts its program into PATH.
func startInitiator(t *testing.T, programs debs.Tree) {
	t.Helper()
	lio.Load(t, "iscsi_tcp", "iscsi_target_mod")
	must(t, os.MkdirAll("/etc/iscsi", 0o755), os.MkdirAll("/run/lock/iscsi", 0o755))
	config, err := os.ReadFile(filepath.Join(programs.Dir, "etc/iscsi/iscsid.conf"))
	must(t, err, os.WriteFile("/etc/iscsi/iscsid.conf", config, 0o600),
		os.WriteFile("/etc/iscsi/initiatorname.iscsi", []byte("InitiatorName=iqn.2026-01.com.example:node\n"), 0o600))
	bin := t.TempDir()
	must(t, programs.Wrap("iscsiadm", filepath.Join(bin, "iscsiadm")))
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	startDaemon(t, programs, "ISCSIADM_ABSTRACT_NAMESPACE", "iscsid", "-f")
}

// startDaemon runs a program until the test ends, and returns once it has a socket of a name with
// this word.
func startDaemon(t *testing.T, programs debs.Tree, socket, name string, args ...string) {
	t.Helper()
	daemon, err := programs.Command(context.Background(), name, args...)
	must(t, err)
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	must(t, err)
	daemon.Stdout, daemon.Stderr = log, log
	must(t, daemon.Start())
	t.Cleanup(func() {
		_ = daemon.Process.Kill()
		_ = daemon.Wait()
		if text, err := os.ReadFile(log.Name()); t.Failed() {
			t.Logf("%s said: %s %v", name, text, err)
		}
		_ = log.Close()
	})
	until(t, name+" begins", func() bool {
		sockets, err := os.ReadFile("/proc/net/unix")
		return err == nil && strings.Contains(string(sockets), socket)
	})
}

// lioTarget is a target of the kernel's.
type lioTarget struct {
	t          *testing.T
	iqn, group string
	portals    []string
}

// newLIO returns a target with portals and no disk, until the test ends. With a password, a
// node must know it.
func newLIO(t *testing.T, password string, portals ...string) *lioTarget {
	t.Helper()
	name := strings.ToLower(strings.Map(func(r rune) rune {
		if r == '/' || r == '_' {
			return '-'
		}
		return r
	}, t.Name()))
	g := &lioTarget{t: t, iqn: "iqn.2026-01.com.example:" + name, portals: portals}
	g.group = "/sys/kernel/config/target/iscsi/" + g.iqn + "/tpgt_1"
	must(t, os.MkdirAll(g.group, 0o755))
	for _, p := range portals {
		must(t, os.Mkdir(g.group+"/np/"+p, 0o755))
	}
	authentication := "0"
	if password != "" {
		authentication = "1"
		g.set("auth/userid", "node")
		g.set("auth/password", password)
	}
	g.set("attrib/authentication", authentication)
	g.set("attrib/generate_node_acls", "1")
	g.set("attrib/cache_dynamic_acls", "1")
	g.set("attrib/demo_mode_write_protect", "0")
	g.set("enable", "1")
	t.Cleanup(func() {
		g.set("enable", "0")
		for _, p := range portals {
			must(t, os.Remove(g.group+"/np/"+p))
		}
		must(t, os.Remove(g.group), os.Remove(filepath.Dir(g.group)))
	})
	return g
}

func (g *lioTarget) set(attribute, value string) {
	g.t.Helper()
	lio.Set(g.t, g.group, attribute, value)
}

// add gives the target a disk, whose serial number is made of the target's name and id.
func (g *lioTarget) add(lun int, id string) *lio.Disk {
	g.t.Helper()
	d := g.disk(lun, id)
	lio.Link(g.t, g.group, lun, d)
	return d
}

func (g *lioTarget) disk(lun int, id string) *lio.Disk {
	g.t.Helper()
	name := fmt.Sprintf("%s.%d.%s", strings.TrimPrefix(g.iqn, "iqn.2026-01.com.example:"), lun, id)
	return lio.NewDisk(g.t, name, fmt.Sprintf("%.16x", sha256.Sum256([]byte(g.iqn+id))), 64<<20)
}

// swap gives a LUN another disk.
func (g *lioTarget) swap(lun int, to string) {
	g.t.Helper()
	lio.Unlink(g.t, g.group, lun)
	lio.Link(g.t, g.group, lun, g.disk(lun, to))
}

// sessions are the sessions with the target.
func (g *lioTarget) sessions() (n int) {
	g.t.Helper()
	all, err := filepath.Glob("/sys/class/iscsi_session/*/targetname")
	must(g.t, err)
	for _, file := range all {
		if name, err := os.ReadFile(file); err == nil && strings.TrimSpace(string(name)) == g.iqn {
			n++
		}
	}
	return n
}

// lose takes the target away, until it is enabled again.
func (g *lioTarget) lose() {
	g.t.Helper()
	g.set("enable", "0")
	until(g.t, "the session fails", func() bool {
		return strings.Contains(command(g.t, "sh", "-c", "cat /sys/class/iscsi_session/*/state"), "FAILED")
	})
}

// wantNothing looks for what is left of the target on the node.
func (g *lioTarget) wantNothing() {
	g.t.Helper()
	if n := g.sessions(); n != 0 {
		g.t.Errorf("%d sessions are left", n)
	}
	if disks, err := filepath.Glob("/sys/block/sd*"); len(disks) > 0 || err != nil {
		g.t.Errorf("disks are left: %v, %v", disks, err)
	}
	if records, err := os.ReadDir("/etc/iscsi/nodes/" + g.iqn); len(records) > 0 {
		g.t.Errorf("records are left: %v, %v", records, err)
	}
	if halves, err := filepath.Glob("/etc/iscsi/.podvol-*"); len(halves) > 0 || err != nil {
		g.t.Errorf("halves of records are left: %v, %v", halves, err)
	}
}

// machine is a node on the machine's kernel.
type machine struct{ *agent.Agent }

func machineAt(t *testing.T, root string) *machine {
	return &machine{&agent.Agent{T: t, Root: root, Store: objects.NewStore(), Plugin: func() volume.VolumePlugin { return iscsi.New(iscsi.Config{}) }}}
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	n := machineAt(t, t.TempDir())
	n.Start()
	t.Cleanup(n.Stop)
	return n
}

// volume adds a PersistentVolume of a target's disk with its claim.
func (n *machine) volume(name string, g *lioTarget, lun int32, change ...func(*v1.PersistentVolume)) *volume.Spec {
	n.T.Helper()
	pv := &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}}
	pv.Spec.Capacity = v1.ResourceList{v1.ResourceStorage: resource.MustParse("64Mi")}
	pv.Spec.ISCSI = &v1.ISCSIPersistentVolumeSource{TargetPortal: g.portals[0], Portals: g.portals[1:], IQN: g.iqn, Lun: lun, FSType: "ext4"}
	for _, f := range change {
		f(pv)
	}
	return n.Bind(pv)
}

const portal = "127.0.0.1:3260"

func testFromClaimToFile(t *testing.T) {
	g, n := newLIO(t, "", portal, "[::1]:3261"), newMachine(t)
	g.add(0, "a")
	n.volume("disk", g, 0)
	one, two := n.SetUp(agent.Pod("one", "disk")), n.SetUp(agent.Pod("two", "disk"))
	must(t, os.WriteFile(filepath.Join(one, "file"), []byte("data"), 0o600))
	n.WantFile(filepath.Join(two, "file"), "data")
	if got := g.sessions(); got != 2 {
		t.Errorf("%d sessions with two portals", got)
	}
	n.TearDown("one")
	n.WantFile(filepath.Join(two, "file"), "data")
	n.TearDown("two")
	g.wantNothing()
	n.WantFile(filepath.Join(n.SetUp(agent.Pod("three", "disk")), "file"), "data")
	n.TearDown("three")
	g.wantNothing()
}

func testTwoDisks(t *testing.T) {
	g, n := newLIO(t, "", portal), newMachine(t)
	g.add(0, "a")
	g.add(1, "b")
	n.volume("first", g, 0)
	n.volume("second", g, 1)
	first, second := n.SetUp(agent.Pod("one", "first")), n.SetUp(agent.Pod("two", "second"))
	must(t, os.WriteFile(filepath.Join(first, "file"), []byte("1"), 0o600), os.WriteFile(filepath.Join(second, "file"), []byte("2"), 0o600))
	if got := g.sessions(); got != 1 {
		t.Errorf("%d sessions for two disks", got)
	}
	n.TearDown("one")
	n.WantFile(filepath.Join(second, "file"), "2")
	n.TearDown("two")
	g.wantNothing()
}

func testPassword(t *testing.T) {
	g, n := newLIO(t, "correct password", portal), newMachine(t)
	g.add(0, "a")
	n.volume("disk", g, 0, func(pv *v1.PersistentVolume) {
		pv.Spec.ISCSI.SessionCHAPAuth, pv.Spec.ISCSI.SecretRef = true, &v1.SecretReference{Namespace: "ns", Name: "chap"}
	})
	secret := &v1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "chap", UID: "chap"}, Data: map[string][]byte{
		"node.session.auth.username": []byte("node"), "node.session.auth.password": []byte("another password")}}
	must(t, n.Store.Load(t.Context(), 0, secret))
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	if _, err := n.Manager.SetUpPod(ctx, agent.Pod("one", "disk")); err == nil || !strings.Contains(err.Error(), "refuses") && !strings.Contains(err.Error(), "password") || strings.Contains(err.Error(), "another password") {
		t.Errorf("with another password: %v", err)
	}
	g.wantNothing()
	stored, err := objects.Get[*v1.Secret](t.Context(), n.Store, volume.NewObjectRef("Secret", "ns", "chap"))
	must(t, err)
	right := stored.DeepCopy()
	right.Data["node.session.auth.password"] = []byte("correct password")
	_, err = n.Store.Update(t.Context(), right)
	must(t, err)
	must(t, os.WriteFile(filepath.Join(n.SetUp(agent.Pod("one", "disk")), "file"), nil, 0o600))
	err = filepath.WalkDir("/etc/iscsi/nodes", func(path string, e os.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() {
			if info, err := e.Info(); err != nil || info.Mode().Perm() != 0o600 {
				t.Errorf("%s has mode %v, %v", path, info.Mode(), err)
			}
		}
		return err
	})
	must(t, err)
	n.TearDown("one")
	g.wantNothing()
}

func testGrowth(t *testing.T) {
	g, n := newLIO(t, "", portal), newMachine(t)
	d := g.add(0, "a")
	s := n.volume("disk", g, 0)
	path := n.SetUp(agent.Pod("one", "disk"))
	var before, after unix.Statfs_t
	must(t, unix.Statfs(path, &before))
	d.Resize(t, 256<<20)
	plugin := iscsi.New(iscsi.Config{})
	must(t, plugin.Init(&volume.Host{RootDir: n.Root, Mounter: host.New(host.Config{})}))
	grow, _ := volume.AsNodeExpandable(plugin)
	for range 2 {
		done, err := grow.NodeExpand(t.Context(), volume.NodeResizeOptions{VolumeSpec: s, DeviceMountPath: path, NewSize: resource.MustParse("256Mi")})
		if !done || err != nil {
			t.Errorf("NodeExpand = %v, %v", done, err)
		}
	}
	if must(t, unix.Statfs(path, &after)); after.Blocks < 3*before.Blocks {
		t.Errorf("from %d blocks to %d", before.Blocks, after.Blocks)
	}
	n.TearDown("one")
	g.wantNothing()
}

func testPortalLost(t *testing.T) {
	g, n := newLIO(t, "", portal), newMachine(t)
	g.add(0, "a")
	n.volume("disk", g, 0)
	dir := n.SetUp(agent.Pod("one", "disk"))
	path, before := filepath.Join(dir, "file"), filepath.Join(dir, "before")
	must(t, os.WriteFile(before, []byte("kept"), 0o600))
	command(t, "sync", "-f", before)
	g.lose()
	written := make(chan error, 1)
	go func() {
		f, err := os.Create(path)
		if err == nil {
			_, err = f.WriteString("data")
			err = errors.Join(err, f.Sync(), f.Close())
		}
		written <- err
	}()
	until(t, "the writer waits for the disk", func() bool {
		return strings.Contains(command(t, "sh", "-c", fmt.Sprintf("cat /proc/%d/task/*/stat", os.Getpid())), ") D ")
	})
	g.set("enable", "1")
	select {
	case err := <-written:
		must(t, err)
	case <-time.After(5 * time.Minute):
		t.Fatal("the writer is not served again")
	}
	n.WantFile(path, "data")
	n.WantFile(before, "kept")
	n.TearDown("one")
	g.wantNothing()
}

// A pod goes while the target is away: its own mount goes, the node says what it waits for, and
// disks of other targets come and go. What the pod has written is there when the target is back.
func testTearDownWithoutPortal(t *testing.T) {
	g, n := newLIO(t, "", portal), newMachine(t)
	g.add(0, "a")
	n.volume("disk", g, 0)
	f, err := os.Create(filepath.Join(n.SetUp(agent.Pod("one", "disk")), "file"))
	must(t, err)
	_, err = f.WriteString("synced")
	must(t, err, f.Sync())
	_, err = f.WriteString(", and not yet") // the kernel would write it within seconds
	must(t, err, f.Close())
	g.lose()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	n.Manager.DeletePod("uid-one")
	gone := make(chan error, 1)
	go func() { gone <- n.Manager.TearDownPod(ctx, "uid-one") }()
	must(t, n.Manager.WaitForUnpublished(ctx, "uid-one"))
	t.Run("meanwhile", func(t *testing.T) {
		other := newLIO(t, "", "127.0.0.1:3262")
		other.add(0, "b")
		n.volume("other", other, 0)
		n.SetUp(agent.Pod("two", "other"))
		n.TearDown("two")
	})
	looking, end := context.WithCancel(ctx)
	end()
	if err := n.Manager.WaitForUnmounted(looking, "uid-one"); err == nil || !strings.Contains(err.Error(), `volume "disk"`) {
		t.Errorf("while the target is away, the volume's end is told as %v", err)
	}
	g.set("enable", "1")
	must(t, <-gone, n.Manager.WaitForUnmounted(ctx, "uid-one"))
	g.wantNothing()
	n.WantFile(filepath.Join(n.SetUp(agent.Pod("one", "disk")), "file"), "synced, and not yet")
	n.TearDown("one")
	g.wantNothing()
}

func testDevice(t *testing.T) {
	g, n := newLIO(t, "", portal), newMachine(t)
	d := g.add(5, "a")
	n.volume("disk", g, 5, func(pv *v1.PersistentVolume) { pv.Spec.VolumeMode = new(v1.PersistentVolumeBlock) })
	n.SetUp(agent.Pod("one", "disk"))
	link := filepath.Join(n.Root, "pods/uid-one/volumeDevices/kubernetes.io~iscsi/disk")
	f, err := os.OpenFile(link, os.O_RDWR, 0)
	must(t, err)
	_, err = f.WriteString("raw data")
	must(t, err, f.Sync(), f.Close())
	backing, err := os.Open(d.Backing)
	must(t, err)
	defer backing.Close()
	got := make([]byte, 8)
	if _, err := backing.ReadAt(got, 0); string(got) != "raw data" || err != nil {
		t.Errorf("the disk has %q, %v", got, err)
	}
	n.Stop()
	n.Start()
	n.SetUp(agent.Pod("one", "disk"))
	n.TearDown("one")
	g.wantNothing()
}

// The agent ends and begins again while a volume is mounted, and once more after what looks
// like a reboot: nothing is mounted, there is no session, and the records are there.
func testRestart(t *testing.T) {
	g, n := newLIO(t, "", portal), newMachine(t)
	g.add(0, "a")
	n.volume("disk", g, 0)
	path := n.SetUp(agent.Pod("one", "disk"))
	must(t, os.WriteFile(filepath.Join(path, "file"), []byte("data"), 0o600))
	n.Stop()
	n.Start()
	n.WantFile(filepath.Join(n.SetUp(agent.Pod("one", "disk")), "file"), "data")
	n.Stop()
	must(t, unix.Unmount(path, 0))
	for _, at := range strings.Fields(command(t, "sh", "-c", "awk '/iscsi/ {print $2}' /proc/mounts")) {
		must(t, unix.Unmount(at, 0))
	}
	command(t, "iscsiadm", "-m", "session", "--logout")
	n.Start()
	n.WantFile(filepath.Join(n.SetUp(agent.Pod("one", "disk")), "file"), "data")
	n.Stop()
	n.Start()
	n.SetUp(agent.Pod("one", "disk"))
	n.TearDown("one")
	g.wantNothing()
}

// After a reboot there is another disk under the same number: it is not formatted.
func testAnotherDisk(t *testing.T) {
	g, n := newLIO(t, "", portal), newMachine(t)
	g.add(0, "a")
	n.volume("disk", g, 0)
	path := n.SetUp(agent.Pod("one", "disk"))
	n.Stop()
	must(t, unix.Unmount(path, 0))
	for _, at := range strings.Fields(command(t, "sh", "-c", "awk '/iscsi/ {print $2}' /proc/mounts")) {
		must(t, unix.Unmount(at, 0))
	}
	command(t, "iscsiadm", "-m", "session", "--logout")
	g.swap(0, "b")
	n.Start()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := n.Manager.SetUpPod(ctx, agent.Pod("one", "disk")); !errors.Is(err, iscsi.ErrAnotherDisk) {
		t.Errorf("SetUpPod = %v", err)
	}
	n.TearDown("one")
	g.wantNothing()
}
