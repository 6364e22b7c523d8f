package controller_test

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/fakehost"
	"github.com/podvol/podvol/volume/plugins/csi/controller"
	"github.com/podvol/podvol/volume/volumetest/csitest"
)

// attaching is a driver that can do everything.
func attaching() csitest.Config {
	c := everything()
	c.Capabilities.Attach = true
	return c
}

func fastClass() *storagev1.VolumeAttributesClass {
	return &storagev1.VolumeAttributesClass{ObjectMeta: metav1.ObjectMeta{Name: "gold"}, DriverName: driverName, Parameters: map[string]string{"iops": "9000"}}
}

// change is one call for a volume that exists.
type change struct {
	method string
	do     func(context.Context, *controller.Plugin, *volume.Spec) error
	done   func(*csitest.Driver) bool
}

func attach(ctx context.Context, p *controller.Plugin, s *volume.Spec) error {
	a, err := p.AttachSpec(ctx, s, fakehost.NodeName)
	if err == nil && a.Metadata["attached-to"] != "node1" {
		return errors.New("the attachment has no metadata")
	}
	return err
}

func changes() []change {
	return []change{
		{"ControllerPublishVolume", attach, func(d *csitest.Driver) bool { return len(d.Attached()) == 1 }},
		{"ControllerUnpublishVolume", func(ctx context.Context, p *controller.Plugin, s *volume.Spec) error {
			return p.DetachSpec(ctx, s, fakehost.NodeName)
		}, func(d *csitest.Driver) bool { return len(d.Attached()) == 0 }},
		{"ControllerExpandVolume", func(ctx context.Context, p *controller.Plugin, s *volume.Spec) error {
			reached, _, err := p.ExpandSpec(ctx, s, resource.MustParse("1Gi"))
			if err == nil && reached.Value() != 1<<30 {
				return errors.New("it has " + reached.String())
			}
			return err
		}, func(*csitest.Driver) bool { return true }},
		{"ControllerModifyVolume", func(ctx context.Context, p *controller.Plugin, s *volume.Spec) error {
			return p.Modify(ctx, s, fastClass())
		}, func(d *csitest.Driver) bool {
			has, err := d.Modified("h1")
			return err == nil && maps.Equal(has, fastClass().Parameters)
		}},
	}
}

// Each call is made again after whatever strikes it, by another process, and is done once
// more without harm.
func TestChangesSurviveWhateverHappens(t *testing.T) {
	for _, change := range changes() {
		t.Run(change.method, func(t *testing.T) {
			eachStrike(t, func(t *testing.T, s strike) {
				c := attaching()
				c.CreateOnUse = true
				m := newMachine(t, c)
				if change.method == "ControllerUnpublishVolume" {
					if err := attach(t.Context(), m.plugin(), pvSpec()); err != nil {
						t.Fatal(err)
					}
				}
				fault := s.do(m)
				fault.Match, fault.Nth, fault.After = csitest.Method(change.method), 1, s.after
				m.driver.Inject(fault)
				err := change.do(m.life, m.plugin(), pvSpec())
				certain := errors.Is(err, context.Canceled) || err == nil
				if !certain && volume.IsUncertain(err) == slices.Contains([]codes.Code{codes.Unknown, codes.InvalidArgument, codes.Internal}, status.Code(err)) {
					t.Errorf("%v: uncertain %v", err, volume.IsUncertain(err))
				}
				if len(m.driver.CallsOf(change.method)) == 0 {
					t.Fatal("it was not called")
				}
				m.driver.Kill()
				m.startDriver()
				again := m.plugin()
				for range 2 {
					if err := change.do(t.Context(), again, pvSpec()); err != nil {
						t.Fatal(err)
					}
				}
				if !change.done(m.driver) {
					t.Errorf("attached %v, calls %v", m.driver.Attached(), m.driver.Calls())
				}
			})
		})
	}
}

// plugin is that of a process of its own.
func (m *machine) plugin() *controller.Plugin {
	m.t.Helper()
	p, err := controller.New(controller.Config{Drivers: map[string]string{driverName: m.socket}})
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() { p.Close() })
	if err := p.Init(&volume.Host{RootDir: m.root, NodeName: fakehost.NodeName, Mounter: fakemount.New()}); err != nil {
		m.t.Fatal(err)
	}
	return p
}

// The requests have all that the PersistentVolume and the class say.
func TestRequestsOfChanges(t *testing.T) {
	dc := attaching()
	dc.Capabilities.SingleNodeMultiWriter = false
	b := newBench(t, dc)
	s := pvSpec()
	pv := s.PersistentVolume
	pv.Spec.MountOptions, pv.Spec.CSI.FSType, pv.Spec.CSI.VolumeAttributes = []string{"noatime"}, "xfs", map[string]string{"disk": "directory"}
	pv.Annotations = map[string]string{"volume.kubernetes.io/controller-modify-secret-name": "modify", "volume.kubernetes.io/controller-modify-secret-namespace": "safe"}
	pv.Spec.CSI.ControllerPublishSecretRef = &v1.SecretReference{Namespace: "safe", Name: "attach"}
	pv.Spec.CSI.ControllerExpandSecretRef = &v1.SecretReference{Namespace: "safe", Name: "grow"}
	for _, name := range []string{"modify", "attach", "grow"} {
		b.host.Add(&v1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "safe", Name: name}, Data: map[string][]byte{"for": []byte(name)}})
	}
	capability := &spec.VolumeCapability{AccessMode: &spec.VolumeCapability_AccessMode{Mode: spec.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
		AccessType: &spec.VolumeCapability_Mount{Mount: &spec.VolumeCapability_MountVolume{FsType: "xfs", MountFlags: []string{"noatime"}}}}
	secret := func(name string) map[string]string { return map[string]string{"for": name} }
	want := []proto.Message{
		&spec.ControllerPublishVolumeRequest{VolumeId: "h1", NodeId: "node1", VolumeCapability: capability, Secrets: secret("attach"), VolumeContext: pv.Spec.CSI.VolumeAttributes},
		&spec.ControllerUnpublishVolumeRequest{VolumeId: "h1", NodeId: "node1", Secrets: secret("attach")},
		&spec.ControllerExpandVolumeRequest{VolumeId: "h1", CapacityRange: &spec.CapacityRange{RequiredBytes: 1 << 30}, Secrets: secret("grow"), VolumeCapability: capability},
		&spec.ControllerModifyVolumeRequest{VolumeId: "h1", Secrets: secret("modify"), MutableParameters: fastClass().Parameters},
	}
	for i, change := range changes() {
		b.must(change.do(t.Context(), b.plugin, s))
		if diff := cmp.Diff(want[i], lastRequest[proto.Message](b, change.method), protocmp.Transform()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", change.method, diff)
		}
	}
}

// What cannot be is refused before the call.
func TestChangesRefuse(t *testing.T) {
	attachTo, expand, modify := changes()[0], changes()[2], changes()[3]
	for name, tc := range map[string]struct {
		change  change
		prepare func(*csitest.Config)
		spec    func(*v1.PersistentVolume)
		do      func(context.Context, *controller.Plugin, *volume.Spec) error
		want    string
	}{
		"attaching to another node": {change: attachTo, want: `"node2" is not this node`, do: func(ctx context.Context, p *controller.Plugin, s *volume.Spec) error {
			_, err := p.AttachSpec(ctx, s, "node2")
			return err
		}},
		"an attach secret that is missing": {change: attachTo, want: "safe/none", spec: func(pv *v1.PersistentVolume) {
			pv.Spec.CSI.ControllerPublishSecretRef = &v1.SecretReference{Namespace: "safe", Name: "none"}
		}},
		"an unknown access mode": {change: attachTo, want: "Often", spec: func(pv *v1.PersistentVolume) {
			pv.Spec.AccessModes = []v1.PersistentVolumeAccessMode{"Often"}
		}},
		"no such driver": {change: attachTo, want: "other.io", spec: func(pv *v1.PersistentVolume) { pv.Spec.CSI.Driver = "other.io" }},
		"shrinking": {change: expand, want: "do not shrink", spec: func(pv *v1.PersistentVolume) {
			pv.Spec.Capacity = v1.ResourceList{v1.ResourceStorage: resource.MustParse("2Gi")}
		}},
		"a grow secret that is missing": {change: expand, want: "safe/none", spec: func(pv *v1.PersistentVolume) {
			pv.Spec.CSI.ControllerExpandSecretRef = &v1.SecretReference{Namespace: "safe", Name: "none"}
		}},
		"a driver that grows nothing":   {change: expand, want: "EXPAND_VOLUME", prepare: func(c *csitest.Config) { c.Capabilities.Expand = false }},
		"a driver that changes nothing": {change: modify, want: "MODIFY_VOLUME", prepare: func(c *csitest.Config) { c.Capabilities.Modify = false }},
		"another driver's class": {change: modify, want: "a class of the driver", do: func(ctx context.Context, p *controller.Plugin, s *volume.Spec) error {
			class := fastClass()
			class.DriverName = "other.io"
			return p.Modify(ctx, s, class)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			dc, s, do := attaching(), pvSpec(), tc.change.do
			if tc.prepare != nil {
				tc.prepare(&dc)
			}
			if tc.spec != nil {
				tc.spec(s.PersistentVolume)
			}
			if tc.do != nil {
				do = tc.do
			}
			b := newBench(t, dc)
			err := do(t.Context(), b.plugin, s)
			if err == nil || volume.IsUncertain(err) || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%v (uncertain: %v), want %q", err, volume.IsUncertain(err), tc.want)
			}
			if calls := b.driver.CallsOf(tc.change.method); len(calls) > 0 {
				t.Errorf("calls %v", calls)
			}
		})
	}
	for _, change := range changes() {
		b := newBench(t, attaching())
		if err := change.do(t.Context(), b.plugin, inlineSpec()); !isInvalid(err) {
			t.Errorf("%s of an inline volume: %v", change.method, err)
		}
	}
}

// A driver without the call attaches nothing, whatever secrets there should be.
func TestDriverThatAttachesNothing(t *testing.T) {
	b := newBench(t, everything())
	s := pvSpec()
	s.PersistentVolume.Spec.CSI.ControllerPublishSecretRef = &v1.SecretReference{Namespace: "safe", Name: "none"}
	a, err := b.plugin.AttachSpec(t.Context(), s, fakehost.NodeName)
	b.must(errors.Join(err, b.plugin.DetachSpec(t.Context(), s, fakehost.NodeName)))
	if a.Metadata != nil || len(b.driver.CallsOf("ControllerPublishVolume", "ControllerUnpublishVolume")) > 0 {
		t.Errorf("%v, calls %v", a, b.driver.Calls())
	}
}

// Nothing is detached while the node has something of it. What a crash leaves of a vol_data.json
// that was never written is nothing of the volume.
func TestStagedVolumeIsNotDetached(t *testing.T) {
	b := newBench(t, attaching())
	b.must(attach(t.Context(), b.plugin, pvSpec()))
	dir := filepath.Join(b.host.RootDir, "plugins/kubernetes.io/csi", driverName, sha256Hex("h1"))
	staged, torn := filepath.Join(dir, "globalmount"), filepath.Join(dir, "vol_data.json")
	b.must(os.MkdirAll(dir, 0o750))
	b.must(os.WriteFile(filepath.Join(dir, ".durable-HALF.tmp"), []byte(`{"volumeHa`), 0o600))
	for _, trace := range []string{staged, torn} {
		if trace == staged {
			b.must(os.Mkdir(trace, 0o750))
		} else {
			b.must(os.WriteFile(trace, nil, 0o600))
		}
		if err := b.plugin.DetachSpec(t.Context(), pvSpec(), fakehost.NodeName); !errors.Is(err, volume.ErrInUse) || volume.IsUncertain(err) || !strings.Contains(err.Error(), trace) {
			t.Errorf("%v", err)
		}
		if len(b.driver.Attached()) != 1 {
			t.Error("it is detached")
		}
		b.must(os.Remove(trace))
	}
	b.must(b.plugin.DetachSpec(t.Context(), pvSpec(), fakehost.NodeName))
	if len(b.driver.Attached()) != 0 {
		t.Error("it is still attached")
	}
}

// Nor is it where a kubelet of before 1.24 has staged it, and where it cannot be told which
// volume is staged.
func TestVolumeThatMayBeStagedIsNotDetached(t *testing.T) {
	const own, other = `{"driverName":"` + driverName + `","volumeHandle":"h1"}`, `{"driverName":"` + driverName + `","volumeHandle":"h2"}`
	for _, test := range []struct {
		where, data string
		stays       bool
	}{
		{"pv/pv1", own, true},
		{"pv/pv1", other, false},
		{"pv/pv1", "", true},
		{"volumeDevices/pv1/data", own, true},
		{"volumeDevices/pv1/data", other, false},
		{"volumeDevices/pv1/data", own[:20], true},
	} {
		b := newBench(t, attaching())
		b.must(attach(t.Context(), b.plugin, pvSpec()))
		dir := filepath.Join(b.host.RootDir, "plugins/kubernetes.io/csi", test.where)
		b.must(errors.Join(os.MkdirAll(dir, 0o750), os.WriteFile(filepath.Join(dir, "vol_data.json"), []byte(test.data), 0o600)))
		err := b.plugin.DetachSpec(t.Context(), pvSpec(), fakehost.NodeName)
		if errors.Is(err, volume.ErrInUse) != test.stays || !test.stays && err != nil || (len(b.driver.Attached()) == 1) != test.stays {
			t.Errorf("%s with %q: %v, attached: %v", test.where, test.data, err, b.driver.Attached())
		}
	}
}

// The codes of growth are those of the node's: what can never be, and what must wait.
func TestCodesOfGrowth(t *testing.T) {
	b := newBench(t, attaching())
	grow := changes()[2].do
	for code := codes.Canceled; code <= codes.Unauthenticated; code++ {
		remove := b.driver.Inject(csitest.Fault{Match: csitest.Method("ControllerExpandVolume"), Err: status.Error(code, "not now")})
		err := grow(t.Context(), b.plugin, pvSpec())
		remove()
		infeasible := slices.Contains([]codes.Code{codes.InvalidArgument, codes.OutOfRange, codes.NotFound}, code)
		if errors.Is(err, volume.ErrResizeInfeasible) != infeasible || errors.Is(err, volume.ErrResizeInUse) != (code == codes.FailedPrecondition) || status.Code(err) != code {
			t.Errorf("%v: %v", code, err)
		}
	}
}

// A limit of the node is told by its code, which a VolumeAttachment's attachError has.
func TestNodeIsFull(t *testing.T) {
	dc := attaching()
	dc.MaxVolumesPerNode = 1
	b := newBench(t, dc)
	b.must(attach(t.Context(), b.plugin, pvSpec()))
	other := pvSpec()
	other.PersistentVolume.Spec.CSI.VolumeHandle = "h2"
	if err := attach(t.Context(), b.plugin, other); status.Code(err) != codes.ResourceExhausted || !errors.Is(err, volume.ErrAttachLimitExceeded) || !volume.IsUncertain(err) || len(b.driver.Attached()) != 1 {
		t.Errorf("%v, attached %v", err, b.driver.Attached())
	}
}
