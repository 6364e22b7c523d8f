package csi_test

// The rows of upstream's tables (v1.37.2: mounter 65, attacher 66, client 67, block 20, and 8
// of the end-to-end test of staging) are tried by the tests of this package and its suite.
// These differ:
//
//   - Attach and Detach (16 rows): a node attaches nothing, so both refuse. AttachSpec and
//     DetachSpec of package controller attach where there is no cluster.
//   - WaitForAttach (6): it returns at once. The manager waits for the node's status, and
//     staging looks at the VolumeAttachment: TestStagingNeedsAnAttachment, TestNothingDone.
//   - GetDeviceMountPath of an inline volume (1): there is a path for every spec. CanDeviceMount
//     says that the volume has no device, and MountDevice refuses it: TestSpecsWithoutADevice.
//   - UnmountDevice with torn data (1): with nothing mounted the directories go; upstream
//     fails for ever. With something mounted it is ErrUnidentified: TestMountThatNobodyKnows.
//   - Capabilities that cannot be read (1): nothing was done, since no call that changes
//     something was sent; upstream is in doubt.
//   - Calls without an id or a path (8): the plugin makes both, and no caller can leave them
//     out. Data without a handle is torn: TestLostVolData.
//
// One row says that FSGroupPolicy File applies to a read-only volume; its code does not, and
// the plugin does not either.
//
// Health of volumes and storage (14 rows) is tried by TestVolumeHealth and TestStorageHealth. A
// capability of which the storage's health does not say all fields is told as far as it goes;
// upstream drops the whole answer. It also drops one of more than 16 conditions; here its text
// is cut.
//
// Not tried: data that cannot be written for want of a permission (1), which root always has.

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/plugins/csi"
	"github.com/podvol/podvol/volume/volumetest/csitest"
)

// Without a CSIDriver object, and without the role, files are given to the group where there
// is a file system type and one writer. All access modes count, not the first alone.
func TestFSGroupByDefault(t *testing.T) {
	const once, pod1, many, readers = v1.ReadWriteOnce, v1.ReadWriteOncePod, v1.ReadWriteMany, v1.ReadOnlyMany
	inline := func(fsType string, readOnly bool) *volume.Spec {
		s := inlineSpec()
		s.Volume.CSI.FSType, s.Volume.CSI.ReadOnly = &fsType, &readOnly
		return s
	}
	persistent := func(fsType string, readOnly bool, modes ...v1.PersistentVolumeAccessMode) *volume.Spec {
		s := pvSpec(func(pv *v1.PersistentVolume) { pv.Spec.AccessModes, pv.Spec.CSI.FSType = modes, fsType })
		s.ReadOnly = readOnly
		return s
	}
	for name, tc := range map[string]struct {
		spec        *volume.Spec
		group, want bool
	}{
		"no type, no group":             {persistent("", false, once), false, false},
		"no type":                       {persistent("", false, once), true, false},
		"no group":                      {persistent("ext4", false, once), false, false},
		"many writers and readers":      {persistent("ext4", false, many, readers), true, false},
		"readers":                       {persistent("ext4", false, readers), true, false},
		"read-only":                     {persistent("ext4", true, once), true, false},
		"one node":                      {persistent("ext4", false, once), true, true},
		"one pod":                       {persistent("ext4", false, pod1), true, true},
		"no mode":                       {persistent("ext4", false), true, false},
		"readers, then one node":        {persistent("ext4", false, readers, once), true, true},
		"many, readers, then one pod":   {persistent("ext4", false, many, readers, pod1), true, true},
		"inline":                        {inline("ext4", false), true, true},
		"inline, no type":               {inline("", false), true, false},
		"inline, read-only":             {inline("ext4", true), true, false},
		"inline, with a type, no group": {inline("ext4", false), false, false},
	} {
		for _, role := range []bool{false, true} {
			t.Run(name+map[bool]string{true: "/no object"}[role], func(t *testing.T) {
				dc := everything()
				dc.Capabilities.VolumeMountGroup = false
				b := newBench(t, dc, csi.Config{Defaults: map[string]storagev1.CSIDriverSpec{driverName: {PodInfoOnMount: new(true),
					VolumeLifecycleModes: []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent, storagev1.VolumeLifecycleEphemeral}}}})
				if role {
					b.host.CSIDrivers = lookUp{b.drivers, b.attachments}
				}
				var args volume.MounterArgs
				if tc.group {
					args.FsGroup = new(int64(os.Getegid()))
				}
				b.must(b.setUp(tc.spec, pod("u1"), args))
				info, err := os.Stat(b.mounter(tc.spec, pod("u1")).GetPath())
				if b.must(err); (info.Mode()&os.ModeSetgid != 0) != tc.want {
					t.Errorf("the volume's directory is %v", info.Mode())
				}
				b.must(b.tearDown(tc.spec, "u1"))
				b.wantNothing()
			})
		}
	}
}

// The group goes to a driver that takes it, in both calls, whatever the policy; to no other.
func TestVolumeMountGroup(t *testing.T) {
	for name, tc := range map[string]struct {
		takes bool
		group *int64
		want  string
	}{
		"group, taken":        {true, new(int64(os.Getegid())), strconv.Itoa(os.Getegid())},
		"no group":            {true, nil, ""},
		"group, not taken":    {false, new(int64(os.Getegid())), ""},
		"no group, not taken": {false, nil, ""},
	} {
		for _, policy := range []storagev1.FSGroupPolicy{storagev1.NoneFSGroupPolicy, storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy} {
			t.Run(name+"/"+string(policy), func(t *testing.T) {
				dc := everything()
				dc.Capabilities.VolumeMountGroup = tc.takes
				b := newBench(t, dc, csi.Config{})
				b.object(storagev1.CSIDriverSpec{FSGroupPolicy: &policy})
				b.must(b.setUp(pvSpec(), pod("u1"), volume.MounterArgs{FsGroup: tc.group}))
				staged := lastRequest[*spec.NodeStageVolumeRequest](b, "NodeStageVolume").VolumeCapability.GetMount()
				published := lastRequest[*spec.NodePublishVolumeRequest](b, "NodePublishVolume").VolumeCapability.GetMount()
				if staged.VolumeMountGroup != tc.want || published.VolumeMountGroup != tc.want {
					t.Errorf("staged for group %q, published for %q, want %q", staged.VolumeMountGroup, published.VolumeMountGroup, tc.want)
				}
				// A type that nobody gave is the driver's to choose.
				if staged.FsType != "" || published.FsType != "" {
					t.Errorf("staged as %q, published as %q", staged.FsType, published.FsType)
				}
				b.must(b.tearDown(pvSpec(), "u1"))
			})
		}
	}
}

// Information on the pod comes beside the volume's own attributes, where the object asks for it.
func TestPodInfo(t *testing.T) {
	info := map[string]string{
		"csi.storage.k8s.io/pod.name": "web", "csi.storage.k8s.io/pod.namespace": "shop", "csi.storage.k8s.io/pod.uid": "u1",
		"csi.storage.k8s.io/serviceAccount.name": "seller", "csi.storage.k8s.io/ephemeral": "false",
	}
	for name, tc := range map[string]struct {
		object *storagev1.CSIDriverSpec
		want   bool
	}{
		"no object": {nil, false},
		"not said":  {&storagev1.CSIDriverSpec{}, false},
		"no":        {&storagev1.CSIDriverSpec{PodInfoOnMount: new(false)}, false},
		"yes":       {&storagev1.CSIDriverSpec{PodInfoOnMount: new(true)}, true},
	} {
		for _, attributes := range []map[string]string{nil, {"colour": "red"}} {
			for _, mode := range []v1.PersistentVolumeMode{v1.PersistentVolumeFilesystem, v1.PersistentVolumeBlock} {
				t.Run(name+"/"+attributes["colour"]+"/"+string(mode), func(t *testing.T) {
					dc := everything()
					dc.Disk = csitest.File
					if mode == v1.PersistentVolumeFilesystem {
						dc.Disk = csitest.Directory
					}
					b := newBench(t, dc, csi.Config{})
					b.host.CSIDrivers = lookUp{b.drivers, b.attachments}
					if tc.object != nil {
						b.object(*tc.object)
					}
					s := pvSpec(func(pv *v1.PersistentVolume) {
						pv.Spec.CSI.VolumeAttributes, pv.Spec.VolumeMode = maps.Clone(attributes), &mode
					})
					if mode == v1.PersistentVolumeBlock {
						b.must(b.mapDevice(s, "u1"))
					} else {
						b.must(b.setUp(s, pod("u1"), volume.MounterArgs{}))
					}
					want := make(map[string]string)
					maps.Copy(want, attributes)
					if tc.want {
						maps.Copy(want, info)
					}
					if got := lastRequest[*spec.NodePublishVolumeRequest](b, "NodePublishVolume").VolumeContext; !maps.Equal(got, want) {
						t.Errorf("published with %v, want %v", got, want)
					}
					if got := lastRequest[*spec.NodeStageVolumeRequest](b, "NodeStageVolume").VolumeContext; !maps.Equal(got, attributes) {
						t.Errorf("staged with %v", got)
					}
					if got := s.PersistentVolume.Spec.CSI.VolumeAttributes; !maps.Equal(got, attributes) {
						t.Errorf("the PersistentVolume has now %v", got)
					}
				})
			}
		}
	}
}

// mapDevice does what a node does for a block volume.
func (b *bench) mapDevice(s *volume.Spec, uid types.UID) error {
	b.t.Helper()
	m, err := b.plugin.NewBlockVolumeMapper(s, pod(uid))
	b.must(err)
	if _, err := m.SetUpDevice(b.t.Context()); err != nil {
		return err
	}
	_, err = m.MapPodDevice(b.t.Context())
	return err
}

// A label is an option after the volume's own, for a driver whose object says seLinuxMount and
// a pod that has one. No option is ever empty.
func TestSELinuxOption(t *testing.T) {
	const label = "system_u:object_r:container_file_t:s0:c1,c2"
	for name, tc := range map[string]struct {
		object *storagev1.CSIDriverSpec
		label  string
		want   []string
	}{
		"yes":           {&storagev1.CSIDriverSpec{SELinuxMount: new(true)}, label, []string{"b=2", "a=1", `context="` + label + `"`}},
		"yes, no label": {&storagev1.CSIDriverSpec{SELinuxMount: new(true)}, "", []string{"b=2", "a=1"}},
		"no":            {&storagev1.CSIDriverSpec{SELinuxMount: new(false)}, label, []string{"b=2", "a=1"}},
		"not said":      {&storagev1.CSIDriverSpec{}, label, []string{"b=2", "a=1"}},
		"no object":     {nil, label, []string{"b=2", "a=1"}},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, everything(), csi.Config{})
			b.host.CSIDrivers = lookUp{b.drivers, b.attachments}
			if tc.object != nil {
				b.object(*tc.object)
			}
			given := []string{"b=2", "a=1", "", ""}[:2] // appending would change the array
			s := pvSpec(func(pv *v1.PersistentVolume) { pv.Spec.MountOptions = given })
			can, err := b.plugin.SupportsSELinuxContextMount(t.Context(), s)
			if says := tc.object != nil && tc.object.SELinuxMount != nil && *tc.object.SELinuxMount; can != says || err != nil {
				t.Errorf("SELinux mounts: %v, %v", can, err)
			}
			b.must(b.setUp(s, pod("u1"), volume.MounterArgs{SELinuxLabel: tc.label}))
			staged := lastRequest[*spec.NodeStageVolumeRequest](b, "NodeStageVolume").VolumeCapability.GetMount().MountFlags
			published := lastRequest[*spec.NodePublishVolumeRequest](b, "NodePublishVolume").VolumeCapability.GetMount().MountFlags
			if !slices.Equal(staged, tc.want) || !slices.Equal(published, tc.want) || given[:3][2] != "" {
				t.Errorf("staged with %q, published with %q, want %q", staged, published, tc.want)
			}
		})
	}
}

// The first call that is refused leaves nothing. What was published before stays as it was,
// with its data, whatever the code of a later call is, also for the next process; and it is
// unpublished with its pod.
func TestRefusalOfAnotherPublish(t *testing.T) {
	for _, code := range []codes.Code{codes.InvalidArgument, codes.Internal, codes.DeadlineExceeded, codes.Unavailable} {
		for name, tc := range map[string]struct {
			before func(b *bench, m volume.Mounter) error
			kept   bool
		}{
			"the first": {func(*bench, volume.Mounter) error { return nil }, false},
			"the second": {func(b *bench, m volume.Mounter) error {
				return m.SetUp(b.t.Context(), volume.MounterArgs{})
			}, true},
			"the next process's": {func(b *bench, m volume.Mounter) error {
				defer b.restart()
				return m.SetUp(b.t.Context(), volume.MounterArgs{})
			}, true},
			"after a reboot": {func(b *bench, m volume.Mounter) error {
				defer b.restart()
				b.must(m.SetUp(b.t.Context(), volume.MounterArgs{}))
				b.must(b.host.Fake.Unmount(m.GetPath()), b.host.Fake.Unmount(b.devicePath(pvSpec())), b.driver.Reboot())
				return nil
			}, true},
		} {
			t.Run(name+"/"+code.String(), func(t *testing.T) {
				b := newBench(t, everything(), csi.Config{Republish: time.Hour})
				b.object(storagev1.CSIDriverSpec{RequiresRepublish: new(true)})
				s := pvSpec()
				m := b.mounter(s, pod("u1"))
				b.must(b.mountDevice(s, volume.DeviceMounterArgs{}), tc.before(b, m), b.mountDevice(s, volume.DeviceMounterArgs{}))
				if name != "after a reboot" && tc.kept {
					b.must(os.WriteFile(filepath.Join(m.GetPath(), "file"), []byte("data"), 0o600))
				}
				remove := b.driver.Inject(csitest.Fault{Match: csitest.Method("NodePublishVolume"), Err: status.Error(code, "no")})
				err := b.mounter(s, pod("u1")).SetUp(t.Context(), volume.MounterArgs{})
				remove()
				if status.Code(err) != code {
					t.Errorf("%v", err)
				}
				wantUncertain(t, err, tc.kept || isDoubtful(code))
				_, statErr := os.Stat(filepath.Join(filepath.Dir(m.GetPath()), "vol_data.json"))
				if (statErr == nil) != (tc.kept || isDoubtful(code)) {
					t.Errorf("vol_data.json: %v", statErr)
				}
				if name != "after a reboot" && tc.kept {
					if text, err := os.ReadFile(filepath.Join(m.GetPath(), "file")); string(text) != "data" || err != nil {
						t.Errorf("the pod reads %q, %v", text, err)
					}
				}
				b.driver.ResetCalls()
				b.must(b.tearDown(s, "u1"))
				want := []string{"NodeUnstageVolume"}
				if tc.kept || isDoubtful(code) {
					want = []string{"NodeUnpublishVolume", "NodeUnstageVolume"}
				}
				b.wantMethods(want...)
				b.wantNothing()
			})
		}
	}
}
