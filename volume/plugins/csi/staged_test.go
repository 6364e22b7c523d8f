package csi_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/mount/host"
	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/fakehost"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/plugins/csi"
	"github.com/podvol/podvol/volume/volumemanager"
	"github.com/podvol/podvol/volume/volumetest/csitest"
)

// adopt has a new manager take the bench's root over, as one takes a kubelet's.
func (b *bench) adopt(log *slog.Logger) (manager *volumemanager.Manager, stop func()) {
	b.t.Helper()
	p, err := csi.New(csi.Config{Drivers: map[string]string{driverName: b.socket}})
	b.must(err)
	manager, err = volumemanager.New(volumemanager.Config{RootDir: b.host.RootDir, NodeName: "node1", Objects: objects.NewStore(),
		Plugins: []volume.VolumePlugin{p}, Mounter: b.host.GetMounter(), Adopt: true, Logger: log})
	b.must(err)
	ctx, cancel := context.WithCancel(b.t.Context())
	done := make(chan error, 1)
	go func() { done <- manager.Run(ctx) }()
	b.must(manager.WaitForRecovery(ctx))
	return manager, func() {
		cancel()
		b.must(<-done, p.Close())
	}
}

// settled is what the log says of a device that is done with.
const settled = "is unmounted, or in use here"

// What a kubelet has left staged is unstaged by its successor once the pods are complete:
// file systems of today's and of old kubelets, and block volumes. What a pod uses stays until
// that pod goes.
func TestLeftStagedIsUnstaged(t *testing.T) {
	nstest.RunAlone(t, func(t *testing.T) {
		b := newBenchOn(t, fakehost.NewOnKernel(t, host.New(host.Config{})), everything(), csi.Config{})
		log := make(lines, 100)
		named := func(name string) *volume.Spec {
			return pvSpec(func(pv *v1.PersistentVolume) { pv.Name, pv.Spec.CSI.VolumeHandle = name, name })
		}
		b.must(b.setUp(named("used"), pod("u1"), volume.MounterArgs{}), b.mountDevice(named("left"), volume.DeviceMounterArgs{}))
		// One of an old kubelet, by its PersistentVolume's name.
		m, err := b.plugin.NewDeviceMounter()
		old := filepath.Join(b.host.RootDir, "plugins/kubernetes.io/csi/pv/old/globalmount")
		b.must(err, m.MountDevice(t.Context(), named("old"), "", old, volume.DeviceMounterArgs{}))
		manager, stop := b.adopt(slog.New(log))
		if n := len(b.driver.CallsOf("NodeUnstageVolume")); n > 0 {
			t.Errorf("before the pods are complete, %d are unstaged", n)
		}
		manager.PodsComplete("u1")
		for range 3 {
			log.await(t, settled)
		}
		b.must(manager.TearDownPod(t.Context(), "u1"))
		stop()
		calls := b.driver.CallsOf("NodeUnpublishVolume", "NodeUnstageVolume")
		if len(calls) != 4 || calls[2].Method != "NodeUnpublishVolume" || calls[3].Volume != "used" {
			t.Errorf("calls %v", calls)
		}
		b.wantNothing()
	})
}

// A device that may be used by a pod of which nothing is known stays: another mount shows
// it, or a volume has a directory and no record.
func TestLeftStagedThatMayBeUsedStays(t *testing.T) {
	nstest.RunAlone(t, func(t *testing.T) {
		b, log := newBenchOn(t, fakehost.NewOnKernel(t, host.New(host.Config{})), everything(), csi.Config{}), make(lines, 100)
		b.must(b.mountDevice(pvSpec(), volume.DeviceMounterArgs{}))
		elsewhere, unknown := t.TempDir(), filepath.Join(b.host.RootDir, "pods/u9/volumes/kubernetes.io~csi/v/mount")
		b.must(unix.Mount(b.devicePath(pvSpec()), elsewhere, "", unix.MS_BIND, ""),
			os.MkdirAll(unknown, 0o750), unix.Mount("none", unknown, "tmpfs", 0, ""))
		manager, stop := b.adopt(slog.New(log))
		manager.PodsComplete("u9")
		log.await(t, "has a directory and no record")
		b.must(unix.Unmount(unknown, 0), os.RemoveAll(filepath.Join(b.host.RootDir, "pods")))
		log.await(t, "it is mounted elsewhere")
		if staged := b.driver.Staged(); len(staged) != 1 {
			t.Errorf("staged are %v", staged)
		}
		b.must(unix.Unmount(elsewhere, 0))
		log.await(t, settled)
		stop()
		b.wantNothing()
	})
}

func TestFindStaged(t *testing.T) {
	b := newBench(t, everything(), csi.Config{})
	found, err := b.plugin.FindStaged(t.Context())
	if len(found) > 0 || err != nil {
		t.Errorf("found at first: %v, %v", found, err)
	}
	b.must(b.mountDevice(pvSpec(), volume.DeviceMounterArgs{}))
	found, err = b.plugin.FindStaged(t.Context())
	if len(found) != 1 || err != nil || found[0].Path != b.devicePath(pvSpec()) || found[0].Spec.PersistentVolume.Spec.CSI.VolumeHandle != "h1" {
		t.Errorf("found %v, %v", found, err)
	}
	// Torn data does not say of which volume the device is. A spec that was seen does, and else
	// the directory tells which volumes it is not.
	data := filepath.Join(filepath.Dir(found[0].Path), "vol_data.json")
	text, err := os.ReadFile(data)
	b.must(err, os.WriteFile(data, nil, 0o600))
	if found, err := b.plugin.FindStaged(t.Context()); len(found) != 1 || err != nil || found[0].Spec == nil || found[0].Spec.PersistentVolume.Spec.CSI.VolumeHandle != "h1" {
		t.Errorf("found by torn data and a spec: %v, %v", found, err)
	}
	b.restart()
	for name, content := range map[string]string{"torn": "", "another volume's": strings.Replace(string(text), `"h1"`, `"h2"`, 1)} {
		b.must(os.WriteFile(data, []byte(content), 0o600))
		found, err := b.plugin.FindStaged(t.Context())
		if len(found) != 1 || err != nil || found[0].Spec != nil || !errors.Is(found[0].Err, csi.ErrUnidentified) {
			t.Fatalf("found by %s data: %v, %v", name, found, err)
		}
		if may := found[0].MayBe; !may(driverName+"^h1") || may(driverName+"^h3") || may("other.io^h1") || may(driverName+"^h2") != (content != "") {
			t.Errorf("%s data may be of h1: %v, h2: %v, h3: %v", name, may(driverName+"^h1"), may(driverName+"^h2"), may(driverName+"^h3"))
		}
	}
	b.must(os.WriteFile(data, text, 0o600), b.unmountDevice(pvSpec()))
	// A block volume can be unstaged once it is published for no pod.
	s := pvSpec(func(pv *v1.PersistentVolume) {
		pv.Spec.CSI.VolumeHandle, pv.Spec.VolumeMode = "device", new(v1.PersistentVolumeBlock)
		pv.Spec.CSI.VolumeAttributes = map[string]string{"disk": string(csitest.File)}
	})
	mapper, err := b.plugin.NewBlockVolumeMapper(s, pod("u1"))
	b.must(err)
	unmapper, err := b.plugin.NewBlockVolumeUnmapper("pv1", "u1")
	b.must(err)
	wantBlocks := func(want int, published bool, err error) {
		b.must(err)
		found, err := b.plugin.FindStaged(t.Context())
		if len(found) != want || err != nil || want > 0 && (!found[0].Spec.IsBlock() || found[0].Spec.Name() != "pv1" || found[0].Published != published) {
			t.Errorf("found %v, %v, want %d", found, err, want)
		}
	}
	_, err = mapper.SetUpDevice(t.Context())
	wantBlocks(1, false, err)
	_, err = mapper.MapPodDevice(t.Context())
	wantBlocks(1, true, err)
	wantBlocks(1, false, unmapper.UnmapPodDevice(t.Context()))
	wantBlocks(0, false, unmapper.TearDownDevice(t.Context(), "", ""))
	b.wantNothing()
}
