package controller_test

import (
	"errors"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	spec "github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/util/testenv/pvbuild"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/plugins/csi/controller"
	"github.com/podvol/podvol/volume/volumetest/csitest"
)

// options are those of a claim "data" in namespace "ops".
func options(parameters map[string]string, change ...func(*volume.VolumeOptions)) volume.VolumeOptions {
	o := volume.VolumeOptions{PVName: "pvc-1", PVC: pvbuild.NewClaim("data", "1Gi"), Provisioner: driverName, Parameters: parameters, PersistentVolumeReclaimPolicy: v1.PersistentVolumeReclaimDelete}
	for _, c := range change {
		c(&o)
	}
	return o
}

func (b *bench) provision(o volume.VolumeOptions, node *v1.Node, allowed ...v1.TopologySelectorTerm) (*v1.PersistentVolume, error) {
	b.t.Helper()
	m, err := b.plugin.NewProvisioner(o)
	if err != nil {
		return nil, err
	}
	return m.Provision(b.t.Context(), node, allowed)
}

func secretNames(use string) map[string]string {
	return map[string]string{"csi.storage.k8s.io/" + use + "-secret-name": use, "csi.storage.k8s.io/" + use + "-secret-namespace": "safe"}
}

// One manifest with the claim's UID may be declared on two machines, and below two root
// directories of one. Whoever deletes the claim deletes the data of that place only.
func TestTheSameClaimAtTwoPlaces(t *testing.T) {
	b := newBench(t, everything())
	for name, host := range map[string]*volume.Host{
		"another machine":        {RootDir: b.host.RootDir, NodeName: "node2", Mounter: fakemount.New()},
		"another root directory": {RootDir: t.TempDir(), NodeName: b.host.NodeName, Mounter: fakemount.New()},
	} {
		t.Run(name, func(t *testing.T) { b.wantOtherVolume(t, host) })
	}
}

func (b *bench) wantOtherVolume(t *testing.T, host *volume.Host) {
	other, err := controller.New(controller.Config{Drivers: map[string]string{driverName: b.socket}})
	b.must(err)
	t.Cleanup(func() { other.Close() })
	b.must(other.Init(host))
	o := options(map[string]string{"disk": "directory"})
	here, err := b.provision(o, nil)
	b.must(err)
	m, err := other.NewProvisioner(o)
	b.must(err)
	there, err := m.Provision(t.Context(), nil, nil)
	b.must(err)
	again, err := b.provision(o, nil)
	b.must(err)
	if a, b, c := here.Spec.CSI.VolumeHandle, there.Spec.CSI.VolumeHandle, again.Spec.CSI.VolumeHandle; a == b || a != c {
		t.Errorf("the first place has %s and, once more, %s, the other one %s", a, c, b)
	}
}

// The request has all that claim and class say, and the PersistentVolume what
// external-provisioner writes.
func TestProvision(t *testing.T) {
	dc := everything()
	dc.Topology = map[string]string{"zone": "a", "rack": "7"}
	b := newBench(t, dc)
	parameters := map[string]string{"disk": "directory", "csi.storage.k8s.io/fstype": "xfs"}
	for _, use := range []string{"provisioner", "controller-publish", "node-stage", "node-publish", "controller-expand", "node-expand", "controller-modify"} {
		maps.Copy(parameters, secretNames(use))
	}
	b.host.Add(&v1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "safe", Name: "provisioner"}, Data: map[string][]byte{"user": []byte("admin")}})
	o := options(parameters, func(o *volume.VolumeOptions) {
		o.MountOptions = []string{"noatime"}
		o.PVC.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce, v1.ReadOnlyMany}
	})
	pv, err := b.provision(o, nil)
	b.must(err)
	mount := func(mode spec.VolumeCapability_AccessMode_Mode) *spec.VolumeCapability {
		return &spec.VolumeCapability{AccessMode: &spec.VolumeCapability_AccessMode{Mode: mode},
			AccessType: &spec.VolumeCapability_Mount{Mount: &spec.VolumeCapability_MountVolume{FsType: "xfs", MountFlags: []string{"noatime"}}}}
	}
	here := []*spec.Topology{{Segments: dc.Topology}}
	want := &spec.CreateVolumeRequest{
		Name: "pvc-1-" + sha256Hex("node1\x00" + filepath.Join(b.host.RootDir, "plugins/kubernetes.io/csi"))[:8], Parameters: map[string]string{"disk": "directory"}, Secrets: map[string]string{"user": "admin"}, CapacityRange: &spec.CapacityRange{RequiredBytes: 1 << 30},
		VolumeCapabilities:        []*spec.VolumeCapability{mount(spec.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER), mount(spec.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY)},
		AccessibilityRequirements: &spec.TopologyRequirement{Requisite: here, Preferred: here},
	}
	if diff := cmp.Diff(want, lastRequest[*spec.CreateVolumeRequest](b, "CreateVolume"), protocmp.Transform()); diff != "" {
		t.Errorf("the request (-want +got):\n%s", diff)
	}
	ref := func(name string) *v1.SecretReference { return &v1.SecretReference{Namespace: "safe", Name: name} }
	wantSource := &v1.CSIPersistentVolumeSource{
		Driver: driverName, VolumeHandle: pv.Spec.CSI.VolumeHandle, FSType: "xfs",
		VolumeAttributes:           map[string]string{"disk": "directory", "storage.kubernetes.io/csiProvisionerIdentity": "podvol-node1-" + driverName},
		ControllerPublishSecretRef: ref("controller-publish"), NodeStageSecretRef: ref("node-stage"), NodePublishSecretRef: ref("node-publish"),
		ControllerExpandSecretRef: ref("controller-expand"), NodeExpandSecretRef: ref("node-expand"),
	}
	if diff := cmp.Diff(wantSource, pv.Spec.CSI); diff != "" {
		t.Errorf("the source (-want +got):\n%s", diff)
	}
	wantAnnotations := map[string]string{"pv.kubernetes.io/provisioned-by": driverName,
		"volume.kubernetes.io/provisioner-deletion-secret-name": "provisioner", "volume.kubernetes.io/provisioner-deletion-secret-namespace": "safe",
		"volume.kubernetes.io/controller-modify-secret-name": "controller-modify", "volume.kubernetes.io/controller-modify-secret-namespace": "safe"}
	wantAffinity := &v1.VolumeNodeAffinity{Required: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{MatchExpressions: []v1.NodeSelectorRequirement{
		{Key: "rack", Operator: v1.NodeSelectorOpIn, Values: []string{"7"}}, {Key: "zone", Operator: v1.NodeSelectorOpIn, Values: []string{"a"}}}},
		{MatchExpressions: []v1.NodeSelectorRequirement{{Key: v1.LabelHostname, Operator: v1.NodeSelectorOpIn, Values: []string{"node1"}}}}}}}
	if diff := cmp.Diff(wantAnnotations, pv.Annotations) + cmp.Diff(wantAffinity, pv.Spec.NodeAffinity); diff != "" {
		t.Errorf("the PersistentVolume (-want +got):\n%s", diff)
	}
	if size := pv.Spec.Capacity[v1.ResourceStorage]; size.Value() != 1<<30 || *pv.Spec.VolumeMode != v1.PersistentVolumeFilesystem || !slices.Equal(pv.Spec.AccessModes, o.PVC.Spec.AccessModes) ||
		!slices.Equal(pv.Spec.MountOptions, o.MountOptions) {
		t.Errorf("the PersistentVolume is %+v", pv.Spec)
	}
	again, err := b.provision(o, nil)
	b.must(err)
	if diff := cmp.Diff(pv, again); diff != "" {
		t.Errorf("another call (-first +second):\n%s", diff)
	}
}

func TestProvisionABlockVolume(t *testing.T) {
	dc := everything()
	dc.Capabilities.SingleNodeMultiWriter, dc.Disk = false, csitest.File
	b := newBench(t, dc)
	pv, err := b.provision(options(map[string]string{"fsType": "ext4"}, func(o *volume.VolumeOptions) {
		o.PVC.Spec.VolumeMode, o.PVC.Spec.AccessModes = new(v1.PersistentVolumeBlock), []v1.PersistentVolumeAccessMode{v1.ReadWriteOncePod}
	}), nil)
	b.must(err)
	r := lastRequest[*spec.CreateVolumeRequest](b, "CreateVolume")
	if len(r.VolumeCapabilities) != 1 || r.VolumeCapabilities[0].GetBlock() == nil || r.VolumeCapabilities[0].AccessMode.Mode != spec.VolumeCapability_AccessMode_SINGLE_NODE_WRITER || r.AccessibilityRequirements != nil ||
		r.Parameters["fsType"] != "ext4" { // a driver's own parameter, too
		t.Errorf("the request is %v", r)
	}
	if *pv.Spec.VolumeMode != v1.PersistentVolumeBlock || pv.Spec.CSI.FSType != "" || pv.Spec.NodeAffinity != nil {
		t.Errorf("the PersistentVolume is %+v", pv.Spec)
	}
}

// What cannot be made is refused before a call.
func TestProvisionRefuses(t *testing.T) {
	for name, tc := range map[string]struct {
		options volume.VolumeOptions
		allowed []v1.TopologySelectorTerm
		prepare func(*csitest.Config)
		want    string
	}{
		"unknown key":       {options: options(map[string]string{"csi.storage.k8s.io/colour": "red"}), want: "colour"},
		"two file systems":  {options: options(map[string]string{"csi.storage.k8s.io/fstype": "xfs", "fsType": "ext4"}), want: "both"},
		"no file system":    {options: options(map[string]string{"csi.storage.k8s.io/fstype": "../x"}), want: "no type of file systems"},
		"half a secret":     {options: options(map[string]string{"csi.storage.k8s.io/node-stage-secret-name": "a"}), want: "half"},
		"unknown template":  {options: options(map[string]string{"csi.storage.k8s.io/node-stage-secret-name": "${pvc.uid}", "csi.storage.k8s.io/node-stage-secret-namespace": "a"}), want: "no value"},
		"open template":     {options: options(map[string]string{"csi.storage.k8s.io/node-stage-secret-name": "${pv.name", "csi.storage.k8s.io/node-stage-secret-namespace": "a"}), want: "no value"},
		"claimed namespace": {options: options(map[string]string{"csi.storage.k8s.io/node-stage-secret-name": "a", "csi.storage.k8s.io/node-stage-secret-namespace": "${pvc.annotations['ns']}"}), want: "no value"},
		"no name":           {options: options(map[string]string{"csi.storage.k8s.io/node-stage-secret-name": "../a", "csi.storage.k8s.io/node-stage-secret-namespace": "a"}), want: "no name of a secret"},
		"missing secret":    {options: options(secretNames("provisioner")), want: "safe/provisioner"},
		"no driver":         {options: options(nil, func(o *volume.VolumeOptions) { o.Provisioner = "other.io" }), want: "other.io"},
		"wrong name":        {options: options(nil, func(o *volume.VolumeOptions) { o.Provisioner = "../x" }), want: "no name of a driver"},
		"selector":          {options: options(nil, func(o *volume.VolumeOptions) { o.PVC.Spec.Selector = &metav1.LabelSelector{} }), want: "selector"},
		"unknown mode":      {options: options(nil, func(o *volume.VolumeOptions) { o.PVC.Spec.AccessModes = []v1.PersistentVolumeAccessMode{"Often"} }), want: "Often"},
		"attributes": {options: options(nil, func(o *volume.VolumeOptions) { o.VolumeAttributesClass = &storagev1.VolumeAttributesClass{} }), want: "MODIFY_VOLUME",
			prepare: func(c *csitest.Config) { c.Capabilities.Modify = false }},
		"topologies of nobody": {options: options(nil), allowed: zones("a"), want: "allowedTopologies"},
		"other topologies": {options: options(nil), allowed: zones("b", "c"), want: "allowedTopologies",
			prepare: func(c *csitest.Config) { c.Topology = map[string]string{"zone": "a"} }},
		"no service": {options: options(nil), want: "CREATE_DELETE_VOLUME", prepare: func(c *csitest.Config) { c.Capabilities.Controller = false }},
	} {
		t.Run(name, func(t *testing.T) {
			dc := everything()
			if tc.prepare != nil {
				tc.prepare(&dc)
			}
			b := newBench(t, dc)
			_, err := b.provision(tc.options, nil, tc.allowed...)
			if err == nil || volume.IsUncertain(err) || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%v (uncertain: %v), want %q", err, volume.IsUncertain(err), tc.want)
			}
			if calls := b.driver.CallsOf("CreateVolume"); len(calls) > 0 {
				t.Errorf("calls %v", calls)
			}
		})
	}
}

func zones(names ...string) []v1.TopologySelectorTerm {
	return []v1.TopologySelectorTerm{{MatchLabelExpressions: []v1.TopologySelectorLabelRequirement{{Key: "zone", Values: names}}}}
}

// The codes that leave doubt are external-provisioner's.
func TestProvisionErrors(t *testing.T) {
	node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node1"}}
	doubtful := []codes.Code{codes.Canceled, codes.DeadlineExceeded, codes.ResourceExhausted, codes.Aborted, codes.Unavailable}
	for code := codes.Canceled; code <= codes.Unauthenticated; code++ {
		dc := everything()
		dc.Topology = map[string]string{"zone": "a"}
		b := newBench(t, dc)
		b.host.Add(&v1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "safe", Name: "provisioner"}, Data: map[string][]byte{"password": []byte("p4ss")}})
		b.driver.Inject(csitest.Fault{Match: csitest.Method("CreateVolume"), Err: status.Error(code, "not with p4ss")})
		for _, selected := range []*v1.Node{nil, node} {
			want := slices.Contains(doubtful, code) && (code != codes.ResourceExhausted || selected == nil)
			_, err := b.provision(options(secretNames("provisioner")), selected, zones("a", "b")...)
			if err == nil || volume.IsUncertain(err) != want || strings.Contains(err.Error(), "p4ss") {
				t.Errorf("%v, node %v: %v is uncertain: %v, want %v", code, selected != nil, err, volume.IsUncertain(err), want)
			}
		}
	}
}

// A volume that is too small is deleted again; while it cannot be, it is not forgotten.
func TestTooSmallAVolume(t *testing.T) {
	dc := everything()
	dc.Misbehaviours = []csitest.Misbehaviour{csitest.CreatesTooLittle}
	b := newBench(t, dc)
	mend := b.driver.Inject(csitest.Fault{Match: csitest.Method("DeleteVolume"), Err: status.Error(codes.Internal, "not now")})
	_, err := b.provision(options(nil), nil)
	if ids, _ := b.driver.Volumes(); !volume.IsUncertain(err) || len(ids) != 1 || !strings.Contains(err.Error(), "of 1073741824") {
		t.Errorf("%v, volumes %q", err, ids)
	}
	mend()
	_, err = b.provision(options(nil), nil)
	if ids, _ := b.driver.Volumes(); err == nil || volume.IsUncertain(err) || len(ids) > 0 {
		t.Errorf("%v (uncertain: %v), volumes %q", err, volume.IsUncertain(err), ids)
	}
}

func TestDeleteRefuses(t *testing.T) {
	b := newBench(t, everything())
	c := b.plugin
	made, err := b.provision(options(nil), nil)
	b.must(err)
	for name, tc := range map[string]struct {
		change func(*v1.PersistentVolume)
		want   string
	}{
		"not made for a claim": {func(pv *v1.PersistentVolume) { pv.Annotations = nil }, "provisioned-by"},
		"by another driver":    {func(pv *v1.PersistentVolume) { pv.Annotations["pv.kubernetes.io/provisioned-by"] = "other.io" }, "provisioned-by"},
		"of a cluster's provisioner": {func(pv *v1.PersistentVolume) {
			pv.Spec.CSI.VolumeAttributes["storage.kubernetes.io/csiProvisionerIdentity"] = "1700000000000-1234-" + driverName
		}, "csiProvisionerIdentity"},
		"exported from another machine": {func(pv *v1.PersistentVolume) {
			pv.Spec.CSI.VolumeAttributes["storage.kubernetes.io/csiProvisionerIdentity"] = "podvol-node2-" + driverName
		}, "csiProvisionerIdentity"},
		"of no provisioner": {func(pv *v1.PersistentVolume) {
			delete(pv.Spec.CSI.VolumeAttributes, "storage.kubernetes.io/csiProvisionerIdentity")
		}, "csiProvisionerIdentity"},
		"to be kept": {func(pv *v1.PersistentVolume) {
			pv.Spec.PersistentVolumeReclaimPolicy = v1.PersistentVolumeReclaimRetain
		}, "Retain"},
		"no handle": {func(pv *v1.PersistentVolume) { pv.Spec.CSI.VolumeHandle = "" }, "volumeHandle"},
	} {
		pv := made.DeepCopy()
		tc.change(pv)
		if _, err := c.NewDeleter(volume.NewSpecFromPersistentVolume(pv, false)); !isInvalid(err) || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", name, err, tc.want)
		}
	}
	if _, err := c.NewDeleter(inlineSpec()); err == nil {
		t.Error("an inline volume is deleted")
	}
	d, err := c.NewDeleter(volume.NewSpecFromPersistentVolume(made, false))
	b.must(err)
	b.host.Releases = nil
	if err := d.Delete(t.Context()); !isMissingRole(err) {
		t.Errorf("without a verifier: %v", err)
	}
}

func isInvalid(err error) bool {
	_, invalid := errors.AsType[*volume.InvalidSpecError](err)
	return invalid
}

func isMissingRole(err error) bool {
	_, missing := errors.AsType[*volume.MissingRoleError](err)
	return missing
}

// The plugin of claims mounts nothing.
func TestControllerMountsNothing(t *testing.T) {
	b := newBench(t, everything())
	c := b.plugin
	_, mountErr := c.NewMounter(pvSpec(), &v1.Pod{})
	_, unmountErr := c.NewUnmounter("pv1", "u1")
	_, rebuildErr := c.ConstructVolumeSpec(t.Context(), "pv1", "")
	for _, err := range []error{mountErr, unmountErr, rebuildErr} {
		if err == nil || volume.IsUncertain(err) {
			t.Errorf("%v", err)
		}
	}
	if name, err := c.GetVolumeName(pvSpec()); name != driverName+"^h1" || err != nil { // the node's
		t.Errorf("the volume is %q, %v", name, err)
	}
	if calls := b.driver.Calls(); len(calls) > 0 {
		t.Errorf("calls %v", calls)
	}
}
