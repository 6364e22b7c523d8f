package attachdetach_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/util/testenv/pvbuild"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/attachdetach"
	"github.com/podvol/podvol/volume/internal/work"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/objects/objectstest"
)

const (
	driver     = "disk.example.com"
	attacherIs = "example.com/attacher" // its finalizer
	agentIs    = "example.com/agent"    // that of a pod's agent
)

func uniqueName(disk string) v1.UniqueVolumeName {
	return v1.UniqueVolumeName("kubernetes.io/csi/" + driver + "^" + disk)
}

// backend is where the disks are. It knows what must never happen.
type backend struct {
	mu       sync.Mutex
	shared   map[string]bool
	attached map[string]map[string]bool // by disk, by node
	mounted  map[string]map[string]bool // by node, by disk
	broken   []string
}

func (b *backend) attach(disk, node string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for other := range b.attached[disk] {
		if other != node && !b.shared[disk] {
			b.broken = append(b.broken, fmt.Sprintf("%s is attached to %s while %s has it", disk, node, other))
		}
	}
	if b.attached[disk] == nil {
		b.attached[disk] = make(map[string]bool)
	}
	b.attached[disk][node] = true
}

func (b *backend) detach(disk, node string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.mounted[node][disk] {
		b.broken = append(b.broken, fmt.Sprintf("%s is detached from %s, which has it mounted", disk, node))
	}
	delete(b.attached[disk], node)
}

func (b *backend) mount(disk, node string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.attached[disk][node] {
		b.broken = append(b.broken, fmt.Sprintf("%s mounts %s, which is not attached", node, disk))
	}
	if b.mounted[node] == nil {
		b.mounted[node] = make(map[string]bool)
	}
	b.mounted[node][disk] = true
}

func (b *backend) unmount(disk, node string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.mounted[node], disk)
}

func (b *backend) powerOff(node string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.mounted, node)
}

func (b *backend) mountsOf(node string) []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Sorted(maps.Keys(b.mounted[node]))
}

func (b *backend) nodesOf(disk string) []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Sorted(maps.Keys(b.attached[disk]))
}

// world is a cluster with nodes, their agents, a driver's attacher, and the controller.
type world struct {
	t       *testing.T
	store   *objects.Store
	client  *objectstest.Client
	backend *backend
	agents  map[string]*agent
	config  attachdetach.Config
	stop    func()
	running *attachdetach.Controller

	// failed is why CSIDrivers cannot be read. onRead is called when something was read, before
	// the reader has it.
	failed atomic.Pointer[error]
	onRead func(volume.ObjectRef)

	mu     sync.Mutex
	events []string
	// attaching and detaching are the errors of the next attempts.
	attaching, detaching map[string]error
}

const slowness = time.Second // of attaching, detaching and unmounting

// newWorld makes nodes n0, n1 … and disks, each with a PersistentVolume and a claim of its
// name. Shared disks begin with "shared".
func newWorld(t *testing.T, nodes int, disks ...string) *world {
	w := &world{t: t, store: objects.NewStore(), agents: make(map[string]*agent), attaching: make(map[string]error), detaching: make(map[string]error),
		backend: &backend{shared: make(map[string]bool), attached: make(map[string]map[string]bool), mounted: make(map[string]map[string]bool)}}
	w.config = attachdetach.Config{Events: w}
	for _, disk := range disks {
		w.addDisk(disk)
	}
	ctx, cancel := context.WithCancel(t.Context())
	for i := range nodes {
		name := fmt.Sprintf("n%d", i)
		w.addNode(name)
		w.agents[name] = newAgent(ctx, w, name)
	}
	w.runAttacher(ctx)
	w.start()
	t.Cleanup(func() {
		w.stop()
		cancel()
		synctest.Wait()
	})
	return w
}

func (w *world) addDisk(disk string) {
	w.addPV(disk, disk)
	claim := pvbuild.NewClaim(disk, "1Gi", pvbuild.Naming(disk))
	claim.Status.Phase = v1.ClaimBound
	w.create(claim)
	w.change("PersistentVolumeClaim", "ops", disk, func(o metav1.Object) { o.(*v1.PersistentVolumeClaim).Status.Phase = v1.ClaimBound })
}

// addPV makes the PersistentVolume of a claim, with the disk that has a handle.
func (w *world) addPV(name, handle string) {
	mode := v1.ReadWriteOnce
	if strings.HasPrefix(handle, "shared") {
		mode, w.backend.shared[handle] = v1.ReadWriteMany, true
	}
	pv := pvbuild.NewPV(name, "1Gi", pvbuild.ForClaim(name, types.UID("uid-"+name)), pvbuild.WithModes(mode))
	pv.Spec.PersistentVolumeSource = v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: handle}}
	w.create(pv)
}

func (w *world) deletePV(name string) {
	w.t.Helper()
	if err := w.store.Delete(context.Background(), pvRef(name), noPreconditions); err != nil && !errors.Is(err, volume.ErrNotFound) {
		w.t.Fatal(err)
	}
}

// disown has all VolumeAttachments be as another controller makes them.
func (w *world) disown() {
	list, err := objects.List[*storagev1.VolumeAttachment](context.Background(), w.store, "VolumeAttachment", "")
	if err != nil {
		w.t.Fatal(err)
	}
	for _, a := range list {
		w.change("VolumeAttachment", "", a.Name, func(o metav1.Object) { o.SetAnnotations(nil) })
	}
}

func (w *world) addNode(name string) {
	w.create(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{attachdetach.ManagedAnnotation: "true"}}})
	w.setReady(name, true)
}

func (w *world) create(o metav1.Object) {
	w.t.Helper()
	if _, err := w.store.Create(w.t.Context(), o); err != nil {
		w.t.Fatal(err)
	}
}

// change changes an object and its status; one that is not there stays so.
func (w *world) change(kind, namespace, name string, f func(metav1.Object)) {
	w.t.Helper()
	ref := volume.NewObjectRef(kind, namespace, name)
	for {
		stored, err := w.store.Get(context.Background(), ref)
		if err != nil {
			return
		}
		next := stored.(runtime.Object).DeepCopyObject().(metav1.Object)
		f(next)
		updated, err := w.store.Update(context.Background(), next)
		if err == nil {
			next.SetResourceVersion(updated.GetResourceVersion())
			_, err = w.store.UpdateStatus(context.Background(), next)
		}
		if err == nil || errors.Is(err, volume.ErrNotFound) {
			return
		}
		if !errors.Is(err, objects.ErrConflict) {
			w.t.Fatal(err)
		}
	}
}

func (w *world) setReady(node string, ready bool) {
	status := v1.ConditionTrue
	if !ready {
		status = v1.ConditionUnknown
	}
	w.changeNode(node, func(n *v1.Node) {
		n.Status.Conditions = []v1.NodeCondition{{Type: v1.NodeReady, Status: status, LastTransitionTime: metav1.Now()}}
	})
}

func (w *world) changeNode(node string, f func(*v1.Node)) {
	w.change("Node", "", node, func(o metav1.Object) { f(o.(*v1.Node)) })
}

func (w *world) fence(node string) {
	w.changeNode(node, func(n *v1.Node) {
		n.Spec.Taints = []v1.Taint{{Key: attachdetach.OutOfServiceTaint, Value: "nodeshutdown", Effect: v1.TaintEffectNoExecute}}
	})
}

// addPod makes a pod that has disks, on a node.
func (w *world) addPod(name, node string, disks ...string) {
	w.t.Helper()
	w.create(podOn(name, node, disks...))
}

func podOn(name, node string, disks ...string) *v1.Pod {
	pod := pvbuild.PodOf(disks...)
	pod.Name, pod.UID, pod.Spec.NodeName, pod.Finalizers = name, "", node, []string{agentIs}
	return pod
}

func (w *world) deletePod(name string) {
	w.t.Helper()
	if err := w.store.Delete(context.Background(), volume.NewObjectRef("Pod", "ops", name), objects.Preconditions{}); err != nil && !errors.Is(err, volume.ErrNotFound) {
		w.t.Fatal(err)
	}
}

// start runs a controller.
func (w *world) start() {
	w.client = objectstest.NewClient(w.store)
	config := w.config
	config.Objects = failing{w.client, &w.failed, w.onRead}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	client := w.client
	c := attachdetach.New(config)
	w.running = c
	go func() { ended <- c.Run(ctx) }()
	w.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil && !errors.Is(err, objectstest.ErrCrashed) && !errors.Is(err, errLost) {
			w.t.Errorf("Run: %v", err)
		}
		client.Close()
	})
}

// Event implements the controller's recorder.
func (w *world) Event(object runtime.Object, eventType, reason, message string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.events = append(w.events, fmt.Sprintf("%s: %s %s %s", object.(*v1.Pod).Name, eventType, reason, message))
}

func (w *world) takeEvents() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	events := w.events
	w.events = nil
	return events
}

// attachments returns "disk@node" of all VolumeAttachments; those that are attached have a
// "+", those that are being deleted a "-".
func (w *world) attachments() (all []string) {
	w.t.Helper()
	list, err := objects.List[*storagev1.VolumeAttachment](context.Background(), w.store, "VolumeAttachment", "")
	if err != nil {
		w.t.Fatal(err)
	}
	for _, a := range list {
		text := diskOf(a) + "@" + a.Spec.NodeName
		if a.Status.Attached {
			text += "+"
		}
		if a.DeletionTimestamp != nil {
			text += "-"
		}
		all = append(all, text)
	}
	slices.Sort(all)
	return all
}

func (w *world) node(name string) *v1.Node {
	node, err := objects.Get[*v1.Node](context.Background(), w.store, volume.NewObjectRef("Node", "", name))
	if err != nil {
		return &v1.Node{}
	}
	return node
}

// settle lets everything happen that takes less than a quarter of an hour.
func (w *world) settle() {
	time.Sleep(15 * time.Minute)
	synctest.Wait()
}

func (w *world) wantAttachments(want ...string) {
	w.t.Helper()
	if got := w.attachments(); !slices.Equal(got, want) {
		w.t.Errorf("attachments %v, want %v", got, want)
	}
	if broken := w.backend.broken; len(broken) > 0 {
		w.t.Errorf("what must never happen: %v", broken)
	}
}

// diskOf is the disk of an attachment: its PersistentVolume, or an inline volume's handle.
func diskOf(a *storagev1.VolumeAttachment) string {
	if inline := a.Spec.Source.InlineVolumeSpec; inline != nil {
		return inline.CSI.VolumeHandle
	}
	return *a.Spec.Source.PersistentVolumeName
}

// setAttaching makes attaching a disk fail; nil ends that.
func (w *world) setAttaching(disk string, err error) {
	w.mu.Lock()
	w.attaching[disk] = err
	w.mu.Unlock()
}

// setDetaching makes detaching a disk fail; nil ends that.
func (w *world) setDetaching(disk string, err error) {
	w.mu.Lock()
	w.detaching[disk] = err
	w.mu.Unlock()
}

// runAttacher is a CSI driver's external-attacher.
func (w *world) runAttacher(ctx context.Context) {
	queue := work.NewQueue(work.Config[volume.ObjectRef]{Reconcile: func(ctx context.Context, ref volume.ObjectRef) work.Result {
		return work.Result{Reason: w.syncAttacher(ctx, ref)}
	}})
	w.store.WatchKind("VolumeAttachment", queue.Enqueue)
	queue.Start(ctx)
}

func (w *world) syncAttacher(ctx context.Context, ref volume.ObjectRef) error {
	a, err := objects.Get[*storagev1.VolumeAttachment](ctx, w.store, ref)
	if err != nil {
		return nil
	}
	next, disk := a.DeepCopy(), diskOf(a)
	mine := slices.Contains(a.Finalizers, attacherIs)
	switch {
	case a.DeletionTimestamp == nil && !mine:
		next.Finalizers = append(next.Finalizers, attacherIs)
		_, err = w.store.Update(ctx, next)
	case a.DeletionTimestamp == nil && !a.Status.Attached:
		time.Sleep(slowness)
		w.mu.Lock()
		failed := w.attaching[disk]
		w.mu.Unlock()
		if failed != nil {
			next.Status.AttachError = &storagev1.VolumeError{Message: failed.Error()}
			if _, err := w.store.UpdateStatus(ctx, next); err != nil {
				return err
			}
			return failed
		}
		w.backend.attach(disk, a.Spec.NodeName)
		next.Status = storagev1.VolumeAttachmentStatus{Attached: true}
		_, err = w.store.UpdateStatus(ctx, next)
	case a.DeletionTimestamp != nil && mine:
		time.Sleep(slowness)
		w.mu.Lock()
		failed := w.detaching[disk]
		w.mu.Unlock()
		if failed != nil {
			next.Status.DetachError = &storagev1.VolumeError{Message: failed.Error()}
			_, err := w.store.UpdateStatus(ctx, next)
			return errors.Join(failed, err)
		}
		w.backend.detach(disk, a.Spec.NodeName)
		next.Finalizers = nil
		_, err = w.store.Update(ctx, next)
	}
	return err
}

// letGo ends a pod that is being deleted.
func (w *world) letGo(pod string) {
	w.change("Pod", "ops", pod, func(o metav1.Object) {
		if o.GetDeletionTimestamp() != nil {
			o.SetFinalizers(nil)
		}
	})
}

// powerOff ends a node at once, and what it has mounted.
func (w *world) powerOff(node string) {
	w.agents[node].setOff(true)
	w.backend.powerOff(node)
	w.setReady(node, false)
}

// powerOn starts a node anew.
func (w *world) powerOn(node string) {
	if w.node(node).Name == "" {
		w.addNode(node)
	}
	w.changeNode(node, func(n *v1.Node) { n.Spec.Taints = nil })
	w.setReady(node, true)
	w.agents[node].setOff(false)
}

// failing are objects of which CSIDrivers cannot be read, at times.
type failing struct {
	*objectstest.Client
	err    *atomic.Pointer[error]
	onRead func(volume.ObjectRef)
}

func (f failing) Get(ctx context.Context, ref volume.ObjectRef) (metav1.Object, error) {
	if err := f.err.Load(); err != nil && ref.Kind == "CSIDriver" {
		return nil, *err
	}
	object, err := f.Client.Get(ctx, ref)
	if f.onRead != nil {
		f.onRead(ref)
	}
	return object, err
}
