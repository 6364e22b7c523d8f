package iscsi_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/podvol/podvol/mount/host"
	"github.com/podvol/podvol/util/testenv/agent"
	"github.com/podvol/podvol/util/testenv/debs"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/plugins/iscsi"
)

// The target sees the volume's own name, by an interface that goes with the volume.
func testInitiatorName(t *testing.T) {
	const name = "iqn.2026-01.com.example:of-the-volume"
	g, n := newLIO(t, "", portal), newMachine(t)
	g.add(0, "a")
	n.volume("disk", g, 0, func(pv *v1.PersistentVolume) { pv.Spec.ISCSI.InitiatorName = new(name) })
	path := filepath.Join(n.SetUp(agent.Pod("one", "disk")), "file")
	must(t, os.WriteFile(path, []byte("data"), 0o600))
	if seen, err := os.ReadFile(g.group + "/dynamic_sessions"); strings.Trim(string(seen), "\x00\n ") != name || err != nil {
		t.Errorf("the target sees %q, %v", seen, err)
	}
	face := "/etc/iscsi/ifaces/" + portal + ":disk"
	if text, err := os.ReadFile(face); err != nil || !strings.Contains(string(text), "iface.initiatorname = "+name) {
		t.Errorf("the interface: %s, %v", text, err)
	}
	n.TearDown("one")
	g.wantNothing()
	if _, err := os.Stat(face); !os.IsNotExist(err) {
		t.Errorf("the interface is left: %v", err)
	}
}

// A disk that a pod has as a device is refused by another portal, and not taken from the pod.
func testTwoPathsWithoutMultipathd(t *testing.T) {
	const second = "127.0.0.2:3260"
	g, n := newLIO(t, "", portal, second), newMachine(t)
	g.add(0, "a")
	by := func(portal string) func(*v1.PersistentVolume) {
		return func(pv *v1.PersistentVolume) {
			pv.Spec.VolumeMode = new(v1.PersistentVolumeBlock)
			pv.Spec.ISCSI.TargetPortal, pv.Spec.ISCSI.Portals = portal, nil
		}
	}
	n.volume("first", g, 0, by(portal))
	n.volume("second", g, 0, by(second))
	n.SetUp(agent.Pod("one", "first"))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := n.Manager.SetUpPod(ctx, agent.Pod("two", "second")); !errors.Is(err, volume.ErrInUse) || !strings.Contains(err.Error(), `"first"`) {
		t.Errorf("SetUpPod = %v", err)
	}
	n.TearDown("two")
	if got := g.sessions(); got != 1 {
		t.Errorf("%d sessions are open", got)
	}
	// Neither does a node of another root directory, which knows nothing of it.
	other := newMachine(t)
	other.volume("second", g, 0, by(second))
	if _, err := other.Manager.SetUpPod(ctx, agent.Pod("three", "second")); !errors.Is(err, volume.ErrInUse) || !strings.Contains(err.Error(), n.Root) {
		t.Errorf("below another root: SetUpPod = %v", err)
	}
	other.TearDown("three")
	if got := g.sessions(); got != 1 {
		t.Errorf("%d sessions are open", got)
	}
	n.TearDown("one")
	g.wantNothing()
}

// On a kernel with SELinux the label is the mount's. The policy has little more than the labels of
// files, and refuses nothing.
func testLabel(t *testing.T) {
	if known, err := os.ReadFile("/proc/filesystems"); err != nil || !strings.Contains(string(known), "selinuxfs") {
		t.Logf("left to a machine with SELinux: this one, which other tests share, has none; %v", err)
		return
	}
	policy, err := os.ReadFile("../csi/testdata/selinux/policy")
	must(t, err, unix.Mount("selinuxfs", "/sys/fs/selinux", "selinuxfs", 0, ""), os.WriteFile("/sys/fs/selinux/load", policy, 0))
	g, n := newLIO(t, "", portal), newMachine(t)
	g.add(0, "a")
	s := n.volume("disk", g, 0)
	plugin := iscsi.New(iscsi.Config{})
	must(t, plugin.Init(&volume.Host{RootDir: t.TempDir(), Mounter: host.New(host.Config{})}))
	able, _ := volume.AsDeviceMountable(plugin)
	m, err := able.NewDeviceMounter()
	must(t, err)
	u, err := able.NewDeviceUnmounter()
	must(t, err)
	path, err := m.GetDeviceMountPath(s)
	must(t, err)
	for _, label := range []string{"base_u:object_r:data_t", "base_u:object_r:base_t"} {
		must(t, m.MountDevice(t.Context(), s, "", path, volume.DeviceMounterArgs{SELinuxLabel: label}), os.WriteFile(filepath.Join(path, "file"), nil, 0o600))
		value := make([]byte, 100)
		size, err := unix.Getxattr(filepath.Join(path, "file"), "security.selinux", value)
		if got := strings.TrimRight(string(value[:max(size, 0)]), "\x00"); got != label || err != nil {
			t.Errorf("the file has the label %q, %v, want %q", got, err, label)
		}
		must(t, u.UnmountDevice(t.Context(), path))
	}
	g.wantNothing()
}

// startMultipathd runs the daemon until the test ends. It is told of disks as udev would.
func startMultipathd(t *testing.T, programs debs.Tree) {
	t.Helper()
	for _, module := range []string{"dm_multipath", "dm_service_time"} {
		command(t, "modprobe", module)
	}
	libraries, err := filepath.Glob(filepath.Join(programs.Dir, "lib/*multipath*"))
	must(t, err)
	more, err := filepath.Glob(filepath.Join(programs.Dir, "lib/libmpath*"))
	must(t, err)
	for _, file := range append(libraries, more...) {
		must(t, os.Symlink(file, filepath.Join("/lib", filepath.Base(file))))
	}
	// There is no udev: disks have no attributes of its, and nothing tells of a new map.
	must(t, os.WriteFile("/etc/multipath.conf", []byte("defaults {\n uid_attribute \"\"\n find_multipaths no\n missing_uev_wait_timeout 1\n}\noverrides {\n no_path_retry fail\n}\n"), 0o600))
	bin := t.TempDir()
	must(t, programs.Wrap("multipath", filepath.Join(bin, "multipath")), programs.Wrap("multipathd", filepath.Join(bin, "multipathd")))
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	t.Setenv("DM_DISABLE_UDEV", "1")
	startDaemon(t, programs, "multipathd", "multipathd", "-d", "-s")
}

// tellOfDisks has multipathd hear of two disks once they are there.
func tellOfDisks(ctx context.Context) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for told := map[string]bool{}; len(told) < 2 && ctx.Err() == nil; <-tick.C {
		disks, _ := filepath.Glob("/sys/block/sd*")
		for _, disk := range disks {
			name := filepath.Base(disk)
			if out, err := exec.CommandContext(ctx, "multipathd", "add", "path", name).Output(); err == nil && strings.Contains(string(out), "ok") {
				told[name] = true
			}
		}
	}
}

// Of two portals the device is multipathd's. It outlives a path, grows, and is given back.
func testMultipath(t *testing.T, programs debs.Tree) {
	startMultipathd(t, programs)
	g, n := newLIO(t, "", portal, "127.0.0.2:3260"), newMachine(t)
	d := g.add(0, "a")
	s := n.volume("disk", g, 0)
	told := make(chan struct{})
	go func() {
		defer close(told)
		tellOfDisks(t.Context())
	}()
	path := n.SetUp(agent.Pod("one", "disk"))
	<-told
	until(t, "the device has both paths", func() bool {
		paths, err := filepath.Glob("/sys/block/dm-*/slaves/sd*")
		return err == nil && len(paths) == 2
	})
	if mounts := command(t, "sh", "-c", "grep kubernetes.io/iscsi /proc/mounts"); !strings.HasPrefix(mounts, "/dev/dm-") && !strings.HasPrefix(mounts, "/dev/mapper/") {
		t.Errorf("it is not multipathd's: %s", mounts)
	}
	disks, err := filepath.Glob("/sys/block/sd*")
	must(t, err)
	for _, disk := range disks { // one path after the other
		state := filepath.Join(disk, "device/state")
		must(t, os.WriteFile(state, []byte("offline\n"), 0))
		f, err := os.Create(filepath.Join(path, "file"))
		must(t, err)
		_, err = f.WriteString("data")
		must(t, err, f.Sync(), f.Close(), os.WriteFile(state, []byte("running\n"), 0))
		command(t, "multipathd", "reinstate", "path", filepath.Base(disk))
	}
	d.Resize(t, 256<<20)
	plugin := iscsi.New(iscsi.Config{})
	must(t, plugin.Init(&volume.Host{RootDir: n.Root, Mounter: host.New(host.Config{})}))
	grow, _ := volume.AsNodeExpandable(plugin)
	if done, err := grow.NodeExpand(t.Context(), volume.NodeResizeOptions{VolumeSpec: s, DeviceMountPath: path, NewSize: resource.MustParse("256Mi")}); !done || err != nil {
		t.Errorf("NodeExpand = %v, %v", done, err)
	}
	var size unix.Statfs_t
	if must(t, unix.Statfs(path, &size)); size.Blocks*uint64(size.Bsize) < 200<<20 {
		t.Errorf("it has %d blocks of %d", size.Blocks, size.Bsize)
	}
	n.TearDown("one")
	g.wantNothing()
	if left, err := filepath.Glob("/sys/block/dm-*"); len(left) > 0 || err != nil {
		t.Errorf("devices are left: %q, %v", left, err)
	}
}
