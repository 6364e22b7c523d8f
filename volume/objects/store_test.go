package objects_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/podvol/podvol/util/testenv/noleak"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
)

func TestMain(m *testing.M) { noleak.Main(m) }

func claim(name string, change ...func(*v1.PersistentVolumeClaim)) *v1.PersistentVolumeClaim {
	c := &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ops", Name: name}}
	for _, f := range change {
		f(c)
	}
	return c
}

func create[T metav1.Object](t *testing.T, s *objects.Store, object T) T {
	t.Helper()
	created, err := s.Create(t.Context(), object)
	if err != nil {
		t.Fatal(err)
	}
	return created.(T)
}

func get(t *testing.T, s *objects.Store, name string) *v1.PersistentVolumeClaim {
	t.Helper()
	c, err := objects.Get[*v1.PersistentVolumeClaim](t.Context(), s, claimRef(name))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func claimRef(name string) volume.ObjectRef {
	return volume.NewObjectRef("PersistentVolumeClaim", "ops", name)
}

func TestCreateThenGet(t *testing.T) {
	s := objects.NewStore()
	mine := claim("data")
	created := create(t, s, mine)
	if created.UID == "" || created.ResourceVersion == "" || created.CreationTimestamp.IsZero() {
		t.Errorf("created without UID, version or time: %+v", created.ObjectMeta)
	}
	if mine.UID != "" {
		t.Error("the argument was changed")
	}
	mine.Labels = map[string]string{"changed": "afterwards"}
	created.Labels = map[string]string{"changed": "afterwards"}
	if got := get(t, s, "data"); got.Labels != nil || got.Kind != "PersistentVolumeClaim" || got.APIVersion != "v1" {
		t.Errorf("stored %+v: shares memory with the caller, or lacks its kind", got)
	}
}

func TestErrors(t *testing.T) {
	ctx := t.Context()
	s := objects.NewStore()
	first := create(t, s, claim("data"))
	cancelled, cancel := context.WithCancel(ctx)
	cancel()
	isInvalid := func(err error) bool { _, ok := errors.AsType[*volume.InvalidSpecError](err); return ok }
	isUnknown := func(err error) bool { _, ok := errors.AsType[*objects.UnknownKindError](err); return ok }
	isNotFound := func(err error) bool {
		e, ok := errors.AsType[*volume.ObjectNotFoundError](err)
		return ok && e.Ref == claimRef("other") && errors.Is(err, volume.ErrNotFound)
	}
	is := func(target error) func(error) bool { return func(err error) bool { return errors.Is(err, target) } }
	write := func(f func(context.Context, metav1.Object) (metav1.Object, error), o metav1.Object) error {
		_, err := f(ctx, o)
		return err
	}
	wrongUID := func(c *v1.PersistentVolumeClaim) { c.UID = "another" }
	oldVersion := func(c *v1.PersistentVolumeClaim) { c.ResourceVersion = "0" }
	_, getErr := s.Get(ctx, claimRef("other"))
	_, kindErr := s.Get(ctx, volume.NewObjectRef("Pood", "ops", "data"))
	_, listErr := s.List(ctx, "Pood", "")
	_, typeErr := objects.List[*v1.Pod](ctx, s, "PersistentVolumeClaim", "")
	_, ctxErr := s.Get(cancelled, claimRef("data"))
	tests := map[string]struct {
		err  error
		want func(error) bool
	}{
		"get what is not there":          {getErr, isNotFound},
		"update what is not there":       {write(s.Update, claim("other")), isNotFound},
		"delete what is not there":       {s.Delete(ctx, claimRef("other"), objects.Preconditions{}), isNotFound},
		"create what is there":           {write(s.Create, claim("data")), is(objects.ErrExists)},
		"create with a version":          {write(s.Create, claim("x", oldVersion)), isInvalid},
		"update another UID":             {write(s.Update, claim("data", wrongUID)), is(objects.ErrConflict)},
		"update an old version":          {write(s.Update, claim("data", oldVersion)), is(objects.ErrConflict)},
		"status of another UID":          {write(s.UpdateStatus, claim("data", wrongUID)), is(objects.ErrConflict)},
		"delete another UID":             {s.Delete(ctx, claimRef("data"), objects.Preconditions{UID: "another"}), is(objects.ErrConflict)},
		"delete an old version":          {s.Delete(ctx, claimRef("data"), objects.Preconditions{ResourceVersion: "0"}), is(objects.ErrConflict)},
		"get an unknown kind":            {kindErr, isUnknown},
		"list an unknown kind":           {listErr, isUnknown},
		"create an unknown type":         {write(s.Create, &v1.Service{}), isUnknown},
		"no name":                        {write(s.Create, claim("")), isInvalid},
		"no namespace":                   {write(s.Create, &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}}), isInvalid},
		"a namespace on a cluster kind":  {write(s.Create, &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Namespace: "x"}}), isInvalid},
		"status of a kind without one":   {write(s.UpdateStatus, &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "c"}}), isInvalid},
		"list as the wrong type":         {typeErr, func(err error) bool { return err != nil }},
		"a context that has ended":       {ctxErr, is(context.Canceled)},
		"a delete whose context is over": {s.Delete(cancelled, claimRef("data"), objects.Preconditions{}), is(context.Canceled)},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if !tc.want(tc.err) {
				t.Errorf("err = %v", tc.err)
			}
		})
	}
	if got := get(t, s, "data"); !cmp.Equal(got, first) {
		t.Errorf("a refused write changed the object: %s", cmp.Diff(first, got))
	}
}

func TestUpdateLeavesTheStatusAndUpdateStatusTheRest(t *testing.T) {
	s := objects.NewStore()
	created := create(t, s, claim("data"))
	created.Spec.VolumeName = "pv"
	created.Status.Phase = v1.ClaimBound
	updated, err := s.Update(t.Context(), created)
	if err != nil {
		t.Fatal(err)
	}
	if got := get(t, s, "data"); got.Spec.VolumeName != "pv" || got.Status.Phase != "" {
		t.Errorf("after Update: %+v", got)
	}
	if _, err := s.Update(t.Context(), created); !errors.Is(err, objects.ErrConflict) {
		t.Errorf("a second update of the old version: %v, want a conflict", err)
	}
	status := updated.(*v1.PersistentVolumeClaim)
	status.Spec.VolumeName = "ignored"
	status.Status.Phase = v1.ClaimBound
	if _, err := s.UpdateStatus(t.Context(), status); err != nil {
		t.Fatal(err)
	}
	if got := get(t, s, "data"); got.Spec.VolumeName != "pv" || got.Status.Phase != v1.ClaimBound {
		t.Errorf("after UpdateStatus: %+v", got)
	}
}

func TestAnUnchangedUpdateIsNoChange(t *testing.T) {
	s := objects.NewStore()
	created := create(t, s, claim("data"))
	stop := s.Watch(claimRef("data"), func(volume.ObjectRef) { t.Error("the watcher was called") })
	updated, err := s.Update(t.Context(), created)
	if err != nil || updated.GetResourceVersion() != created.ResourceVersion {
		t.Errorf("version %s → %s, err %v", created.ResourceVersion, updated.GetResourceVersion(), err)
	}
	stop()
}

func TestFinalizersDelayDeletion(t *testing.T) {
	s := objects.NewStore()
	create(t, s, claim("data", func(c *v1.PersistentVolumeClaim) { c.Finalizers = []string{"kubernetes.io/pvc-protection"} }))
	for range 2 {
		if err := s.Delete(t.Context(), claimRef("data"), objects.Preconditions{}); err != nil {
			t.Fatal(err)
		}
	}
	deleting := get(t, s, "data").DeepCopy()
	if deleting.DeletionTimestamp == nil {
		t.Fatal("no deletion timestamp")
	}
	more := deleting.DeepCopy()
	more.Finalizers = append(more.Finalizers, "example.com/late")
	if _, err := s.Update(t.Context(), more); err == nil {
		t.Error("a finalizer was added to an object that is being deleted")
	}
	deleting.Finalizers = nil
	if _, err := s.Update(t.Context(), deleting); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Get(t.Context(), claimRef("data")); !errors.Is(err, volume.ErrNotFound) {
		t.Errorf("still there after its last finalizer: %v", err)
	}
	again := create(t, s, claim("data"))
	if again.UID == deleting.UID {
		t.Error("a re-created object has the old UID")
	}
}

func TestListIsSortedAndBoundToTheNamespace(t *testing.T) {
	s := objects.NewStore()
	for _, name := range []string{"c", "a", "b"} {
		create(t, s, claim(name))
	}
	create(t, s, claim("0", func(c *v1.PersistentVolumeClaim) { c.Namespace = "dev" }))
	names := func(namespace string) (names []string) {
		list, err := objects.List[*v1.PersistentVolumeClaim](t.Context(), s, "PersistentVolumeClaim", namespace)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range list {
			names = append(names, c.Namespace+"/"+c.Name)
		}
		return names
	}
	if diff := cmp.Diff([]string{"ops/a", "ops/b", "ops/c"}, names("ops")); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"dev/0", "ops/a", "ops/b", "ops/c"}, names("")); diff != "" {
		t.Error(diff)
	}
}

func TestWatch(t *testing.T) {
	s := objects.NewStore()
	one, kind := make(chan volume.ObjectRef, 10), make(chan volume.ObjectRef, 10)
	stopOne := s.Watch(claimRef("data"), func(ref volume.ObjectRef) {
		if _, err := s.List(context.Background(), "PersistentVolumeClaim", ""); err != nil { // the store is not locked here
			t.Error(err)
		}
		one <- ref
	})
	stopKind := s.WatchKind("PersistentVolumeClaim", func(ref volume.ObjectRef) { kind <- ref })
	change := func(name string) {
		c := get(t, s, name).DeepCopy()
		c.Spec.VolumeName += "x"
		if _, err := s.Update(t.Context(), c); err != nil {
			t.Fatal(err)
		}
	}
	for _, step := range []func(){
		func() { create(t, s, claim("data")) },
		func() { change("data") },
		func() { s.Delete(t.Context(), claimRef("data"), objects.Preconditions{}) },
	} {
		step()
		if got := <-one; got != claimRef("data") {
			t.Errorf("told of %v", got)
		}
		if got := <-kind; got != claimRef("data") {
			t.Errorf("the kind's watcher was told of %v", got)
		}
	}
	create(t, s, claim("other"))
	if got := <-kind; got != claimRef("other") {
		t.Errorf("the kind's watcher was told of %v", got)
	}
	stopOne()
	stopOne()
	stopKind()
	create(t, s, claim("data"))
	if len(one)+len(kind) != 0 {
		t.Error("called after stop, or about another object")
	}
}

func TestStopWaitsForTheCallUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := objects.NewStore()
		release := make(chan struct{})
		calls, left := 0, false
		stop := s.WatchKind("PersistentVolumeClaim", func(volume.ObjectRef) {
			calls++
			<-release
			left = true
		})
		create(t, s, claim("a"))
		synctest.Wait()
		create(t, s, claim("b")) // queued behind the call under way
		stopped := false
		go func() {
			stop()
			stopped = true
		}()
		synctest.Wait()
		if stopped {
			t.Error("stop returned while the watcher ran")
		}
		close(release)
		synctest.Wait()
		if !stopped || !left || calls != 1 {
			t.Errorf("stopped = %v, left = %v, %d calls; want one call, and stop to return after it", stopped, left, calls)
		}
	})
}

func TestConcurrentUpdatesLoseNothing(t *testing.T) {
	s := objects.NewStore()
	create(t, s, claim("data"))
	stop := s.WatchKind("PersistentVolumeClaim", func(volume.ObjectRef) {})
	defer stop()
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			for n := 0; n < 20; {
				c := get(t, s, "data").DeepCopy()
				metav1.SetMetaDataAnnotation(&c.ObjectMeta, fmt.Sprintf("w%d-%d", w, n), "")
				_, err := s.Update(t.Context(), c)
				if err == nil {
					n++
				} else if !errors.Is(err, objects.ErrConflict) {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	if got := len(get(t, s, "data").Annotations); got != 160 {
		t.Errorf("%d of 160 updates survived", got)
	}
}

func TestEveryKindIsKept(t *testing.T) {
	s := objects.NewStore()
	for _, kind := range objects.Kinds() {
		object := kind.New()
		object.SetName("x")
		if kind.Namespaced {
			object.SetNamespace("ops")
		}
		create(t, s, object)
		ref := volume.NewObjectRef(kind.Kind, object.GetNamespace(), "x")
		got, err := s.Get(t.Context(), ref)
		if err != nil {
			t.Fatal(err)
		}
		if gvk := got.(runtime.Object).GetObjectKind().GroupVersionKind(); gvk != kind.GroupVersionKind {
			t.Errorf("%s is stored as %s", ref, gvk)
		}
		if reflect.TypeOf(got) != reflect.TypeOf(object) {
			t.Errorf("%s is a %T, and New makes a %T", ref, got, object)
		}
		if kind.Namespaced {
			object.SetNamespace("")
		} else {
			object.SetNamespace("ops")
		}
		_, err = s.Create(t.Context(), object)
		if _, refused := errors.AsType[*volume.InvalidSpecError](err); !refused {
			t.Errorf("%s with the other scope: err = %v", ref, err)
		}
	}
}

// What another store had goes on as it was there.
func TestLoad(t *testing.T) {
	s := objects.NewStore()
	create(t, s, claim("before"))
	floor := uint64(1 << 40)
	loaded := claim("data")
	loaded.UID, loaded.ResourceVersion = "uid", "7"
	loaded.CreationTimestamp = metav1.Unix(1000, 0)
	loaded.DeletionTimestamp, loaded.Finalizers = new(metav1.Unix(2000, 0)), []string{"example.com/keep"}
	loaded.Status.Phase = v1.ClaimBound
	changed := make(chan volume.ObjectRef, 10)
	defer s.WatchKind("PersistentVolumeClaim", func(ref volume.ObjectRef) { changed <- ref })()
	if err := s.Load(t.Context(), floor, loaded); err != nil {
		t.Fatal(err)
	}
	if ref := <-changed; ref.Name != "data" {
		t.Errorf("%s has changed", ref)
	}
	got := get(t, s, "data")
	if version, err := strconv.ParseUint(got.ResourceVersion, 10, 64); err != nil || version <= floor {
		t.Errorf("version %s, want one above %d", got.ResourceVersion, floor)
	}
	want := loaded.DeepCopy()
	want.ResourceVersion, want.TypeMeta = got.ResourceVersion, got.TypeMeta
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if loaded.ResourceVersion != "7" {
		t.Error("the argument was changed")
	}
	// It is deleted as it would have been there.
	free := got.DeepCopy()
	free.Finalizers = nil
	if _, err := s.Update(t.Context(), free); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Get(t.Context(), volume.NewObjectRef("PersistentVolumeClaim", loaded.Namespace, "data")); !errors.Is(err, volume.ErrNotFound) {
		t.Errorf("err = %v", err)
	}
}

func TestLoadTakesAllOrNothing(t *testing.T) {
	withUID := func(c *v1.PersistentVolumeClaim) *v1.PersistentVolumeClaim { c.UID = "uid"; return c }
	deleted := withUID(claim("bad"))
	deleted.DeletionTimestamp = new(metav1.Now())
	for name, bad := range map[string]*v1.PersistentVolumeClaim{
		"exists": withUID(claim("before")), "twice": withUID(claim("data")), "without UID": claim("bad"), "deleted": deleted, "without name": withUID(claim("")),
	} {
		t.Run(name, func(t *testing.T) {
			s := objects.NewStore()
			create(t, s, claim("before"))
			if err := s.Load(t.Context(), 0, withUID(claim("data")), bad); err == nil {
				t.Error("it was loaded")
			}
			if list, err := s.List(t.Context(), "PersistentVolumeClaim", ""); err != nil || len(list) != 1 {
				t.Errorf("%d claims, %v", len(list), err)
			}
		})
	}
}

// empty is a source whose answers are neither an object nor an error.
type empty struct{ answer metav1.Object }

func (e empty) Get(context.Context, volume.ObjectRef) (metav1.Object, error) { return e.answer, nil }

// An answer without an object is an error, also where it has the right type: else the caller
// would use it.
func TestGetRefusesNil(t *testing.T) {
	for name, answer := range map[string]metav1.Object{"nil": nil, "typed": (*v1.ConfigMap)(nil), "another kind": (*v1.Secret)(nil)} {
		t.Run(name, func(t *testing.T) {
			got, err := objects.Get[*v1.ConfigMap](t.Context(), empty{answer}, volume.NewObjectRef("ConfigMap", "ns", "config"))
			if err == nil || got != nil {
				t.Errorf("got %v, %v", got, err)
			}
		})
	}
}
