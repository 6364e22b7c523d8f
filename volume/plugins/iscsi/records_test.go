package iscsi_test

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/util/durable"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/plugins/iscsi"
)

func TestRecordIsTheKubelets(t *testing.T) {
	b := newBench(t)
	s := b.pv("pv", func(pv *v1.PersistentVolume) { pv.Spec.ISCSI.Portals = []string{"192.0.2.2:3261"} })
	b.must(b.mountBeside(s))
	text, err := os.ReadFile(filepath.Join(b.devicePath(s), "iscsi.json"))
	b.must(err)
	var got map[string]any
	b.must(json.Unmarshal(text, &got))
	want := map[string]any{"VolName": "pv", "Iqn": iqnOf(b.disk), "Iface": "default", "InitIface": "default", "InitiatorName": "", "Lun": "3",
		"Portals": []any{"192.0.2.1:3260", "192.0.2.2:3261"}, "podvolDisk": got["podvolDisk"], "podvolSize": float64(1 << 40)}
	if diff := cmp.Diff(want, got); diff != "" || got["podvolDisk"] == "" {
		t.Errorf("the record (-want +got):\n%s", diff)
	}
	b.must(b.unmount(s))
	b.host.AssertClean(t)
}

// After a power cut a kubelet's record is empty.
func TestAnEmptyRecord(t *testing.T) {
	for _, text := range []string{"", "\x00\x00\x00"} {
		b := newBench(t)
		s := b.pv("pv")
		empty := func(file string) { b.must(os.WriteFile(file, []byte(text), 0o600)) }
		file := filepath.Join(b.devicePath(s), "iscsi.json")
		b.must(b.mountBeside(s))
		empty(file)
		b.must(b.mount(s), b.unmount(s))
		b.wantSessions()
		b.must(b.mountBeside(s))
		empty(file)
		b.must(b.unmount(s))
		b.wantSessions()
		unmap, err := b.setUpDevice(b.pv("device", asDevice))
		b.must(err)
		records, err := filepath.Glob(filepath.Join(b.host.RootDir, "plugins/kubernetes.io/iscsi/volumeDevices/iface-default/*.json"))
		b.must(err)
		empty(records[0])
		b.nodes.paths = true
		if err := b.mountBeside(b.pv("other", by("192.0.2.2"))); !errors.Is(err, volume.ErrInUse) {
			t.Errorf("the disk by another path than that of a block volume with an empty record: %v", err)
		}
		b.nodes.paths = false
		b.must(unmap())
		b.wantSessions()
		b.host.AssertClean(t)
	}
}

// A crash left the directory without its record, or a kubelet was here: the path says enough.
func TestUnmountWithoutARecord(t *testing.T) {
	b := newBench(t)
	s := b.pv("pv")
	b.must(b.mountBeside(s), os.Remove(filepath.Join(b.devicePath(s), "iscsi.json")), b.unmount(s))
	if open := b.nodes.open(); len(open) > 0 {
		t.Errorf("sessions are left: %v", open)
	}
	b.host.AssertClean(t)
	b.must(b.mountBeside(s), os.WriteFile(filepath.Join(b.devicePath(s), "iscsi.json"), []byte("{"), 0o600))
	if err := b.unmount(s); err == nil || len(b.nodes.open()) != 1 {
		t.Errorf("a damaged record: %v", err)
	}
	if _, err := os.Stat(filepath.Join(b.devicePath(s), "iscsi.json")); errors.Is(err, fs.ErrNotExist) {
		t.Error("it is gone")
	}
}

// What was left of a record that was being written when its writer was killed keeps no directory.
func TestUnmountBesideAHalfWrittenRecord(t *testing.T) {
	b := newBench(t)
	s := b.pv("pv")
	half := filepath.Join(b.devicePath(s), ".durable-ABCDEF.tmp")
	b.must(os.MkdirAll(filepath.Dir(half), 0o750), os.WriteFile(half, []byte("{"), 0o600))
	if !durable.IsTemp(filepath.Base(half)) {
		t.Fatal("it has another name")
	}
	b.must(b.unmount(s), os.MkdirAll(filepath.Dir(half), 0o750), os.WriteFile(half, []byte("{"), 0o600), b.mountBeside(s), b.unmount(s))
	b.host.AssertClean(t)
}

// Where the daemon may still open sessions, the record of them is kept.
func TestAnInterruptedLoginKeepsItsRecord(t *testing.T) {
	b := newBench(t)
	s := b.pv("pv", func(pv *v1.PersistentVolume) { pv.Spec.ISCSI.Portals = []string{"192.0.2.2:3261"} })
	ctx, cancel := context.WithCancel(t.Context())
	b.nodes.opened = cancel
	m, err := b.plugin.NewDeviceMounter()
	b.must(err)
	err = m.MountDevice(ctx, s, "", b.devicePath(s), volume.DeviceMounterArgs{})
	if !errors.Is(err, context.Canceled) || !volume.IsUncertain(err) {
		t.Errorf("MountDevice = %v", err)
	}
	if text, err := os.ReadFile(filepath.Join(b.devicePath(s), "iscsi.json")); err != nil || !strings.Contains(string(text), "192.0.2.2:3261") {
		t.Errorf("the record: %s, %v", text, err)
	}
	b.must(b.unmount(s))
	if open := b.nodes.open(); len(open) > 0 {
		t.Errorf("sessions are left: %v", open)
	}
	b.host.AssertClean(t)
	b.nodes.sessions[session{iqnOf(b.disk), "default", "192.0.2.1"}] = map[int]bool{3: true} // and there is not even a directory
	b.must(b.unmount(s))
	if open := b.nodes.open(); len(open) > 0 {
		t.Errorf("sessions are left: %v", open)
	}
}

// A directory that cannot be read may hold another volume of the disk.
func TestUnreadableDirectoriesKeepTheDisk(t *testing.T) {
	b := newBench(t)
	s := b.pv("pv")
	b.must(b.mountBeside(s))
	face := filepath.Join(b.host.GetPluginDir(iscsi.PluginName), "iface-other")
	b.must(os.Symlink("iface-other", face))
	if err := b.unmount(s); !errors.Is(err, unix.ELOOP) || len(b.nodes.open()) != 1 {
		t.Errorf("UnmountDevice = %v, open %v", err, b.nodes.open())
	}
	b.must(os.Remove(face), b.unmount(s))
}

// A user names, in a pod's own volume, a target that ends like another volume's, or the same one
// at another portal: a disk in use stays in use.
func TestADirectoryOfAnotherVolumeIsNoUser(t *testing.T) {
	for name, iqn := range map[string]func(string) string{
		"target that ends alike": func(iqn string) string { return "iqn.2020-01.e:x-" + iqn },
		"the same target":        func(iqn string) string { return iqn },
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			s := b.pv("pv")
			b.must(b.mount(s))
			other := volume.NewSpecFromVolume(&v1.Volume{Name: "v", VolumeSource: v1.VolumeSource{ISCSI: &v1.ISCSIVolumeSource{
				TargetPortal: "198.51.100.1", IQN: iqn(iqnOf(b.disk)), Lun: 3}}})
			b.must(os.MkdirAll(b.devicePath(other), 0o750)) // as before a login
			pod := filepath.Join(b.host.RootDir, "pod")
			b.must(os.Mkdir(pod, 0o750), mount.Mount(t.Context(), b.host.GetMounter(), mount.Request{Source: b.devicePath(s), Target: pod, Options: []string{"bind"}}))
			if err := b.unmount(s); !errors.Is(err, volume.ErrInUse) || volume.IsUncertain(err) {
				t.Errorf("below a pod: %v", err)
			}
			_, err := mount.Unmount(t.Context(), b.host.GetMounter(), pod, mount.UnmountOptions{})
			b.must(err)
			isMounted := b.nodes.mounted
			b.nodes.mounted = func(string) bool { return true } // in another mount namespace
			if err := b.unmount(s); !errors.Is(err, volume.ErrInUse) {
				t.Errorf("in use: %v", err)
			}
			if _, err := os.Stat(filepath.Join(b.devicePath(s), "iscsi.json")); err != nil {
				t.Error(err)
			}
			b.nodes.mounted = isMounted
			b.must(b.unmount(s))
		})
	}
}

// The path of a node's root is no pattern.
func TestRootThatLooksLikeAPattern(t *testing.T) {
	b := newBench(t)
	b.host.RootDir = filepath.Join(b.host.RootDir, "a[b*?]")
	b.must(os.MkdirAll(b.host.RootDir, 0o755))
	first := b.pv("first")
	second := b.pv("second", func(pv *v1.PersistentVolume) { pv.Spec.ISCSI.InitiatorName = new("iqn.2026-01.com.example:node") })
	b.must(b.mountBeside(first), b.mountBeside(second), b.unmount(first))
	if len(b.nodes.open()) != 1 {
		t.Error("the disk of the second volume is gone")
	}
	b.must(b.unmount(second))
}
