package local_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/mount/format"
	"github.com/podvol/podvol/util/blockdev"
	"github.com/podvol/podvol/util/testenv/loopdev"
	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/util/testenv/testtool"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/localdisk"
	"github.com/podvol/podvol/volume/plugins/local"
	"github.com/podvol/podvol/volume/reclaim"
)

// ext4 makes a disk with ext4 on it, mounted.
func ext4(t *testing.T, c *cleaner) (path string, disk *loopdev.Device) {
	t.Helper()
	disk = loopdev.New(t, 32<<20)
	testtool.Need(t, "mkfs.ext4")
	if out, err := exec.Command("mkfs.ext4", "-q", disk.Path).CombinedOutput(); err != nil {
		t.Fatalf("mkfs.ext4: %v: %s", err, out)
	}
	path = t.TempDir()
	c.mount(t, disk.Path, path, "ext4")
	return path, disk
}

func TestKernelFileSystemsOwnDirectoryStays(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		c := newCleaner(t, deleteAll, nil)
		if !strings.HasSuffix(t.Name(), "/root") {
			if os.Geteuid() != 0 {
				t.Error("it is not root of its namespace")
			}
			return // no block devices here
		}
		path, _ := ext4(t, c)
		writeFiles(t, path, "file", "lost+found/#12")
		immutable := filepath.Join(path, "immutable")
		writeFiles(t, path, "immutable")
		setImmutable(t, immutable, true)
		pv := c.releasedAt(t, path)
		err := c.delete(t.Context(), pv)
		if !errors.Is(err, fs.ErrPermission) || !strings.Contains(err.Error(), immutable) || !strings.Contains(err.Error(), "chattr") {
			t.Errorf("of an immutable file: %v", err)
		}
		setImmutable(t, immutable, false)
		if err := c.delete(t.Context(), pv); err != nil {
			t.Fatal(err)
		}
		if left := namesIn(t, path); len(left) != 1 || left[0] != "lost+found" || len(namesIn(t, filepath.Join(path, "lost+found"))) > 0 {
			t.Errorf("%v is left", left)
		}
	})
}

func setImmutable(t *testing.T, path string, on bool) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	const immutableFlag = 0x10
	flags := 0
	if on {
		flags = immutableFlag
	}
	if err := unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, flags); err != nil {
		t.Fatal(err)
	}
}

func TestKernelDeviceIsWiped(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		if !strings.HasSuffix(t.Name(), "/root") {
			c := newCleaner(t, deleteAll, nil)
			pv := c.releasedAt(t, c.disk(t))
			pv.Spec.Local.Path, pv.Spec.VolumeMode = "/dev/null", new(v1.PersistentVolumeBlock)
			if err := c.delete(t.Context(), pv); !errors.Is(err, unix.ENOTBLK) {
				t.Errorf("of what is no block device: %v", err)
			}
			return
		}
		for _, method := range []local.WipeMethod{local.WipeSignatures, local.WipeDiscard, local.WipeZero} {
			t.Run(string(method), func(t *testing.T) {
				c := newCleaner(t, local.CleanConfig{Action: local.CleanDelete, Devices: method}, nil)
				path, disk := ext4(t, c)
				middle := filepath.Join(path, "file")
				if err := os.WriteFile(middle, []byte(strings.Repeat("secret", 1<<20)), 0o600); err != nil {
					t.Fatal(err)
				}
				pv := c.releasedAt(t, disk.Path)
				pv.Spec.VolumeMode = new(v1.PersistentVolumeBlock)
				if err := c.delete(t.Context(), pv); !errors.Is(err, volume.ErrInUse) {
					t.Error("it is wiped although it is mounted")
				}
				if err := unix.Unmount(path, 0); err != nil {
					t.Fatal(err)
				}
				dry := newCleaner(t, local.CleanConfig{Action: local.CleanDryRun, Devices: method}, nil)
				if err := dry.delete(t.Context(), pv); !errors.Is(err, reclaim.ErrDryRun) || !strings.Contains(err.Error(), "ext4") {
					t.Errorf("the dry run says %v", err)
				}
				never := newCleaner(t, local.CleanConfig{Action: local.CleanDelete}, nil)
				if err := never.delete(t.Context(), pv); err == nil || !strings.Contains(err.Error(), "Clean.Devices") {
					t.Errorf("without a method: %v", err)
				}
				busy, err := blockdev.System{}.Open(disk.Path, unix.O_RDONLY|unix.O_EXCL)
				if err != nil {
					t.Fatal(err)
				}
				if err := c.delete(t.Context(), pv); !errors.Is(err, unix.EBUSY) || volume.IsUncertain(err) {
					t.Errorf("while it is used: %v", err)
				}
				busy.Close()
				other := pv.DeepCopy()
				other.Annotations[localdisk.VolumeID] = "id:another"
				if _, ok := errors.AsType[*localdisk.OtherDiskError](c.delete(t.Context(), other)); !ok {
					t.Error("another disk is wiped")
				}
				if found := contentOf(t, disk.Path); found.Blank() {
					t.Error("it was wiped by what was refused")
				}
				if err := c.delete(t.Context(), pv); err != nil {
					t.Fatal(err)
				}
				if found := contentOf(t, disk.Path); !found.Blank() {
					t.Errorf("it has %v", found)
				}
				data, err := os.ReadFile(disk.Path)
				if left := strings.Contains(string(data), "secret"); err != nil || method == local.WipeZero && left {
					t.Errorf("what was in it can be read: %v, %v", left, err)
				}
			})
		}
	})
}

func contentOf(t *testing.T, path string) format.Content {
	t.Helper()
	d, err := blockdev.System{}.Open(path, unix.O_RDONLY)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	size, err := d.Size()
	if err != nil {
		t.Fatal(err)
	}
	found, err := format.Inspect(t.Context(), d.File(), size)
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// A pod does not get another disk that was put in its volume's place, nor the
// directory below.
func TestKernelPodGetsItsOwnDisk(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		c := newCleaner(t, local.CleanConfig{}, nil)
		path := c.disk(t)
		s := volume.NewSpecFromPersistentVolume(c.releasedAt(t, path), false)
		m := mounter(t, c, s, "u1")
		works := func() {
			t.Helper()
			setUp(t, m)
			if err := tearDown(t, c, "u1"); err != nil {
				t.Fatal(err)
			}
		}
		refused := func(what string) {
			t.Helper()
			err := m.SetUp(t.Context(), volume.MounterArgs{})
			if _, ok := errors.AsType[*localdisk.OtherDiskError](err); !ok || volume.IsUncertain(err) {
				t.Errorf("%s: %v", what, err)
			}
			wantGone(t, m.GetPath())
		}
		unmount := func() {
			t.Helper()
			if err := unix.Unmount(path, 0); err != nil {
				t.Fatal(err)
			}
		}
		works()
		c.mount(t, "tmpfs", path, "tmpfs")
		refused("another disk over it")
		unmount()
		works()
		unmount()
		refused("without a disk")
		c.mount(t, "tmpfs", path, "tmpfs")
		refused("another disk in its place")
	})
}

// Who sees the host's files elsewhere has to look for the disk there.
func TestDiskOfAHostElsewhere(t *testing.T) {
	s := spec(t.TempDir())
	s.PersistentVolume.Annotations = map[string]string{localdisk.VolumeID: "uuid:1"}
	errOther := errors.New("it is another one")
	for name, files := range map[string]volume.HostFiles{
		"cannot": hostElsewhere{}, "says no": struct {
			hostElsewhere
			hostDisks
		}{hostDisks: hostDisks{errOther}},
		"says yes": struct {
			hostElsewhere
			hostDisks
		}{},
	} {
		fake := fakemount.New()
		t.Cleanup(func() { fake.Close() })
		p := local.New(local.Config{})
		if err := p.Init(&volume.Host{RootDir: t.TempDir(), NodeName: "node1", Mounter: fake, HostFiles: files}); err != nil {
			t.Fatal(err)
		}
		err := mounter(t, p, s, "u1").SetUp(t.Context(), volume.MounterArgs{})
		switch name {
		case "cannot":
			if err == nil || !strings.Contains(err.Error(), "CheckDisk") {
				t.Errorf("%s: %v", name, err)
			}
		case "says no":
			if !errors.Is(err, errOther) {
				t.Errorf("%s: %v", name, err)
			}
		default:
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

type hostElsewhere struct{ volume.HostFiles }

func (hostElsewhere) Stat(_ context.Context, path string) (fs.FileInfo, error) { return os.Stat(path) }

type hostDisks struct{ err error }

func (d hostDisks) CheckDisk(context.Context, *v1.PersistentVolume) error { return d.err }
