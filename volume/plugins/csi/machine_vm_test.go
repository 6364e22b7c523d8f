package csi_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/podvol/podvol/mount/host"
	"github.com/podvol/podvol/util/testenv/vmtest"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/fakehost"
	"github.com/podvol/podvol/volume/plugins/csi"
	"github.com/podvol/podvol/volume/volumetest/csitest"
)

// Volumes in a machine of their own, whose root may grow a mounted ext4 and make id-mapped
// mounts, as containers may not.
func TestVolumesInAMachine(t *testing.T) {
	vmtest.Run(t, func(t *testing.T) {
		for _, fsType := range []string{"ext4", "xfs"} {
			t.Run(fsType, func(t *testing.T) {
				b := newBenchOn(t, fakehost.NewOnKernel(t, host.New(host.Config{})), everything(), csi.Config{})
				s := pvSpec(func(pv *v1.PersistentVolume) {
					pv.Spec.CSI.VolumeHandle, pv.Spec.CSI.FSType = fsType, fsType
				})
				_, err := b.driver.AddVolume(fsType, 512<<20, csitest.Loop)
				b.must(err)
				b.must(b.setUp(s, pod("u1"), volume.MounterArgs{}))
				m := b.mounter(s, pod("u1"))
				b.must(os.WriteFile(filepath.Join(m.GetPath(), "file"), []byte("data"), 0o600))
				growMounted(b, s, m)
				wantIDMapped(b, m.GetPath())
				if data, err := os.ReadFile(filepath.Join(m.GetPath(), "file")); string(data) != "data" || err != nil {
					t.Errorf("the file has %q, %v", data, err)
				}
				b.must(b.tearDown(s, "u1"))
				b.wantNothing()
			})
		}
	})
}

// Volumes on a kernel with SELinux, in a machine of the test's own. The kernel has a policy with
// little more than the labels of files, and refuses nothing.
func TestLabelledVolumesInAMachine(t *testing.T) {
	vmtest.RunOn(t, vmtest.Machine{KernelArgs: []string{"security=selinux"}}, func(t *testing.T) {
		if known, err := os.ReadFile("/proc/filesystems"); err != nil || !strings.Contains(string(known), "selinuxfs") {
			t.Logf("left to a machine with SELinux: this one, which other tests share, has none; %v", err)
			return
		}
		policy, err := os.ReadFile("testdata/selinux/policy")
		if err == nil {
			err = unix.Mount("selinuxfs", "/sys/fs/selinux", "selinuxfs", 0, "")
		}
		if err == nil {
			err = os.WriteFile("/sys/fs/selinux/load", policy, 0)
		}
		if err != nil {
			t.Fatal(err)
		}
		const label = "base_u:object_r:data_t"
		b := newBenchOn(t, fakehost.NewOnKernel(t, host.New(host.Config{})), everything(), csi.Config{})
		b.object(storagev1.CSIDriverSpec{SELinuxMount: new(true)})
		b.driver.Configure(func(c *csitest.Config) { c.Disk = csitest.Loop })
		for name, tc := range map[string]struct{ label, want string }{"labelled": {label, label}, "not labelled": {"", "base_u:object_r:base_t"}} {
			t.Run(name, func(t *testing.T) {
				s := pvSpec(func(pv *v1.PersistentVolume) { pv.Spec.CSI.VolumeHandle, pv.Spec.CSI.FSType = name, "ext4" })
				for range 2 { // the second pod finds the file of the first
					b.must(b.setUp(s, pod("u1"), volume.MounterArgs{SELinuxLabel: tc.label}))
					file := filepath.Join(b.mounter(s, pod("u1")).GetPath(), "file")
					b.must(os.WriteFile(file, nil, 0o600))
					value := make([]byte, 100)
					n, err := unix.Getxattr(file, "security.selinux", value)
					if got := strings.TrimRight(string(value[:max(n, 0)]), "\x00"); got != tc.want || err != nil {
						t.Errorf("the file has the label %q, %v, want %q", got, err, tc.want)
					}
					b.must(b.tearDown(s, "u1"))
				}
				b.wantNothing()
			})
		}
	})
}

// growMounted doubles a volume while a pod has it.
func growMounted(b *bench, s *volume.Spec, m volume.Mounter) {
	b.t.Helper()
	conn, err := csitest.Dial(b.socket)
	b.must(err)
	defer conn.Close()
	before, err := m.GetMetrics(b.t.Context())
	b.must(err)
	_, err = spec.NewControllerClient(conn).ControllerExpandVolume(b.t.Context(), &spec.ControllerExpandVolumeRequest{
		VolumeId: s.PersistentVolume.Spec.CSI.VolumeHandle, CapacityRange: &spec.CapacityRange{RequiredBytes: 1 << 30}})
	b.must(err)
	for range 2 { // the second time there is nothing to do
		done, err := b.plugin.NodeExpand(b.t.Context(), volume.NodeResizeOptions{VolumeSpec: s, DeviceMountPath: m.GetPath(), DeviceStagePath: b.devicePath(s),
			NewSize: resource.MustParse("1Gi"), OldSize: resource.MustParse("512Mi")})
		if !done || err != nil {
			b.t.Errorf("NodeExpand = %v, %v", done, err)
		}
	}
	after, err := m.GetMetrics(b.t.Context())
	b.must(err)
	if grown := after.Capacity.Value() - before.Capacity.Value(); grown < 400<<20 {
		b.t.Errorf("grown from %v to %v", before.Capacity, after.Capacity)
	}
}

// wantIDMapped shows a volume to a user namespace as a container runtime does: what root has
// in the volume is root's in there, and another user's outside.
func wantIDMapped(b *bench, path string) {
	b.t.Helper()
	const first = 100000
	c := exec.CommandContext(b.t.Context(), "sleep", "600")
	ids := []syscall.SysProcIDMap{{HostID: first, Size: 65536}}
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER, UidMappings: ids, GidMappings: ids, Pdeathsig: syscall.SIGKILL}
	b.must(c.Start())
	defer func() {
		_ = c.Process.Kill()
		_ = c.Wait()
	}()
	namespace, err := os.Open(fmt.Sprintf("/proc/%d/ns/user", c.Process.Pid))
	b.must(err)
	defer namespace.Close()
	tree, err := unix.OpenTree(unix.AT_FDCWD, path, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	b.must(err)
	target := b.t.TempDir()
	b.must(unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(namespace.Fd())}),
		unix.MoveMount(tree, "", unix.AT_FDCWD, target, unix.MOVE_MOUNT_F_EMPTY_PATH), unix.Close(tree))
	defer func() { b.must(unix.Unmount(target, unix.UMOUNT_NOFOLLOW)) }()
	for place, want := range map[string]uint32{path: 0, target: first} {
		info, err := os.Stat(filepath.Join(place, "file"))
		b.must(err)
		if owner := info.Sys().(*syscall.Stat_t).Uid; owner != want {
			b.t.Errorf("the file of root at %s is of user %d, want %d", place, owner, want)
		}
	}
}
