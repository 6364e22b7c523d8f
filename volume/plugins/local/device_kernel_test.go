package local_test

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/mount/format"
	"github.com/podvol/podvol/mount/host"
	"github.com/podvol/podvol/util/testenv/loopdev"
	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/plugins/local"
)

// newDevicePlugin returns the plugin with the host's own mounter.
func newDevicePlugin(t *testing.T) (p volume.DeviceMountableVolumePlugin, root string) {
	t.Helper()
	root, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	plugin := local.New(local.Config{})
	if err := plugin.Init(&volume.Host{RootDir: root, Mounter: host.New(host.Config{})}); err != nil {
		t.Fatal(err)
	}
	p, ok := volume.AsDeviceMountable(plugin)
	if !ok {
		t.Fatal("it mounts no devices")
	}
	return p, root
}

func mountDevice(t *testing.T, p volume.DeviceMountableVolumePlugin, s *volume.Spec) (path string, err error) {
	t.Helper()
	m, err := p.NewDeviceMounter()
	if err != nil {
		t.Fatal(err)
	}
	if path, err = m.GetDeviceMountPath(s); err != nil {
		t.Fatal(err)
	}
	return path, m.MountDevice(t.Context(), s, "", path, volume.DeviceMounterArgs{})
}

func unmountDevice(t *testing.T, p volume.DeviceMountableVolumePlugin, path string) error {
	t.Helper()
	u, err := p.NewDeviceUnmounter()
	if err != nil {
		t.Fatal(err)
	}
	return u.UnmountDevice(t.Context(), path)
}

func hasTool(name string) bool {
	_, err := exec.LookPath(name)
	return err == nil
}

// A blank device is given a file system, mounted once and bound into its pods.
func TestKernelFileSystemOfADevice(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		p, root := newDevicePlugin(t)
		if !strings.HasSuffix(t.Name(), "/root") {
			_, err := mountDevice(t, p, spec("/dev/null"))
			if err != nil {
				t.Errorf("of what is no block device: %v", err) // SetUp refuses it
			}
			return
		}
		disk := loopdev.New(t, 32<<20)
		s := spec(disk.Path, "noatime", "data=ordered")
		path, err := mountDevice(t, p, s)
		if err != nil && !hasTool("mkfs.ext4") { // which may be beside PATH
			if e, ok := errors.AsType[*format.Error](err); !ok || e.Reason != format.ErrToolMissing || volume.IsUncertain(err) {
				t.Errorf("without mkfs.ext4: %v", err)
			}
			wantGone(t, path)
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		if want := filepath.Join(root, "plugins/kubernetes.io/local-volume/mounts/pv1"); path != want {
			t.Errorf("mounted at %s, want %s", path, want)
		}
		if _, err := mountDevice(t, p, s); err != nil {
			t.Error(err)
		}
		readOnly := spec(disk.Path, "noatime", "data=ordered")
		readOnly.ReadOnly = true
		first, second := mounter(t, p, s, "u1"), mounter(t, p, readOnly, "u2")
		setUp(t, first)
		setUp(t, second)
		if err := os.WriteFile(filepath.Join(first.GetPath(), "file"), []byte("data"), 0o644); err != nil {
			t.Fatal(err)
		}
		if data, err := os.ReadFile(filepath.Join(second.GetPath(), "file")); string(data) != "data" || err != nil {
			t.Errorf("the other pod reads %q, %v", data, err)
		}
		if err := os.WriteFile(filepath.Join(second.GetPath(), "file"), nil, 0o644); !errors.Is(err, unix.EROFS) {
			t.Errorf("writing through the read-only volume: %v", err)
		}
		refs, err := p.GetDeviceMountRefs(path)
		slices.Sort(refs)
		if want := []string{first.GetPath(), second.GetPath()}; err != nil || !slices.Equal(refs, want) {
			t.Errorf("refs %v, %v, want %v", refs, err, want)
		}
		rebuilt, err := p.ConstructVolumeSpec(t.Context(), "pv1", first.GetPath())
		if err != nil || rebuilt.Complete || rebuilt.Spec.PersistentVolume.Spec.Local.Path != disk.Path {
			t.Errorf("rebuilt %+v, %v", rebuilt.Spec.PersistentVolume.Spec.Local, err)
		}
		for _, uid := range []types.UID{"u1", "u2"} {
			if err := tearDown(t, p, uid); err != nil {
				t.Error(err)
			}
		}
		for range 2 {
			if err := unmountDevice(t, p, path); err != nil {
				t.Fatal(err)
			}
			wantGone(t, path)
		}
		// The file system that is there by now is kept.
		if _, err := mountDevice(t, p, s); err != nil {
			t.Fatal(err)
		}
		if data, err := os.ReadFile(filepath.Join(path, "file")); string(data) != "data" || err != nil {
			t.Errorf("mounted again, it holds %q, %v", data, err)
		}
		if err := unmountDevice(t, p, path); err != nil {
			t.Error(err)
		}
	})
}

// What has something else than a file system on it is left alone.
func TestKernelDeviceThatIsNotBlank(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		p, _ := newDevicePlugin(t)
		if !strings.HasSuffix(t.Name(), "/root") {
			if path, err := mountDevice(t, p, spec(t.TempDir())); err != nil {
				t.Errorf("of a directory: %v", err)
			} else {
				wantGone(t, path)
			}
			return
		}
		disk := loopdev.New(t, 8<<20)
		if err := os.WriteFile(disk.Backing, bytes.Repeat([]byte("precious"), 1<<20), 0o600); err != nil {
			t.Fatal(err)
		}
		path, err := mountDevice(t, p, spec(disk.Path))
		if e, ok := errors.AsType[*format.Error](err); !ok || e.Reason != format.ErrNotBlank || volume.IsUncertain(err) {
			t.Errorf("MountDevice = %v", err)
		}
		wantGone(t, path)
	})
}

func TestKernelDeviceItself(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		p, root := newDevicePlugin(t)
		able, ok := volume.AsBlock(p)
		if !ok {
			t.Fatal("it has no block volumes")
		}
		blockSpec := func(path string) *volume.Spec {
			s := spec(path)
			s.PersistentVolume.Spec.VolumeMode = new(v1.PersistentVolumeBlock)
			return s
		}
		mapper := func(path string) volume.BlockVolumeMapper {
			m, err := able.NewBlockVolumeMapper(blockSpec(path), pod("u1"))
			if err != nil {
				t.Fatal(err)
			}
			return m
		}
		dir := t.TempDir()
		if _, err := mapper(dir).MapPodDevice(t.Context()); err == nil || volume.IsUncertain(err) || !strings.Contains(err.Error(), "directory") {
			t.Errorf("of a directory: %v", err)
		}
		if _, err := able.NewBlockVolumeMapper(spec(dir), pod("u1")); err == nil {
			t.Error("a file system is accepted as a block volume")
		}
		m := mapper(dir)
		global, err := m.GetGlobalMapPath(blockSpec(dir))
		if want := filepath.Join(root, "plugins/kubernetes.io~local-volume/volumeDevices/pv1"); global != want || err != nil {
			t.Errorf("GetGlobalMapPath = %s, %v, want %s", global, err, want)
		}
		in, name := m.GetPodDeviceMapPath()
		if want := filepath.Join(root, "pods/u1/volumeDevices/kubernetes.io~local-volume"); in != want || name != "pv1" {
			t.Errorf("GetPodDeviceMapPath = %s, %s, want %s", in, name, want)
		}
		if err := os.Symlink("/dev/sdz", filepath.Join(dir, "pv1")); err != nil {
			t.Fatal(err)
		}
		rebuilt, err := able.ConstructBlockVolumeSpec(t.Context(), "u1", "pv1", filepath.Join(dir, "pv1"))
		if err != nil || !rebuilt.IsBlock() || rebuilt.PersistentVolume.Spec.Local.Path != "/dev/sdz" {
			t.Errorf("rebuilt %+v, %v", rebuilt, err)
		}
		if !strings.HasSuffix(t.Name(), "/root") {
			return
		}
		disk := loopdev.New(t, 1<<20)
		if path, err := mapper(disk.Path).MapPodDevice(t.Context()); path != disk.Path || err != nil {
			t.Errorf("MapPodDevice = %s, %v", path, err)
		}
	})
}

// The file system of a mounted device grows with it where the kernel lets it.
func TestKernelFileSystemGrowsWithItsDevice(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		if !strings.HasSuffix(t.Name(), "/root") {
			return // no block devices
		}
		p, _ := newDevicePlugin(t)
		grows := p.(volume.NodeExpandableVolumePlugin)
		for fstype, refusal := range map[string]error{"xfs": nil, "btrfs": nil, "ext4": volume.ErrResizeInUse} {
			if !hasTool("mkfs." + fstype) {
				t.Logf("mkfs.%s is not there", fstype)
				continue
			}
			disk := loopdev.New(t, 512<<20)
			s := spec(disk.Path)
			s.PersistentVolume.Spec.Local.FSType = &fstype
			path, err := mountDevice(t, p, s)
			if err != nil {
				t.Fatal(err)
			}
			var before, after unix.Statfs_t
			if err := unix.Statfs(path, &before); err != nil {
				t.Fatal(err)
			}
			disk.Resize(t, 1<<30)
			for range 2 {
				done, err := grows.NodeExpand(t.Context(), volume.NodeResizeOptions{VolumeSpec: s, DeviceMountPath: path, NewSize: resource.MustParse("1Gi")})
				if fstype == "ext4" && err == nil {
					refusal = nil // with CAP_SYS_RESOURCE
				}
				if done != (refusal == nil) || !errors.Is(err, refusal) {
					t.Errorf("%s: %v, %v", fstype, done, err)
				}
			}
			if err := unix.Statfs(path, &after); err != nil {
				t.Fatal(err)
			}
			if grown := after.Blocks > before.Blocks*3/2; grown != (refusal == nil) {
				t.Errorf("%s had %d blocks, and has %d", fstype, before.Blocks, after.Blocks)
			}
			if err := unmountDevice(t, p, path); err != nil {
				t.Error(err)
			}
		}
		done, err := grows.NodeExpand(t.Context(), volume.NodeResizeOptions{VolumeSpec: spec(t.TempDir()), DeviceMountPath: "/nowhere", NewSize: resource.MustParse("1Gi")})
		if !done || err != nil {
			t.Errorf("a directory: %v, %v", done, err)
		}
	})
}
