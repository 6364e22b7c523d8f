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
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/mount/host"
	"github.com/podvol/podvol/util/testenv/debs"
	"github.com/podvol/podvol/util/testenv/loopdev"
	"github.com/podvol/podvol/util/testenv/vmtest"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/plugins/iscsi"
	"github.com/podvol/podvol/volume/volumemanager"
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
	for _, module := range []string{"iscsi_tcp", "sd_mod", "configfs", "iscsi_target_mod", "target_core_iblock"} {
		command(t, "modprobe", module)
	}
	if _, err := os.Stat("/sys/kernel/config/target"); err != nil {
		must(t, unix.Mount("none", "/sys/kernel/config", "configfs", 0, ""))
		command(t, "modprobe", "target_core_mod")
	}
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
	must(g.t, os.WriteFile(filepath.Join(g.group, attribute), []byte(value), 0))
}

// add gives the target a disk, whose serial number is made of the target's name and id.
func (g *lioTarget) add(lun int, id string) *loopdev.Device {
	g.t.Helper()
	d := loopdev.New(g.t, 64<<20)
	disk := fmt.Sprintf("/sys/kernel/config/target/core/iblock_0/%s.%d.%s", strings.TrimPrefix(g.iqn, "iqn.2026-01.com.example:"), lun, id)
	must(g.t, os.MkdirAll(disk, 0o755),
		os.WriteFile(disk+"/control", []byte("udev_path="+d.Path), 0), os.WriteFile(disk+"/enable", []byte("1"), 0),
		os.WriteFile(disk+"/wwn/vpd_unit_serial", g.serial(id), 0))
	at := fmt.Sprintf("%s/lun/lun_%d", g.group, lun)
	must(g.t, os.Mkdir(at, 0o755), os.Symlink(disk, at+"/disk"))
	g.t.Cleanup(func() {
		_ = os.Remove(at + "/disk")
		must(g.t, os.Remove(at), os.Remove(disk))
	})
	return d
}

// serial is a disk's, whose first digits make its WWID.
func (g *lioTarget) serial(id string) []byte {
	return fmt.Appendf(nil, "%.16x", sha256.Sum256([]byte(g.iqn+id)))
}

// swap gives a LUN another disk.
func (g *lioTarget) swap(lun int, from, to string) {
	g.t.Helper()
	d := loopdev.New(g.t, 64<<20)
	name := func(id string) string {
		return fmt.Sprintf("/sys/kernel/config/target/core/iblock_0/%s.%d.%s", strings.TrimPrefix(g.iqn, "iqn.2026-01.com.example:"), lun, id)
	}
	must(g.t, os.MkdirAll(name(to), 0o755),
		os.WriteFile(name(to)+"/control", []byte("udev_path="+d.Path), 0), os.WriteFile(name(to)+"/enable", []byte("1"), 0),
		os.WriteFile(name(to)+"/wwn/vpd_unit_serial", g.serial(to), 0))
	at := fmt.Sprintf("%s/lun/lun_%d/disk", g.group, lun)
	must(g.t, os.Remove(at), os.Symlink(name(to), at))
	g.t.Cleanup(func() { must(g.t, os.Remove(at), os.Remove(name(to))) })
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
}

// machine is a node on the machine's kernel.
type machine struct {
	t       *testing.T
	root    string
	store   *objects.Store
	manager *volumemanager.Manager
	stop    func()
	// containers may be nil.
	containers volumemanager.PodContainers
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	n := &machine{t: t, root: t.TempDir(), store: objects.NewStore()}
	n.start()
	t.Cleanup(func() { n.stop() })
	return n
}

// start begins the node's agent, anew.
func (n *machine) start() {
	n.t.Helper()
	manager, err := volumemanager.New(volumemanager.Config{RootDir: n.root, NodeName: "node1", Objects: n.store, SetUpTimeout: 2 * time.Minute,
		Plugins: []volume.VolumePlugin{iscsi.New(iscsi.Config{})}, Mounter: host.New(host.Config{}), Containers: n.containers})
	must(n.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- manager.Run(ctx) }()
	n.manager, n.stop = manager, func() {
		cancel()
		if err := <-done; err != nil {
			n.t.Error(err)
		}
		done <- nil
	}
	manager.PodsComplete()
}

// volume adds a PersistentVolume of a target's disk with its claim.
func (n *machine) volume(name string, g *lioTarget, lun int32, change ...func(*v1.PersistentVolume)) *volume.Spec {
	n.t.Helper()
	pv := &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("pv-" + name)}}
	pv.Spec.Capacity = v1.ResourceList{v1.ResourceStorage: resource.MustParse("64Mi")}
	pv.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}
	pv.Spec.ISCSI = &v1.ISCSIPersistentVolumeSource{TargetPortal: g.portals[0], Portals: g.portals[1:], IQN: g.iqn, Lun: lun, FSType: "ext4"}
	for _, f := range change {
		f(pv)
	}
	claim := &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("claim-" + name)}}
	claim.Spec = v1.PersistentVolumeClaimSpec{VolumeName: name, AccessModes: pv.Spec.AccessModes, VolumeMode: pv.Spec.VolumeMode, StorageClassName: new("")}
	claim.Status = v1.PersistentVolumeClaimStatus{Phase: v1.ClaimBound, Capacity: pv.Spec.Capacity, AccessModes: pv.Spec.AccessModes}
	pv.Spec.ClaimRef = &v1.ObjectReference{Kind: "PersistentVolumeClaim", Namespace: "ns", Name: name, UID: claim.UID}
	pv.Status.Phase = v1.VolumeBound
	must(n.t, n.store.Load(n.t.Context(), 0, pv, claim))
	return volume.NewSpecFromPersistentVolume(pv, false)
}

func podOf(name string, claims ...string) *v1.Pod {
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("uid-" + name)}}
	for _, claim := range claims {
		pod.Spec.Volumes = append(pod.Spec.Volumes, v1.Volume{Name: claim, VolumeSource: v1.VolumeSource{
			PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: claim}}})
	}
	return pod
}

// setUp returns where the first volume of a pod is.
func (n *machine) setUp(pod *v1.Pod) string {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(n.t.Context(), 5*time.Minute)
	defer cancel()
	begin := time.Now()
	volumes, err := n.manager.SetUpPod(ctx, pod)
	must(n.t, err)
	n.t.Logf("pod %s is set up after %v", pod.Name, time.Since(begin))
	return volumes.Volumes[0].Path
}

func (n *machine) tearDown(name string) {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(n.t.Context(), 5*time.Minute)
	defer cancel()
	begin := time.Now()
	must(n.t, n.manager.TearDownPod(ctx, types.UID("uid-"+name)))
	n.t.Logf("pod %s is torn down after %v", name, time.Since(begin))
}

func (n *machine) wantFile(path, content string) {
	n.t.Helper()
	if data, err := os.ReadFile(path); string(data) != content || err != nil {
		n.t.Errorf("%s has %q, %v; want %q", path, data, err, content)
	}
}

const portal = "127.0.0.1:3260"

func testFromClaimToFile(t *testing.T) {
	g, n := newLIO(t, "", portal, "[::1]:3261"), newMachine(t)
	g.add(0, "a")
	n.volume("disk", g, 0)
	one, two := n.setUp(podOf("one", "disk")), n.setUp(podOf("two", "disk"))
	must(t, os.WriteFile(filepath.Join(one, "file"), []byte("data"), 0o600))
	n.wantFile(filepath.Join(two, "file"), "data")
	if got := g.sessions(); got != 2 {
		t.Errorf("%d sessions with two portals", got)
	}
	n.tearDown("one")
	n.wantFile(filepath.Join(two, "file"), "data")
	n.tearDown("two")
	g.wantNothing()
	n.wantFile(filepath.Join(n.setUp(podOf("three", "disk")), "file"), "data")
	n.tearDown("three")
	g.wantNothing()
}

func testTwoDisks(t *testing.T) {
	g, n := newLIO(t, "", portal), newMachine(t)
	g.add(0, "a")
	g.add(1, "b")
	n.volume("first", g, 0)
	n.volume("second", g, 1)
	first, second := n.setUp(podOf("one", "first")), n.setUp(podOf("two", "second"))
	must(t, os.WriteFile(filepath.Join(first, "file"), []byte("1"), 0o600), os.WriteFile(filepath.Join(second, "file"), []byte("2"), 0o600))
	if got := g.sessions(); got != 1 {
		t.Errorf("%d sessions for two disks", got)
	}
	n.tearDown("one")
	n.wantFile(filepath.Join(second, "file"), "2")
	n.tearDown("two")
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
	must(t, n.store.Load(t.Context(), 0, secret))
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	if _, err := n.manager.SetUpPod(ctx, podOf("one", "disk")); err == nil || !strings.Contains(err.Error(), "refuses") && !strings.Contains(err.Error(), "password") || strings.Contains(err.Error(), "another password") {
		t.Errorf("with another password: %v", err)
	}
	g.wantNothing()
	stored, err := objects.Get[*v1.Secret](t.Context(), n.store, volume.NewObjectRef("Secret", "ns", "chap"))
	must(t, err)
	right := stored.DeepCopy()
	right.Data["node.session.auth.password"] = []byte("correct password")
	_, err = n.store.Update(t.Context(), right)
	must(t, err)
	must(t, os.WriteFile(filepath.Join(n.setUp(podOf("one", "disk")), "file"), nil, 0o600))
	err = filepath.WalkDir("/etc/iscsi/nodes", func(path string, e os.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() {
			if info, err := e.Info(); err != nil || info.Mode().Perm() != 0o600 {
				t.Errorf("%s has mode %v, %v", path, info.Mode(), err)
			}
		}
		return err
	})
	must(t, err)
	n.tearDown("one")
	g.wantNothing()
}

func testGrowth(t *testing.T) {
	g, n := newLIO(t, "", portal), newMachine(t)
	d := g.add(0, "a")
	s := n.volume("disk", g, 0)
	path := n.setUp(podOf("one", "disk"))
	var before, after unix.Statfs_t
	must(t, unix.Statfs(path, &before))
	d.Resize(t, 256<<20)
	plugin := iscsi.New(iscsi.Config{})
	must(t, plugin.Init(&volume.Host{RootDir: n.root, Mounter: host.New(host.Config{})}))
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
	n.tearDown("one")
	g.wantNothing()
}

func testPortalLost(t *testing.T) {
	g, n := newLIO(t, "", portal), newMachine(t)
	g.add(0, "a")
	n.volume("disk", g, 0)
	path := filepath.Join(n.setUp(podOf("one", "disk")), "file")
	g.set("enable", "0")
	until(t, "the session fails", func() bool {
		return strings.Contains(command(t, "sh", "-c", "cat /sys/class/iscsi_session/*/state"), "FAILED")
	})
	written := make(chan error, 1)
	go func() {
		f, err := os.Create(path)
		if err == nil {
			_, err = f.WriteString("data")
			err = errors.Join(err, f.Sync(), f.Close())
		}
		written <- err
	}()
	g.set("enable", "1")
	select {
	case err := <-written:
		must(t, err)
	case <-time.After(5 * time.Minute):
		t.Fatal("the writer is not served again")
	}
	n.wantFile(path, "data")
	n.tearDown("one")
	g.wantNothing()
}

func testDevice(t *testing.T) {
	g, n := newLIO(t, "", portal), newMachine(t)
	d := g.add(5, "a")
	n.volume("disk", g, 5, func(pv *v1.PersistentVolume) { pv.Spec.VolumeMode = new(v1.PersistentVolumeBlock) })
	n.setUp(podOf("one", "disk"))
	link := filepath.Join(n.root, "pods/uid-one/volumeDevices/kubernetes.io~iscsi/disk")
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
	n.stop()
	n.start()
	n.setUp(podOf("one", "disk"))
	n.tearDown("one")
	g.wantNothing()
}

// The agent ends and begins again while a volume is mounted, and once more after what looks
// like a reboot: nothing is mounted, there is no session, and the records are there.
func testRestart(t *testing.T) {
	g, n := newLIO(t, "", portal), newMachine(t)
	g.add(0, "a")
	n.volume("disk", g, 0)
	path := n.setUp(podOf("one", "disk"))
	must(t, os.WriteFile(filepath.Join(path, "file"), []byte("data"), 0o600))
	n.stop()
	n.start()
	n.wantFile(filepath.Join(n.setUp(podOf("one", "disk")), "file"), "data")
	n.stop()
	must(t, unix.Unmount(path, 0))
	for _, at := range strings.Fields(command(t, "sh", "-c", "awk '/iscsi/ {print $2}' /proc/mounts")) {
		must(t, unix.Unmount(at, 0))
	}
	command(t, "iscsiadm", "-m", "session", "--logout")
	n.start()
	n.wantFile(filepath.Join(n.setUp(podOf("one", "disk")), "file"), "data")
	n.stop()
	n.start()
	n.setUp(podOf("one", "disk"))
	n.tearDown("one")
	g.wantNothing()
}

// After a reboot there is another disk under the same number: it is not formatted.
func testAnotherDisk(t *testing.T) {
	g, n := newLIO(t, "", portal), newMachine(t)
	g.add(0, "a")
	n.volume("disk", g, 0)
	path := n.setUp(podOf("one", "disk"))
	n.stop()
	must(t, unix.Unmount(path, 0))
	for _, at := range strings.Fields(command(t, "sh", "-c", "awk '/iscsi/ {print $2}' /proc/mounts")) {
		must(t, unix.Unmount(at, 0))
	}
	command(t, "iscsiadm", "-m", "session", "--logout")
	g.swap(0, "a", "b")
	n.start()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := n.manager.SetUpPod(ctx, podOf("one", "disk")); !errors.Is(err, iscsi.ErrAnotherDisk) {
		t.Errorf("SetUpPod = %v", err)
	}
	n.tearDown("one")
	g.wantNothing()
}
