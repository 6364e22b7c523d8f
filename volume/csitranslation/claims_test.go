package csitranslation_test

import (
	"context"
	"errors"
	"maps"
	"path/filepath"
	"strings"
	"testing"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/util/testenv/pvbuild"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/csitranslation"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/persistentvolume/embedded"
	"github.com/podvol/podvol/volume/plugins/csi/controller"
	"github.com/podvol/podvol/volume/volumetest/csitest"
)

const (
	ebsDriver = "ebs.csi.aws.com"
	ebsPlugin = "kubernetes.io/aws-ebs"
)

// machine has claims of its own, without a cluster, and a driver that has the name of EBS'.
type machine struct {
	t       *testing.T
	root    string
	driver  *csitest.Driver
	socket  string
	cluster *embedded.Cluster
	close   func()
}

func newMachine(t *testing.T, change ...func(*csitest.Config)) *machine {
	t.Helper()
	m := &machine{t: t, root: t.TempDir(), socket: filepath.Join(csitest.SocketDir(t), "s")}
	config := csitest.Config{Name: ebsDriver, Dir: t.TempDir(), Mounter: fakemount.New(), Capabilities: csitest.AllCapabilities()}
	for _, f := range change {
		f(&config)
	}
	m.driver = csitest.New(config)
	t.Cleanup(func() {
		m.close()
		if err := m.driver.Close(); err != nil {
			t.Error(err)
		}
		if broken := m.driver.Violations(); len(broken) > 0 {
			t.Errorf("rules of the specification were broken: %q", broken)
		}
	})
	m.must(m.driver.Start(m.socket))
	m.open()
	return m
}

func (m *machine) must(errs ...error) {
	m.t.Helper()
	if err := errors.Join(errs...); err != nil {
		m.t.Fatal(err)
	}
}

func (m *machine) open() {
	m.t.Helper()
	drivers, err := controller.New(controller.Config{Drivers: map[string]string{ebsDriver: m.socket}})
	m.must(err)
	plugin := csitranslation.NewClaims(drivers, csitranslation.New())
	m.cluster, err = embedded.Open(m.t.Context(), embedded.Config{Dir: filepath.Join(m.root, "claims"), NodeName: "node1",
		Plugins: []volume.VolumePlugin{plugin}, Host: volume.Host{RootDir: m.root, Mounter: fakemount.New()}})
	m.must(err)
	m.must(m.cluster.Apply(m.t.Context(), &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "old"}, Provisioner: ebsPlugin, AllowVolumeExpansion: new(true),
		Parameters: map[string]string{"type": "gp2", "fsType": "xfs"}}))
	ctx, kill := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- m.cluster.Run(ctx) }()
	m.close = func() {
		kill()
		m.must(<-ended, m.cluster.Close(), drivers.Close())
		m.close = func() {}
	}
	m.cluster.PodsComplete()
}

func (m *machine) idle() {
	m.t.Helper()
	m.must(m.cluster.Idle(m.t.Context()))
}

func (m *machine) claim() *v1.PersistentVolumeClaim {
	m.t.Helper()
	c, err := objects.Get[*v1.PersistentVolumeClaim](m.t.Context(), m.cluster.Objects(), pvbuild.ClaimRef("data"))
	m.must(err)
	return c
}

// A claim of a class of an in-tree plugin gets a volume of the driver, which has the in-tree
// source for everybody who looks; it grows, and is deleted, by the driver.
func TestClaimOfAnInTreeClass(t *testing.T) {
	m := newMachine(t)
	m.must(m.cluster.Apply(t.Context(), pvbuild.NewClaim("data", "1Gi", pvbuild.OfClass("old"))))
	m.idle()
	claim := m.claim()
	if claim.Status.Phase != v1.ClaimBound || claim.Annotations["volume.kubernetes.io/storage-provisioner"] != ebsDriver {
		t.Fatalf("the claim is %+v; %v", claim, m.cluster.Explain(t.Context(), pvbuild.ClaimRef("data").NamespacedName))
	}
	pv := pvbuild.GetPV(t, m.cluster.Objects(), claim.Spec.VolumeName)
	ids, err := m.driver.Volumes()
	if s := pv.Spec.AWSElasticBlockStore; err != nil || s == nil || pv.Spec.CSI != nil || len(ids) != 1 || s.VolumeID != ids[0] || s.FSType != "xfs" ||
		pv.Annotations["pv.kubernetes.io/provisioned-by"] != ebsPlugin || pv.Annotations["pv.kubernetes.io/migrated-to"] != ebsDriver {
		t.Fatalf("the volume is %+v, the driver has %q, %v", pv, ids, err)
	}
	request := m.driver.CallsOf("CreateVolume")[0].Request.(*spec.CreateVolumeRequest)
	if !maps.Equal(request.Parameters, map[string]string{"type": "gp2"}) || request.VolumeCapabilities[0].GetMount().GetFsType() != "xfs" {
		t.Errorf("the driver was asked for %v", request)
	}

	m.close()
	m.open()
	larger := m.claim().DeepCopy()
	larger.Spec.Resources.Requests[v1.ResourceStorage] = resource.MustParse("2Gi")
	_, err = m.cluster.Objects().Update(t.Context(), larger)
	m.must(err)
	m.idle()
	pv = pvbuild.GetPV(t, m.cluster.Objects(), pv.Name)
	if calls := m.driver.CallsOf("ControllerExpandVolume"); len(calls) == 0 || calls[0].Volume != ids[0] || pv.Spec.Capacity.Storage().String() != "2Gi" || pv.Spec.AWSElasticBlockStore == nil {
		t.Errorf("it has grown to %+v by %v; %v", pv.Spec, calls, m.cluster.Explain(t.Context(), pvbuild.ClaimRef("data").NamespacedName))
	}

	m.must(m.cluster.Delete(t.Context(), pvbuild.ClaimRef("data")))
	m.idle()
	left, err := objects.List[*v1.PersistentVolume](t.Context(), m.cluster.Objects(), "PersistentVolume", "")
	if ids, _ := m.driver.Volumes(); err != nil || len(left) > 0 || len(ids) > 0 {
		t.Errorf("left are %v and %q, %v", left, ids, err)
	}
}

// Data of a disk that nobody had made here, or that another volume shows, stays.
func TestInTreeDiskOfSomebodyElseIsNotDeleted(t *testing.T) {
	m := newMachine(t)
	m.must(m.cluster.Apply(t.Context(), pvbuild.NewClaim("data", "1Gi", pvbuild.OfClass("old"))))
	m.idle()
	made := pvbuild.GetPV(t, m.cluster.Objects(), m.claim().Spec.VolumeName)
	same := pvbuild.NewPV("same", "1Gi")
	same.Spec.PersistentVolumeSource = v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{Driver: ebsDriver, VolumeHandle: made.Spec.AWSElasticBlockStore.VolumeID}}
	other := pvbuild.NewClaim("other", "1Gi", pvbuild.Naming("same"))
	m.must(m.cluster.Apply(t.Context(), same, other))
	m.idle()
	m.must(m.cluster.Delete(t.Context(), pvbuild.ClaimRef("data")))
	m.idle()
	if calls := m.driver.CallsOf("DeleteVolume"); len(calls) > 0 {
		t.Errorf("a disk that a claim has is deleted: %v", calls)
	}

	drivers, err := controller.New(controller.Config{Drivers: map[string]string{ebsDriver: m.socket}})
	m.must(err)
	t.Cleanup(func() { drivers.Close() })
	plugin := csitranslation.NewClaims(drivers, csitranslation.New())
	m.must(plugin.Init(&volume.Host{RootDir: t.TempDir(), NodeName: "node1"}))
	foreign := made.DeepCopy()
	delete(foreign.Annotations, "storage.kubernetes.io/csiProvisionerIdentity")
	for name, pv := range map[string]*v1.PersistentVolume{"no annotation": foreign, "by hand": persistent(v1.PersistentVolumeSource{AWSElasticBlockStore: &v1.AWSElasticBlockStoreVolumeSource{VolumeID: "vol-1"}}).PersistentVolume} {
		if _, err := plugin.NewDeleter(volume.NewSpecFromPersistentVolume(pv, false)); err == nil {
			t.Errorf("%s: it would be deleted", name)
		}
	}
	if _, err := plugin.NewDeleter(volume.NewSpecFromPersistentVolume(made, false)); err != nil {
		t.Errorf("its own would not: %v", err)
	}
}

// A volume that has no in-tree source is deleted again, if nobody has it: no claim would ever get
// it. The error is a sentence.
func TestAVolumeThatCannotBeTranslatedBackIsDeletedAgain(t *testing.T) {
	m := newMachine(t, func(c *csitest.Config) { c.Topology = map[string]string{"topology.ebs.csi.aws.com/zone": "nowhere"} })
	for _, used := range []error{nil, volume.ErrInUse} { // the last one stays
		deletes := used == nil
		drivers, err := controller.New(controller.Config{Drivers: map[string]string{ebsDriver: m.socket}})
		m.must(err)
		t.Cleanup(func() { drivers.Close() })
		plugin := csitranslation.NewClaims(drivers, csitranslation.New())
		m.must(plugin.Init(&volume.Host{RootDir: t.TempDir(), NodeName: "node1", Mounter: fakemount.New(), Releases: verifier{used}}))
		p, err := plugin.NewProvisioner(volume.VolumeOptions{PVName: "pvc-1", PVC: pvbuild.NewClaim("data", "1Gi"), Provisioner: ebsPlugin, PersistentVolumeReclaimPolicy: v1.PersistentVolumeReclaimDelete})
		m.must(err)
		pv, err := p.Provision(t.Context(), nil, nil)
		ids, unread := m.driver.Volumes()
		if err == nil || unread != nil || deletes != (len(ids) == 0) || deletes == volume.IsUncertain(err) || deletes == strings.Contains(err.Error(), "not deleted again") {
			t.Fatalf("used: %v; made is %+v, %v; the driver has %q, %v", used, pv, err, ids, unread)
		}
		if text := err.Error(); !strings.Contains(text, ebsDriver) || !strings.Contains(text, "cannot be translated back") || !strings.Contains(text, "nowhere") || len(text) > 600 {
			t.Errorf("the error is %q", text)
		}
	}
}

// verifier says of all volumes whether they are used.
type verifier struct{ used error }

func (v verifier) VerifyReleased(context.Context, *v1.PersistentVolume) error { return v.used }
func (v verifier) VerifyUnused(context.Context, *v1.PersistentVolume) error   { return v.used }
