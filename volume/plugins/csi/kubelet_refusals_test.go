package csi_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/plugins/csi"
	"github.com/podvol/podvol/volume/volumetest/csitest"
)

func blockSpec(change ...func(*v1.PersistentVolume)) *volume.Spec {
	return pvSpec(append(change, func(pv *v1.PersistentVolume) { pv.Spec.VolumeMode = new(v1.PersistentVolumeBlock) })...)
}

// The places are the kubelet's, also for a name with dots.
func TestPlacesOfNames(t *testing.T) {
	for _, name := range []string{"spec-0", "test.spec.1"} {
		dc := everything()
		dc.Disk = csitest.File
		b := newBench(t, dc, csi.Config{})
		named := func(pv *v1.PersistentVolume) { pv.Name = name }
		m, err := b.plugin.NewBlockVolumeMapper(blockSpec(named), pod("u1"))
		b.must(err)
		_, err = m.SetUpDevice(t.Context())
		b.must(err)
		published, err := m.MapPodDevice(t.Context())
		b.must(err)
		global, err := m.GetGlobalMapPath(blockSpec(named))
		b.must(err)
		dir, link := m.GetPodDeviceMapPath()
		got := []string{b.mounter(pvSpec(named), pod("u1")).GetPath(), global, m.GetStagingPath(), published, dir, link}
		devices := filepath.Join(b.host.RootDir, "plugins/kubernetes.io/csi/volumeDevices")
		want := []string{
			filepath.Join(b.host.RootDir, "pods/u1/volumes/kubernetes.io~csi", name, "mount"),
			filepath.Join(devices, name, "dev"), filepath.Join(devices, "staging", name), filepath.Join(devices, "publish", name, "u1"),
			filepath.Join(b.host.RootDir, "pods/u1/volumeDevices/kubernetes.io~csi"), name,
		}
		if !slices.Equal(got, want) {
			t.Errorf("places %q, want %q", got, want)
		}
	}
}

// A volume without a VolumeAttachment is not staged, unless its driver's object says that it
// does not attach.
func TestStagingNeedsAnAttachment(t *testing.T) {
	for name, tc := range map[string]struct {
		object *storagev1.CSIDriverSpec
		needs  bool
	}{
		"no object": {nil, true},
		"not said":  {&storagev1.CSIDriverSpec{}, true},
		"yes":       {&storagev1.CSIDriverSpec{AttachRequired: new(true)}, true},
		"no":        {&storagev1.CSIDriverSpec{AttachRequired: new(false)}, false},
	} {
		t.Run(name, func(t *testing.T) {
			dc := everything()
			dc.Disk = csitest.File
			b := newBench(t, dc, csi.Config{})
			b.attaching()
			if delete(b.drivers, driverName); tc.object != nil {
				b.object(*tc.object)
			}
			b.host.CSIDrivers = b.host.Attachments.(volume.CSIDriverGetter)
			files := pvSpec(func(pv *v1.PersistentVolume) {
				pv.Name, pv.Spec.CSI.VolumeHandle, pv.Spec.CSI.VolumeAttributes = "pv2", "h2", map[string]string{"disk": string(csitest.Directory)}
			})
			for _, s := range []*volume.Spec{files, blockSpec()} {
				if can, err := b.plugin.CanAttach(t.Context(), s); can != tc.needs || err != nil {
					t.Errorf("CanAttach = %v, %v", can, err)
				}
				set := func() error { return b.setUp(s, pod("u1"), volume.MounterArgs{}) }
				if s.IsBlock() {
					set = func() error { return b.mapDevice(s, "u1") }
				}
				err := set()
				if !tc.needs {
					b.must(err)
					continue
				}
				if wantUncertain(t, err, false); !errors.Is(err, csi.ErrNotAttached) {
					t.Errorf("%v", err)
				}
			}
			if tc.needs {
				b.wantMethods()
				b.wantNothing()
			}
		})
	}
}

// No spec, a spec without a CSI source and an inline one have no device: nothing is staged.
func TestSpecsWithoutADevice(t *testing.T) {
	for name, s := range map[string]*volume.Spec{
		"none":      nil,
		"no source": pvSpec(func(pv *v1.PersistentVolume) { pv.Spec.CSI = nil }),
		"inline":    inlineSpec(),
		"no handle": pvSpec(func(pv *v1.PersistentVolume) { pv.Spec.CSI.VolumeHandle = "" }),
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, everything(), csi.Config{})
			b.object(storagev1.CSIDriverSpec{VolumeLifecycleModes: []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent, storagev1.VolumeLifecycleEphemeral}})
			if can, err := b.plugin.CanDeviceMount(s); can {
				t.Errorf("CanDeviceMount = %v, %v", can, err)
			}
			m, err := b.plugin.NewDeviceMounter()
			b.must(err)
			if path, err := m.GetDeviceMountPath(s); err == nil && name != "inline" {
				t.Errorf("the device is at %s", path)
			}
			err = m.MountDevice(t.Context(), s, "", filepath.Join(b.host.RootDir, "x/globalmount"), volume.DeviceMounterArgs{})
			wantUncertain(t, err, false)
			if _, err := b.plugin.NewBlockVolumeMapper(s, pod("u1")); err == nil {
				t.Error("it is mapped")
			}
			if name != "inline" {
				_, err := b.plugin.NewMounter(s, pod("u1"))
				wantUncertain(t, err, false)
			}
			b.wantMethods()
			b.wantNothing()
		})
	}
}

// A device has a place. Where an attacher has told of a path, that is not the driver's matter.
func TestPathsOfDevices(t *testing.T) {
	b := newBench(t, everything(), csi.Config{})
	t.Chdir(t.TempDir())
	m, err := b.plugin.NewDeviceMounter()
	b.must(err)
	wantUncertain(t, m.MountDevice(t.Context(), pvSpec(), "/dev/x", "", volume.DeviceMounterArgs{}), false)
	if left, err := os.ReadDir("."); len(left) > 0 || err != nil {
		t.Errorf("left %v, %v", left, err)
	}
	b.wantMethods()
	for _, device := range []string{"", "/dev/x"} {
		b.must(m.MountDevice(t.Context(), pvSpec(), device, b.devicePath(pvSpec()), volume.DeviceMounterArgs{}))
		b.must(b.unmountDevice(pvSpec()))
	}
	b.wantMethods("NodeStageVolume", "NodeUnstageVolume", "NodeStageVolume", "NodeUnstageVolume")
	b.wantNothing()
}

// What is left of a device says what its teardown must do.
func TestLeftOfADevice(t *testing.T) {
	const own = `{"driverName":"` + driverName + `","volumeHandle":"project/zone/h1"}`
	for name, tc := range map[string]struct {
		data   string
		stages bool
		want   []string
		err    error
	}{
		"data":                              {own, true, []string{"NodeUnstageVolume"}, nil},
		"data of a driver without the call": {own, false, nil, nil},
		"no data, nothing is mounted":       {"", true, nil, nil},
		"torn data, nothing is mounted":     {`{"driverName"}}`, true, nil, nil},
		"data of a driver that is away":     {`{"driverName":"other.io","volumeHandle":"h1"}`, true, nil, csi.ErrNotRegistered},
	} {
		t.Run(name, func(t *testing.T) {
			dc := everything()
			dc.Capabilities.Stage = tc.stages
			b := newBench(t, dc, csi.Config{})
			place := filepath.Join(b.host.RootDir, "plugins/kubernetes.io/csi", driverName, sha256Hex("project/zone/h1"), "globalmount")
			data := filepath.Join(filepath.Dir(place), "vol_data.json")
			b.must(os.MkdirAll(place, 0o750))
			if tc.data != "" {
				b.must(os.WriteFile(data, []byte(tc.data), 0o600))
			}
			u, err := b.plugin.NewDeviceUnmounter()
			b.must(err)
			err = u.UnmountDevice(t.Context(), place)
			b.wantMethods(tc.want...)
			if !errors.Is(err, tc.err) {
				t.Fatalf("%v, want %v", err, tc.err)
			}
			if tc.err == nil {
				b.wantNothing()
				return
			}
			wantUncertain(t, err, false)
			if _, err := os.Stat(data); err != nil {
				t.Errorf("of a volume that may be staged: %v", err)
			}
		})
	}
}

// A driver that is away keeps a volume: the teardown has done nothing, and is tried again.
func TestTearDownWithoutTheDriver(t *testing.T) {
	dc := everything()
	dc.Disk = csitest.File
	b := newBench(t, dc, csi.Config{})
	b.must(b.mapDevice(blockSpec(), "u1"))
	other := pvSpec(func(pv *v1.PersistentVolume) {
		pv.Name, pv.Spec.CSI.VolumeHandle, pv.Spec.CSI.VolumeAttributes = "pv2", "h2", map[string]string{"disk": string(csitest.Directory)}
	})
	b.must(b.setUp(other, pod("u1"), volume.MounterArgs{}))
	b.driver.ResetCalls()
	known := b.config
	b.config.Drivers = map[string]string{"other.io": b.socket}
	b.restart()
	for name, undo := range b.teardowns(blockSpec(), other) {
		err := undo()
		if wantUncertain(t, err, false); !errors.Is(err, csi.ErrNotRegistered) {
			t.Errorf("%s: %v", name, err)
		}
	}
	m, err := b.plugin.NewBlockVolumeMapper(blockSpec(), pod("u2"))
	b.must(err)
	_, staged := m.SetUpDevice(t.Context())
	_, mapped := m.MapPodDevice(t.Context())
	for _, err := range []error{staged, mapped} {
		if wantUncertain(t, err, false); !errors.Is(err, csi.ErrNotRegistered) {
			t.Errorf("%v", err)
		}
	}
	b.wantMethods()
	b.config = known
	b.restart()
	undo := b.teardowns(blockSpec(), other)
	b.must(undo["UnmapPodDevice"](), undo["TearDownDevice"](), undo["TearDown"](), undo["UnmountDevice"]())
	b.wantMethods("NodeUnpublishVolume", "NodeUnstageVolume", "NodeUnpublishVolume", "NodeUnstageVolume")
	b.wantNothing()
}

// teardowns are the ways to undo a block volume and another one of pod u1.
func (b *bench) teardowns(block, files *volume.Spec) map[string]func() error {
	b.t.Helper()
	ctx := b.t.Context()
	unmapper, err := b.plugin.NewBlockVolumeUnmapper(block.Name(), "u1")
	b.must(err)
	unmounter, err := b.plugin.NewUnmounter(files.Name(), "u1")
	b.must(err)
	return map[string]func() error{
		"UnmapPodDevice": func() error { return unmapper.UnmapPodDevice(ctx) },
		"TearDownDevice": func() error { return unmapper.TearDownDevice(ctx, "", "") },
		"TearDown":       func() error { return unmounter.TearDown(ctx) },
		"UnmountDevice":  func() error { return b.unmountDevice(files) },
	}
}

// What a device lacks is told before anything is done, and a driver that refuses leaves
// nothing of it.
func TestDeviceThatFails(t *testing.T) {
	for name, tc := range map[string]struct {
		spec      *volume.Spec
		code      codes.Code
		is        error
		uncertain bool
		calls     []string
	}{
		"no stage secret": {spec: blockSpec(func(pv *v1.PersistentVolume) {
			pv.Spec.CSI.NodeStageSecretRef = &v1.SecretReference{Namespace: "safe", Name: "none"}
		}), is: volume.ErrNotFound},
		"no publish secret": {spec: blockSpec(func(pv *v1.PersistentVolume) {
			pv.Spec.CSI.NodePublishSecretRef = &v1.SecretReference{Namespace: "safe", Name: "none"}
		}), is: volume.ErrNotFound, calls: []string{"NodeStageVolume"}},
		"refused":  {spec: blockSpec(), code: codes.InvalidArgument, is: csi.ErrRefused, calls: []string{"NodeStageVolume"}},
		"in doubt": {spec: blockSpec(), code: codes.DeadlineExceeded, is: csi.ErrNoAnswer, uncertain: true, calls: []string{"NodeStageVolume"}},
	} {
		t.Run(name, func(t *testing.T) {
			dc := everything()
			dc.Disk = csitest.File
			b := newBench(t, dc, csi.Config{})
			if tc.code != codes.OK {
				b.driver.Inject(csitest.Fault{Match: csitest.Method("NodeStageVolume"), Nth: 1, Err: status.Error(tc.code, "no")})
			}
			err := b.mapDevice(tc.spec, "u1")
			if wantUncertain(t, err, tc.uncertain); !errors.Is(err, tc.is) {
				t.Errorf("%v", err)
			}
			b.wantMethods(tc.calls...)
			u, err := b.plugin.NewBlockVolumeUnmapper("pv1", "u1")
			b.must(err)
			if name != "refused" {
				b.must(u.UnmapPodDevice(t.Context()), u.TearDownDevice(t.Context(), "", ""))
			}
			b.wantNothing()
		})
	}
}

// A driver whose capabilities cannot be read was asked for nothing that changes something:
// unlike at the kubelet there is no doubt.
func TestCapabilitiesThatCannotBeRead(t *testing.T) {
	for _, code := range []codes.Code{codes.Unavailable, codes.Internal} {
		b := newBench(t, everything(), csi.Config{})
		remove := b.driver.Inject(csitest.Fault{Match: csitest.Method("NodeGetCapabilities"), Err: status.Error(code, "no")})
		wantUncertain(t, b.setUp(pvSpec(), pod("u1"), volume.MounterArgs{}), false)
		remove()
		b.wantMethods()
		b.wantNothing()
		b.must(b.setUp(pvSpec(), pod("u1"), volume.MounterArgs{}), b.tearDown(pvSpec(), "u1"))
	}
}

// A size below nothing, and a volume without a place, are refused before the call.
func TestNodeExpandRefuses(t *testing.T) {
	b := newBench(t, everything(), csi.Config{})
	b.must(b.setUp(pvSpec(), pod("u1"), volume.MounterArgs{}))
	b.driver.ResetCalls()
	for _, o := range []volume.NodeResizeOptions{
		{VolumeSpec: pvSpec(), DeviceMountPath: b.mounter(pvSpec(), pod("u1")).GetPath(), NewSize: *resource.NewQuantity(-10, resource.BinarySI)},
		{VolumeSpec: pvSpec(), NewSize: resource.MustParse("1Mi")},
		{VolumeSpec: pvSpec(func(pv *v1.PersistentVolume) { pv.Spec.CSI.VolumeHandle = "" }), DeviceMountPath: "/x", NewSize: resource.MustParse("1Mi")},
	} {
		if done, err := b.plugin.NodeExpand(t.Context(), o); done || err == nil {
			t.Errorf("%v: %v, %v", o, done, err)
		}
	}
	b.wantMethods()
	b.must(b.tearDown(pvSpec(), "u1"))
}

// The VolumeAttachments say which volumes are attached; an inline one never is. A node
// attaches and detaches nothing.
func TestVolumesAreAttached(t *testing.T) {
	b := newBench(t, everything(), csi.Config{})
	b.attaching()
	want := make(map[*volume.Spec]bool)
	var specs []*volume.Spec
	for _, handle := range []string{"attached", "attaching", "unknown"} {
		s := pvSpec(func(pv *v1.PersistentVolume) { pv.Spec.CSI.VolumeHandle = handle })
		specs, want[s] = append(specs, s), handle == "attached"
		if handle != "unknown" {
			b.attachments["csi-"+sha256Hex(handle+driverName+"node2")] = &storagev1.VolumeAttachment{Status: storagev1.VolumeAttachmentStatus{Attached: want[s]}}
		}
	}
	inline := inlineSpec()
	specs, want[inline] = append(specs, inline), false
	a, err := b.plugin.NewAttacher()
	b.must(err)
	got, err := a.VolumesAreAttached(t.Context(), specs, "node2")
	b.must(err)
	for _, s := range specs {
		if is, told := got[s]; is != want[s] || !told {
			t.Errorf("%s: attached %v, told %v", s.Name(), is, told)
		}
	}
	if got, err := a.VolumesAreAttached(t.Context(), specs, "node3"); err != nil || len(got) != 4 || slices.Contains([]bool{got[specs[0]], got[specs[1]], got[specs[2]], got[inline]}, true) {
		t.Errorf("at another node: %v, %v", got, err)
	}
	_, err = a.Attach(t.Context(), specs[0], "node2")
	wantUncertain(t, err, false)
	d, err := b.plugin.NewDetacher()
	b.must(err)
	wantUncertain(t, d.Detach(t.Context(), driverName+"^attached", "node2"), false)
}

// A pod that goes before its volume was ever staged: in doubt the volume is unstaged, else
// there is nothing to undo.
func TestPodThatGoesBeforeItsVolumeIsStaged(t *testing.T) {
	for code, want := range map[codes.Code][]string{codes.InvalidArgument: nil, codes.DeadlineExceeded: {"NodeUnstageVolume"}} {
		t.Run(code.String(), func(t *testing.T) {
			b := newBench(t, everything(), csi.Config{})
			m, stop := b.manager()
			defer stop()
			b.driver.Inject(csitest.Fault{Match: csitest.Method("NodeStageVolume"), Err: status.Error(code, "no")})
			if _, err := m.SetUpPod(t.Context(), claimPod("web")); status.Code(err) != code {
				t.Errorf("%v", err)
			}
			b.must(m.TearDownPod(t.Context(), "web"))
			after := slices.DeleteFunc(b.methods(), func(method string) bool { return method == "NodeStageVolume" }) // may be tried again
			if !slices.Equal(after, want) {
				t.Errorf("calls %v, want %v", after, want)
			}
			b.wantNothing()
		})
	}
}

// A volume of which nobody knows whether it is unstaged is staged again before the next pod
// has it, and unstaged at the end.
func TestPodAfterAnUnstagingThatFailed(t *testing.T) {
	for _, code := range []codes.Code{codes.InvalidArgument, codes.DeadlineExceeded} {
		for _, after := range []bool{false, true} {
			t.Run(fmt.Sprintf("%v/%v", code, after), func(t *testing.T) {
				b := newBench(t, everything(), csi.Config{})
				m, stop := b.manager()
				defer stop()
				remove := b.driver.Inject(csitest.Fault{Match: csitest.Method("NodeUnstageVolume"), After: after, Err: status.Error(code, "no")})
				_, err := m.SetUpPod(t.Context(), claimPod("first"))
				b.must(err)
				if err := m.TearDownPod(t.Context(), "first"); status.Code(err) != code {
					t.Errorf("%v", err)
				}
				_, err = m.SetUpPod(t.Context(), claimPod("second"))
				b.must(err)
				calls := slices.DeleteFunc(b.methods(), func(method string) bool { return method == "NodeUnpublishVolume" })
				if n := len(calls); n < 5 || !slices.Equal(calls[n-2:], []string{"NodeStageVolume", "NodePublishVolume"}) {
					t.Errorf("calls %v", calls)
				}
				remove()
				b.must(m.TearDownPod(t.Context(), "second"), m.TearDownPod(t.Context(), "first")) // which still owes it
				b.wantNothing()
			})
		}
	}
}
