package iscsi_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/fakehost"
	"github.com/podvol/podvol/volume/internal/machinedir"
	"github.com/podvol/podvol/volume/plugins/iscsi"
)

// by names the portals of a volume; asDevice makes it a block volume, and reading one that only
// reads.
func by(portal string, more ...string) func(*v1.PersistentVolume) {
	return func(pv *v1.PersistentVolume) {
		pv.Spec.ISCSI.TargetPortal, pv.Spec.ISCSI.Portals = portal, more
	}
}

func asDevice(pv *v1.PersistentVolume) { pv.Spec.VolumeMode = new(v1.PersistentVolumeBlock) }

func reading(pv *v1.PersistentVolume) { pv.Spec.ISCSI.ReadOnly = true }

// setUpDevice sets a block volume up for a pod.
func (b *bench) setUpDevice(s *volume.Spec) (unmap func() error, err error) {
	b.t.Helper()
	m, err := b.plugin.NewBlockVolumeMapper(s, fakehost.Pod("a"))
	b.must(err)
	at, err := m.GetGlobalMapPath(s)
	b.must(err)
	u, err := b.plugin.NewBlockVolumeUnmapper(s.Name(), fakehost.Pod("a").UID)
	b.must(err)
	_, err = m.SetUpDevice(b.t.Context())
	return func() error { return u.TearDownDevice(b.t.Context(), at, "") }, err
}

// wantSessions looks for the portals that there are sessions with.
func (b *bench) wantSessions(want ...string) {
	b.t.Helper()
	var got []string
	for _, s := range b.nodes.open() {
		got = append(got, s.portal)
	}
	if slices.Sort(got); !slices.Equal(got, want) {
		b.t.Errorf("sessions with %q, want %q", got, want)
	}
}

// Two block volumes of one disk by two paths: the kernel knows nothing of either.
func TestBlockVolumesOfOneDisk(t *testing.T) {
	for name, tc := range map[string]struct {
		first, second func(*v1.PersistentVolume)
		allowed       bool
	}{
		"both write":       {first: func(*v1.PersistentVolume) {}, second: func(*v1.PersistentVolume) {}},
		"the second reads": {first: func(*v1.PersistentVolume) {}, second: reading},
		"the first reads":  {first: reading, second: func(*v1.PersistentVolume) {}},
		"both read":        {first: reading, second: reading, allowed: true},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.nodes.paths = true
			unmap, err := b.setUpDevice(b.pv("first", asDevice, by("192.0.2.1"), tc.first))
			b.must(err)
			second := b.pv("second", asDevice, by("192.0.2.2"), tc.second)
			unmapSecond, err := b.setUpDevice(second)
			if tc.allowed {
				b.must(err, unmapSecond())
			} else if !errors.Is(err, volume.ErrInUse) || volume.IsUncertain(err) || !strings.Contains(err.Error(), `"first"`) {
				t.Errorf("SetUpDevice = %v", err)
			}
			b.wantSessions("192.0.2.1") // what the second had opened is closed
			b.must(unmap())
			b.wantSessions()
			unmapSecond, err = b.setUpDevice(second)
			b.must(err, unmapSecond())
			b.host.AssertClean(t)
		})
	}
}

func TestAFileSystemBesideABlockVolumeOfAnotherPath(t *testing.T) {
	b := newBench(t)
	b.nodes.paths = true
	unmap, err := b.setUpDevice(b.pv("block", asDevice, by("192.0.2.1")))
	b.must(err)
	if err := b.mountBeside(b.pv("files", by("192.0.2.2"))); !errors.Is(err, volume.ErrInUse) || volume.IsUncertain(err) || !strings.Contains(err.Error(), `"block"`) {
		t.Errorf("MountDevice = %v", err)
	}
	b.wantSessions("192.0.2.1")
	b.must(unmap())
	b.host.AssertClean(t)
}

// A record that cannot be read may be one of the same disk's.
func TestADamagedRecordOfABlockVolume(t *testing.T) {
	b := newBench(t)
	s := b.pv("first", asDevice)
	unmap, err := b.setUpDevice(s)
	b.must(err)
	records, err := filepath.Glob(filepath.Join(b.host.RootDir, "plugins/kubernetes.io/iscsi/volumeDevices/iface-default/*.json"))
	b.must(err)
	kept, err := os.ReadFile(records[0])
	b.must(err, os.WriteFile(records[0], []byte("{"), 0o600))
	if _, err := b.setUpDevice(b.pv("second", asDevice, by("192.0.2.2"))); err == nil || !strings.Contains(err.Error(), records[0]) {
		t.Errorf("SetUpDevice = %v", err)
	}
	b.wantSessions("192.0.2.1")
	b.must(os.WriteFile(records[0], kept, 0o600), unmap())
	b.host.AssertClean(t)
}

// Of another target it says nothing about this one's disks.
func TestADamagedRecordOfAnotherTarget(t *testing.T) {
	b := newBench(t)
	unmap, err := b.setUpDevice(b.pv("first", asDevice))
	b.must(err)
	records, err := filepath.Glob(filepath.Join(b.host.RootDir, "plugins/kubernetes.io/iscsi/volumeDevices/iface-default/*.json"))
	b.must(err)
	kept, err := os.ReadFile(records[0])
	b.must(err, os.WriteFile(records[0], []byte("{"), 0o600))
	disk := t.TempDir()
	other := b.pv("second", func(pv *v1.PersistentVolume) { pv.Spec.ISCSI.IQN = iqnOf(disk) })
	b.must(b.mount(other), b.unmount(other), os.WriteFile(records[0], kept, 0o600), unmap())
	b.host.AssertClean(t)
}

// Between login and mount a disk is taken away, and its name given to another one.
func TestTheNameOfADiskIsGivenToAnother(t *testing.T) {
	b := newBench(t)
	s := b.pv("pv")
	b.nodes.looked = func() { b.nodes.id = "naa.6002" }
	b.plugin.binder.begins = func() { t.Error("another disk is mounted") }
	if err := b.mount(s); !errors.Is(err, iscsi.ErrAnotherDisk) || volume.IsUncertain(err) {
		t.Errorf("MountDevice = %v", err)
	}
	b.wantSessions()
	b.host.AssertClean(t)
	// From that look on it is open, so that the kernel gives its name to no other.
	b.nodes.looked, b.nodes.id = func() { b.wantOpen(true) }, ""
	b.plugin.binder.begins = func() { b.wantOpen(true) }
	b.must(b.mount(s))
	b.wantOpen(false)
	b.must(b.unmount(s))
	b.host.AssertClean(t)
}

// wantOpen looks whether this process has the disk open.
func (b *bench) wantOpen(want bool) {
	b.t.Helper()
	all, err := filepath.Glob("/proc/self/fd/*")
	b.must(err)
	is := slices.ContainsFunc(all, func(fd string) bool {
		to, err := os.Readlink(fd)
		return err == nil && to == b.disk
	})
	if is != want {
		b.t.Errorf("the disk is open: %v, want %v", is, want)
	}
}

// After a reboot the LUN is another disk: the session goes, the identity of the first stays.
func TestARefusedDiskIsGivenBack(t *testing.T) {
	b := newBench(t)
	s := b.pv("pv")
	b.must(b.mountBeside(s))
	clear(b.nodes.sessions)
	b.nodes.id = "naa.6002"
	for range 2 {
		if err := b.mount(s); !errors.Is(err, iscsi.ErrAnotherDisk) || !volume.IsUncertain(err) {
			t.Errorf("MountDevice = %v", err)
		}
		b.wantSessions()
	}
	b.nodes.id = ""
	b.must(b.mountBeside(s), b.unmount(s))
	b.host.AssertClean(t)
}

// A failure closes nothing that an earlier attach has opened: a pod may have the disk, and the
// kernel does not know of that.
func TestAFailureBesideAPod(t *testing.T) {
	b := newBench(t)
	s := b.pv("pv", asDevice)
	unmap, err := b.setUpDevice(s)
	b.must(err)
	more := b.pv("pv", asDevice, by("192.0.2.1", "192.0.2.2"))
	b.nodes.used = "/dev/sdz"
	for _, again := range []*volume.Spec{s, more} {
		if _, err := b.setUpDevice(again); !errors.Is(err, volume.ErrInUse) || !volume.IsUncertain(err) {
			t.Errorf("SetUpDevice = %v", err)
		}
		b.wantSessions("192.0.2.1")
	}
	b.must(unmap())
	b.wantSessions()
	b.host.AssertClean(t)
}

// Of two volumes of one disk, each gives back the paths that the other does not have.
func TestPathsOfTwoVolumes(t *testing.T) {
	for _, firstGoes := range []bool{true, false} {
		b := newBench(t)
		unmap, err := b.setUpDevice(b.pv("first", asDevice, by("192.0.2.1", "192.0.2.2")))
		b.must(err)
		unmapSecond, err := b.setUpDevice(b.pv("second", asDevice, by("192.0.2.3", "192.0.2.2")))
		b.must(err)
		b.wantSessions("192.0.2.1", "192.0.2.2", "192.0.2.3")
		if firstGoes {
			b.must(unmap())
			b.wantSessions("192.0.2.2", "192.0.2.3")
			b.must(unmapSecond())
		} else {
			b.must(unmapSecond())
			b.wantSessions("192.0.2.1", "192.0.2.2")
			b.must(unmap())
		}
		b.wantSessions()
		b.host.AssertClean(t)
	}
}

// The label is the mount's, so that no file is relabelled.
func TestSELinuxLabel(t *testing.T) {
	const label = "system_u:object_r:container_file_t:s0:c1,c2"
	b := newBench(t)
	b.plugin.binder.nothing = true
	s := b.pv("pv", func(pv *v1.PersistentVolume) { pv.Spec.MountOptions = []string{"noatime"} })
	able, ok := volume.AsSELinux(b.plugin)
	if !ok {
		t.Fatal("it cannot")
	}
	if supports, err := able.SupportsSELinuxContextMount(t.Context(), s); !supports || err != nil {
		t.Errorf("%v, %v", supports, err)
	}
	m, err := b.plugin.NewDeviceMounter()
	b.must(err, m.MountDevice(t.Context(), s, "", b.devicePath(s), volume.DeviceMounterArgs{SELinuxLabel: label}), b.unmount(s))
	if want := []string{"noatime", `context="` + label + `"`}; !slices.Equal(b.plugin.binder.options, want) {
		t.Errorf("mounted with %q, want %q", b.plugin.binder.options, want)
	}
	b.host.AssertClean(t)
}

// Two roots of one machine: while one logs out of a target, the other is not given a disk of the
// session, which would be closed under it.
func TestTwoRootsOfAMachine(t *testing.T) {
	first := newBench(t)
	second := &bench{t: t, host: fakehost.New(t), nodes: first.nodes, disk: first.disk}
	second.plugin = newHosted(second.nodes)
	second.must(second.plugin.Init(second.host))
	locks := filepath.Join(t.TempDir(), "locks")
	first.plugin.ShareMachine(locks)
	second.plugin.ShareMachine(locks)
	files, device := second.pv("files", func(pv *v1.PersistentVolume) { pv.Spec.ISCSI.Lun = 4 }), first.pv("device", asDevice)
	unmap, err := first.setUpDevice(device)
	first.must(err)
	tries := 0
	first.nodes.closing = func() {
		tries++
		_, err := second.setUpDevice(second.pv("another", asDevice))
		for _, err := range []error{second.mount(files), err, second.unmount(files)} {
			if !errors.Is(err, machinedir.ErrBusy) || volume.IsUncertain(err) {
				t.Errorf("while the other logs out: %v", err)
			}
		}
	}
	first.must(unmap())
	if first.nodes.closing = nil; tries != 1 {
		t.Errorf("%d attempts", tries)
	}
	first.must(second.mount(files), second.unmount(files))
	if _, err := os.Lstat(locks); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the locks are left: %v", err)
	}
	first.must(os.WriteFile(locks, nil, 0o600))
	if err := second.mount(files); err == nil || volume.IsUncertain(err) || len(first.nodes.open()) > 0 {
		t.Errorf("without locks: %v", err)
	}
	first.host.AssertClean(t)
	second.host.AssertClean(t)
}
