package csitranslation_test

import (
	"context"
	"errors"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/csitranslation"
	"github.com/podvol/podvol/volume/fakehost"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/plugins/csi"
	"github.com/podvol/podvol/volume/volumemanager"
	"github.com/podvol/podvol/volume/volumetest/csitest"
)

const (
	gceDriver    = "pd.csi.storage.gke.io"
	inlineHandle = "projects/UNSPECIFIED/zones/UNSPECIFIED/disks/disk"
	claimHandle  = "projects/UNSPECIFIED/zones/us-east1-b/disks/other"
)

// node is a node with the CSI plugin, and a driver that has the name of GCE PD's.
type node struct {
	t       *testing.T
	host    *fakehost.Host
	driver  *csitest.Driver
	socket  string
	objects []metav1.Object
	config  volumemanager.Config

	mu       sync.Mutex
	migrated map[string]bool // by the calls' names, whether any was for a translated volume
}

func newNode(t *testing.T) *node {
	t.Helper()
	n := &node{t: t, host: fakehost.New(t), migrated: make(map[string]bool), socket: filepath.Join(csitest.SocketDir(t), "csi.sock")}
	n.driver = csitest.New(csitest.Config{Name: gceDriver, Dir: t.TempDir(), Mounter: n.host.GetMounter(), CreateOnUse: true, Capabilities: csitest.AllCapabilities()})
	t.Cleanup(func() {
		if err := n.driver.Close(); err != nil {
			t.Error(err)
		}
		if broken := n.driver.Violations(); len(broken) > 0 {
			t.Errorf("rules of the specification were broken: %q", broken)
		}
	})
	n.must(n.driver.Start(n.socket))
	pv := persistent(v1.PersistentVolumeSource{GCEPersistentDisk: &v1.GCEPersistentDiskVolumeSource{PDName: "other", FSType: "ext4"}}, labelled(v1.LabelTopologyZone, "us-east1-b")).PersistentVolume
	pv.UID, pv.Spec.ClaimRef.UID, pv.Status.Phase = "pv-uid", "claim-uid", v1.VolumeBound
	claim := &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "data", UID: "claim-uid"}}
	claim.Spec.VolumeName, claim.Status.Phase = "pv1", v1.ClaimBound
	n.objects = []metav1.Object{pv, claim}
	return n
}

func (n *node) must(errs ...error) {
	n.t.Helper()
	for _, err := range errs {
		if err != nil {
			n.t.Fatal(err)
		}
	}
}

// start runs a manager, as a new process does; nil: without a translator.
func (n *node) start(translator volume.Translator) (m *volumemanager.Manager, stop func()) {
	n.t.Helper()
	plugin, err := csi.New(csi.Config{Drivers: map[string]string{gceDriver: n.socket}})
	n.must(err)
	plugin.Subscribe(func(o csi.Operation) {
		n.mu.Lock()
		defer n.mu.Unlock()
		method := path.Base(o.Method)
		n.migrated[method] = n.migrated[method] || o.Migrated
	})
	store := objects.NewStore()
	n.must(store.Load(n.t.Context(), 0, n.objects...))
	config := n.config
	config.RootDir, config.NodeName, config.Objects, config.Plugins, config.Mounter, config.Translator = n.host.RootDir, "node1", store, []volume.VolumePlugin{plugin}, n.host.GetMounter(), translator
	m, err = volumemanager.New(config)
	n.must(err)
	ctx, cancel := context.WithCancel(n.t.Context())
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx) }()
	n.must(m.WaitForRecovery(ctx))
	return m, func() {
		cancel()
		n.must(<-done, plugin.Close())
	}
}

// calls are the driver's calls of a kind, by their volumes.
func (n *node) calls(method string) (volumes []string) {
	for _, c := range n.driver.CallsOf(method) {
		volumes = append(volumes, c.Volume)
	}
	slices.Sort(volumes)
	return volumes
}

func (n *node) wantCalls(method string, want ...string) {
	n.t.Helper()
	if got := n.calls(method); !slices.Equal(got, want) {
		n.t.Errorf("%s was called for %q, want %q", method, got, want)
	}
}

func podWith(volumes ...v1.Volume) *v1.Pod {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "u1"}, Spec: v1.PodSpec{Volumes: volumes, Containers: []v1.Container{{Name: "c"}}}}
	for _, v := range volumes {
		p.Spec.Containers[0].VolumeMounts = append(p.Spec.Containers[0].VolumeMounts, v1.VolumeMount{Name: v.Name, MountPath: "/" + v.Name})
	}
	return p
}

func disk(name, pdName string) v1.Volume {
	return v1.Volume{Name: name, VolumeSource: v1.VolumeSource{GCEPersistentDisk: &v1.GCEPersistentDiskVolumeSource{PDName: pdName, FSType: "ext4"}}}
}

func claimed() v1.Volume {
	return v1.Volume{Name: "claimed", VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}}
}

// A pod's gcePersistentDisk, inline and of a claim, is the driver's volume, and so it is for the
// processes that come after, with a translator or without.
func TestNodeMountsInTreeVolumesThroughTheirDriver(t *testing.T) {
	n := newNode(t)
	translator := csitranslation.New()
	m, stop := n.start(translator)
	pod := podWith(disk("scratch", "disk"), claimed())
	mounted, err := m.SetUpPod(t.Context(), pod)
	n.must(err)
	for name, want := range map[string]string{"scratch": gceDriver + "-disk", "claimed": "pv1"} {
		path, ok := mounted.Path(name)
		if want := filepath.Join(n.host.RootDir, "pods/u1/volumes/kubernetes.io~csi", want, "mount"); !ok || path != want {
			t.Errorf("%s is at %q, want %q", name, path, want)
		}
	}
	for _, row := range m.Explain() {
		pv, source := "", gceDriver+":"+inlineHandle
		if row.Volume == "claimed" {
			pv, source = "pv1", gceDriver+":"+claimHandle
		}
		if row.Plugin != "kubernetes.io/csi" || row.PersistentVolume != pv || row.Source != source {
			t.Errorf("row %+v", row)
		}
	}
	for _, name := range []string{"scratch", "claimed"} {
		if metrics, err := m.Metrics(t.Context(), pod.UID, name); err != nil || metrics.Capacity == nil {
			t.Errorf("metrics of %s: %+v, %v", name, metrics, err)
		}
	}
	n.wantCalls("NodeStageVolume", inlineHandle, claimHandle)
	stop()

	m, stop = n.start(translator)
	_, err = m.SetUpPod(t.Context(), pod)
	n.must(err)
	n.wantCalls("NodePublishVolume", inlineHandle, claimHandle)
	stop()

	m, stop = n.start(nil)
	n.must(m.TearDownPod(t.Context(), pod.UID))
	n.wantCalls("NodeUnpublishVolume", inlineHandle, claimHandle)
	n.wantCalls("NodeUnstageVolume", inlineHandle, claimHandle)
	stop()
	n.mu.Lock()
	defer n.mu.Unlock()
	for method, want := range map[string]bool{"NodeStageVolume": true, "NodePublishVolume": true, "NodeUnpublishVolume": false} {
		if got, was := n.migrated[method]; got != want || !was {
			t.Errorf("%s was told as migrated %v (%v)", method, got, was)
		}
	}
}

// cluster has roles for a driver that attaches.
type cluster struct{}

func (cluster) GetCSIDriver(context.Context, string) (*storagev1.CSIDriver, error) {
	return &storagev1.CSIDriver{Spec: storagev1.CSIDriverSpec{AttachRequired: new(true), FSGroupPolicy: new(storagev1.FileFSGroupPolicy)}}, nil
}

func (cluster) GetVolumeAttachment(context.Context, string) (*storagev1.VolumeAttachment, error) {
	return &storagev1.VolumeAttachment{Status: storagev1.VolumeAttachmentStatus{Attached: true}}, nil
}

// The node's status tells of the driver's volume, as the attach/detach controller does.
func TestNamesInUseAreTheDrivers(t *testing.T) {
	n := newNode(t)
	n.config.CSIDrivers, n.config.Attachments = cluster{}, cluster{}
	translator := csitranslation.New()
	m, stop := n.start(translator)
	pod := podWith(disk("scratch", "disk"), claimed())
	want := []v1.UniqueVolumeName{"kubernetes.io/csi/" + gceDriver + "^" + inlineHandle, "kubernetes.io/csi/" + gceDriver + "^" + claimHandle}
	waits := make(chan string, 100)
	unsubscribe := m.Subscribe(func(s volumemanager.VolumeStatus) {
		if s.Attachment != nil {
			waits <- s.Volume
		}
	})
	n.must(m.PutPod(pod))
	for seen := map[string]bool{}; len(seen) < 2; {
		seen[<-waits] = true
	}
	unsubscribe()
	if got := m.VolumesInUse(); !slices.Equal(got, want) {
		t.Errorf("in use %q, want %q", got, want)
	}
	n.wantCalls("NodeStageVolume")
	m.SetVolumesAttached([]v1.AttachedVolume{{Name: want[0]}, {Name: want[1]}})
	m.ReportedInUse(m.VolumesInUse())
	n.must(m.WaitForMounted(t.Context(), pod.UID))
	stop()

	m, stop = n.start(translator)
	if got := m.VolumesInUse(); !slices.Equal(got, want) {
		t.Errorf("after a restart in use %q, want %q", got, want)
	}
	n.must(m.TearDownPod(t.Context(), pod.UID))
	if got := m.VolumesInUse(); len(got) > 0 {
		t.Errorf("at the end in use %q", got)
	}
	stop()
}

// What cannot be translated is refused before the driver hears of it.
func TestNodeRefuses(t *testing.T) {
	for name, tc := range map[string]struct {
		pod        *v1.Pod
		translator volume.Translator
		says       string
	}{
		"a hostile disk":       {podWith(disk("scratch", "a/../b")), csitranslation.New(), "gcePersistentDisk.pdName"},
		"one disk twice":       {podWith(disk("one", "disk"), disk("two", "disk")), csitranslation.New(), "name it once"},
		"without a translator": {podWith(disk("scratch", "disk")), nil, "Translator of volume/csitranslation"},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			m, stop := n.start(tc.translator)
			defer stop()
			_, err := m.SetUpPod(t.Context(), tc.pod)
			if err == nil || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("the error is %v", err)
			}
			if calls := n.driver.Calls(); len(calls) > 0 {
				t.Errorf("the driver was called: %v", calls)
			}
			n.must(m.TearDownPod(t.Context(), types.UID("u1")))
		})
	}
}

// A PersistentVolume that has the name of a pod's translated inline volume is not mounted in its
// place.
func TestPersistentVolumeWithTheNameOfADisk(t *testing.T) {
	n := newNode(t)
	pv := n.objects[0].(*v1.PersistentVolume)
	claim := n.objects[1].(*v1.PersistentVolumeClaim)
	pv.Name, claim.Spec.VolumeName = gceDriver+"-disk", gceDriver+"-disk"
	m, stop := n.start(csitranslation.New())
	defer stop()
	_, err := m.SetUpPod(t.Context(), podWith(claimed(), disk("scratch", "disk")))
	if _, invalid := errors.AsType[*volume.InvalidSpecError](err); !invalid {
		t.Errorf("the error is %v", err)
	}
	n.wantCalls("NodeStageVolume", inlineHandle)
	n.must(m.TearDownPod(t.Context(), types.UID("u1")))
}
