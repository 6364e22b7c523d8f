package attachdetach_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/util/testenv/pvbuild"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/attachdetach"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/objects/objectstest"
)

// cabinet has LUNs, and attaches them.
type cabinet struct {
	lunPlugin
	mu       sync.Mutex
	attached map[string]bool // "lun@node"
	calls    []string
	err      error
	numbered bool // each error has a number
	hang     chan struct{}
}

func (c *cabinet) do(what string, spec *volume.Spec, node types.NodeName, now bool) error {
	c.mu.Lock()
	hang := c.hang
	c.mu.Unlock()
	if hang != nil && strings.HasSuffix(spec.PersistentVolume.Name, "hangs") {
		<-hang
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	name := spec.PersistentVolume.Name + "@" + string(node)
	c.calls = append(c.calls, what+" "+name)
	if c.err == nil {
		c.attached[name] = now
	} else if c.numbered {
		return fmt.Errorf("request %d: %w", len(c.calls), c.err)
	}
	return c.err
}

func (c *cabinet) AttachSpec(_ context.Context, spec *volume.Spec, node types.NodeName) (volume.Attachment, error) {
	return volume.Attachment{DevicePath: "/dev/" + spec.PersistentVolume.Name, Metadata: map[string]string{"lun": "7"}}, c.do("attach", spec, node, true)
}

func (c *cabinet) DetachSpec(_ context.Context, spec *volume.Spec, node types.NodeName) error {
	return c.do("detach", spec, node, false)
}

func (c *cabinet) has(name string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.attached[name]
}

func (c *cabinet) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.err = err
}

// workshop is an attacher, its store and its cabinet.
type workshop struct {
	t       *testing.T
	store   *objects.Store
	cabinet *cabinet
	client  *objectstest.Client
	stop    func()
	node    types.NodeName
}

func newWorkshop(t *testing.T) *workshop {
	w := &workshop{t: t, store: objects.NewStore(), cabinet: &cabinet{attached: make(map[string]bool)}, node: "n0"}
	w.start()
	t.Cleanup(func() {
		w.stop()
		synctest.Wait()
	})
	return w
}

func (w *workshop) start() {
	plugins, err := volume.NewVolumePluginMgr([]volume.VolumePlugin{w.cabinet}, &volume.Host{})
	if err != nil {
		w.t.Fatal(err)
	}
	w.client = objectstest.NewClient(w.store)
	client := w.client
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- attachdetach.NewAttacher(attachdetach.AttacherConfig{Objects: client, Plugins: plugins, NodeName: w.node}).Run(ctx)
	}()
	w.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil && !errors.Is(err, objectstest.ErrCrashed) {
			w.t.Errorf("Run: %v", err)
		}
		client.Close()
	})
}

func (w *workshop) addVolume(name string) {
	w.t.Helper()
	pv := pvbuild.NewPV(name, "1Gi")
	pv.Spec.PersistentVolumeSource = v1.PersistentVolumeSource{ISCSI: &v1.ISCSIPersistentVolumeSource{IQN: "iqn." + name}}
	if _, err := w.store.Create(w.t.Context(), pv); err != nil {
		w.t.Fatal(err)
	}
}

func (w *workshop) attach(name, node, attacher string) {
	w.t.Helper()
	a := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: name + "-" + node}, Spec: storagev1.VolumeAttachmentSpec{Attacher: attacher, NodeName: node,
		Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &name}}}
	if _, err := w.store.Create(w.t.Context(), a); err != nil {
		w.t.Fatal(err)
	}
}

func (w *workshop) delete(ref volumeRef) {
	w.t.Helper()
	if err := w.store.Delete(w.t.Context(), ref, noPreconditions); err != nil && !errors.Is(err, volume.ErrNotFound) {
		w.t.Fatal(err)
	}
}

// of returns an attachment; nil: it is gone.
func (w *workshop) of(name string) *storagev1.VolumeAttachment {
	a, err := objects.Get[*storagev1.VolumeAttachment](context.Background(), w.store, attachmentNamed(name))
	if err != nil {
		return nil
	}
	return a
}

func (w *workshop) volume(name string) *v1.PersistentVolume {
	pv, err := objects.Get[*v1.PersistentVolume](context.Background(), w.store, pvRef(name))
	if err != nil {
		return nil
	}
	return pv
}

func (w *workshop) settle() {
	time.Sleep(15 * time.Minute)
	synctest.Wait()
}

func attachmentNamed(name string) volumeRef { return volume.NewObjectRef("VolumeAttachment", "", name) }

const ofLUNs = "lun.example.com"

func TestAttacherAttachesAndDetaches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorkshop(t)
		w.addVolume("a")
		w.attach("a", "n0", ofLUNs)
		w.settle()
		a := w.of("a-n0")
		if !a.Status.Attached || a.Status.AttachmentMetadata["lun"] != "7" || a.Status.AttachmentMetadata[attachdetach.DevicePathKey] != "/dev/a" || !w.cabinet.has("a@n0") {
			t.Fatalf("status %+v", a.Status)
		}
		w.delete(pvRef("a"))
		w.settle()
		if w.volume("a") == nil {
			t.Error("the PersistentVolume, which says what to detach, is gone before")
		}
		w.delete(attachmentNamed("a-n0"))
		w.settle()
		if w.of("a-n0") != nil || w.volume("a") != nil || w.cabinet.has("a@n0") {
			t.Errorf("left: %v, %v", w.of("a-n0"), w.volume("a"))
		}
		if want := []string{"attach a@n0", "detach a@n0"}; !slices.Equal(w.cabinet.calls, want) {
			t.Errorf("calls %q, want %q", w.cabinet.calls, want)
		}
	})
}

// What is another's is left alone: another node's, another attacher's.
func TestAttacherLeavesOthersAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorkshop(t)
		w.addVolume("a")
		w.attach("a", "n1", ofLUNs)
		w.attach("a", "n0", "disk.example.com")
		w.settle()
		if len(w.cabinet.calls) > 0 || len(w.of("a-n0").Finalizers)+len(w.of("a-n1").Finalizers) > 0 {
			t.Errorf("calls %q", w.cabinet.calls)
		}
	})
}

func TestAttacherTellsAndRepeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorkshop(t)
		w.addVolume("a")
		w.cabinet.fail(errors.New("the array is full"))
		w.attach("a", "n0", ofLUNs)
		w.settle()
		a := w.of("a-n0")
		if a.Status.Attached || a.Status.AttachError == nil || a.Status.AttachError.Message != "the array is full" {
			t.Fatalf("status %+v", a.Status)
		}
		w.cabinet.fail(nil)
		w.settle()
		if a = w.of("a-n0"); !a.Status.Attached || a.Status.AttachError != nil {
			t.Errorf("status %+v", a.Status)
		}
		w.cabinet.fail(errors.New("the node has it in use"))
		w.delete(attachmentNamed("a-n0"))
		w.settle()
		if a = w.of("a-n0"); a == nil || a.Status.DetachError == nil {
			t.Fatalf("left: %+v", a)
		}
		w.cabinet.fail(nil)
		w.settle()
		if w.of("a-n0") != nil {
			t.Error("it is not detached")
		}
	})
}

// A call that hangs delays no other volume.
func TestAttacherThatHangsDelaysNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorkshop(t)
		w.cabinet.hang = make(chan struct{})
		for i := range 40 {
			name := fmt.Sprintf("%d-hangs", i)
			w.addVolume(name)
			w.attach(name, "n0", ofLUNs)
		}
		w.addVolume("a")
		w.attach("a", "n0", ofLUNs)
		w.settle()
		if !w.of("a-n0").Status.Attached {
			t.Error("the volume is not attached")
		}
		close(w.cabinet.hang)
	})
}

// Whichever call the process dies at, what may be attached is recorded, and the next one
// completes it, or takes it back.
func TestAttacherDiesAtEachCall(t *testing.T) {
	for _, after := range []bool{false, true} {
		for n := 1; n <= 12; n++ {
			t.Run(fmt.Sprintf("%d after=%v", n, after), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := newWorkshop(t)
					w.client.CrashAt(n, after)
					w.addVolume("a")
					w.attach("a", "n0", ofLUNs)
					w.settle()
					w.mustBeRecorded()
					w.restart(n, after)
					if a := w.of("a-n0"); a == nil || !a.Status.Attached {
						t.Fatalf("it is not attached: %+v", a)
					}
					w.restart(1000, false)
					w.client.CrashAt(n, after)
					w.delete(attachmentNamed("a-n0"))
					w.settle()
					w.mustBeRecorded()
					w.restart(1000, false)
					if w.of("a-n0") != nil || w.cabinet.has("a@n0") || slices.Contains(w.volume("a").Finalizers, attachdetach.AttachedFinalizer) {
						t.Errorf("left: %+v, %+v", w.of("a-n0"), w.volume("a"))
					}
				})
			})
		}
	}
}

// restart starts another process, twice: the first dies at a call, too.
func (w *workshop) restart(n int, after bool) {
	w.stop()
	w.start()
	w.client.CrashAt(n, after)
	w.settle()
	w.stop()
	w.start()
	w.settle()
}

// mustBeRecorded wants a record of what is attached.
func (w *workshop) mustBeRecorded() {
	w.t.Helper()
	if a := w.of("a-n0"); w.cabinet.has("a@n0") && (a == nil || !slices.Contains(a.Finalizers, attachdetach.AttachedFinalizer)) {
		w.t.Errorf("it is attached, and the attachment is %+v", a)
	}
}

// A driver whose errors are never the same is not asked more often.
func TestAttacherPausesAfterEachFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorkshop(t)
		w.cabinet.numbered, w.cabinet.err = true, errors.New("out of luck")
		w.addVolume("a")
		w.attach("a", "n0", ofLUNs)
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if n := len(w.cabinet.calls); n > 30 {
			t.Errorf("%d attempts in ten minutes", n)
		}
	})
}

// Another node's attacher, whose cache is behind, lets no PersistentVolume go that is attached.
func TestAttacherOfAnotherNodeKeepsTheVolume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorkshop(t)
		other := *w
		other.cabinet, other.node = &cabinet{attached: make(map[string]bool)}, "n1"
		other.start()
		defer other.stop()
		time.Sleep(time.Second)
		release := other.client.Hold("VolumeAttachment")
		w.addVolume("a")
		w.attach("a", "n0", ofLUNs)
		w.settle()
		release()
		w.settle()
		if pv := w.volume("a"); !slices.Contains(pv.Finalizers, attachdetach.AttachedFinalizer) {
			t.Errorf("finalizers %v", pv.Finalizers)
		}
	})
}

// What was attached is not detached by what another volume of its name says.
func TestAttacherDetachesNoOtherVolume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorkshop(t)
		w.addVolume("a")
		name := "a"
		made := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: "a-n0", Annotations: map[string]string{attachdetach.VolumeAnnotation: "example.com/lun/iqn.before"}},
			Spec: storagev1.VolumeAttachmentSpec{Attacher: ofLUNs, NodeName: "n0", Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &name}}}
		made.Finalizers = []string{attachdetach.AttachedFinalizer}
		if _, err := w.store.Create(t.Context(), made); err != nil {
			t.Fatal(err)
		}
		w.delete(attachmentNamed("a-n0"))
		w.settle()
		a := w.of("a-n0")
		if len(w.cabinet.calls) > 0 || a == nil || a.Status.DetachError == nil || !strings.Contains(a.Status.DetachError.Message, "remove the finalizer") {
			t.Errorf("calls %q, attachment %+v", w.cabinet.calls, a)
		}
	})
}
