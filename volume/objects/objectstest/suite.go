package objectstest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
)

// Contract is one promise of [objects.Source], [objects.Lister] and
// [objects.Writer], and the name of the test that tries to break it.
type Contract string

// The promises that [Suite] tests.
const (
	MissingIsNotFound      Contract = "what does not exist is not found"
	EndedIsNotMissing      Contract = "a context that has ended says nothing about existence"
	UnknownKind            Contract = "an unknown kind is not an object that is missing"
	UnsyncedIsNotMissing   Contract = "what is not synced is not missing"
	UnsyncedIsTold         Contract = "watchers hear when what is not synced becomes known"
	FailedIsNotMissing     Contract = "a failed look-up says nothing about existence"
	CreateGivesIdentity    Contract = "a created object has UID, version and time"
	CreateCopies           Contract = "writers share no memory with their callers"
	CreateRefusesExisting  Contract = "what exists is not created"
	CreateRefusesVersion   Contract = "what is to be created has no version"
	CreateRefusesBadScope  Contract = "names and namespaces are as the kind demands"
	WriteRefusesMissing    Contract = "what does not exist is not changed"
	UpdateChecksUID        Contract = "an update of another UID is a conflict"
	UpdateChecksVersion    Contract = "an update of an old version is a conflict"
	UpdateWithoutVersion   Contract = "without a version the last writer wins"
	UpdateLeavesStatus     Contract = "an update leaves the status"
	UnchangedUpdate        Contract = "an update that changes nothing is no new version"
	StatusLeavesRest       Contract = "an update of the status leaves the rest"
	StatusChecksUID        Contract = "an update of the status of another UID is a conflict"
	StatusChecksVersion    Contract = "an update of the status of an old version is a conflict"
	StatusRefusesKind      Contract = "a kind without status has none to update"
	DeleteChecksUID        Contract = "a deletion of another UID is a conflict"
	DeleteChecksVersion    Contract = "a deletion of an old version is a conflict"
	FinalizersDelay        Contract = "an object outlives its deletion by its finalizers"
	FinalizersCannotGrow   Contract = "an object that is being deleted gets no finalizers"
	DeletionKeepsTime      Contract = "a second deletion keeps the time of the first"
	RecreatedIsAnother     Contract = "an object that is created again is another one"
	VersionsGrow           Contract = "versions grow with every change of a kind"
	ConcurrentUpdates      Contract = "concurrent updates lose nothing"
	WatchTellsAll          Contract = "a watch tells of creation, change and deletion"
	WatchTellsOfItsObject  Contract = "a watch tells of its object alone"
	WatchCoalesces         Contract = "a watcher that is slow sees the last state"
	WatchStops             Contract = "a stopped watch is silent"
	StopWaits              Contract = "stop waits for the call under way"
	ListIsSorted           Contract = "a list is in order of namespace and name"
	ListKeepsToNamespace   Contract = "a list keeps to its namespace"
	ListOfClusterWide      Contract = "a cluster-wide kind is listed"
	WatchKindTellsAll      Contract = "a watch of a kind tells of all its objects"
	WatchKindStops         Contract = "a stopped watch of a kind is silent"
	LiveSeesEveryWrite     Contract = "a live reader sees what was just written"
	LiveTellsMissingFailed Contract = "a live reader knows what is missing"
)

// Fixture is one implementation, ready to be tested. The suite makes nodes and
// config maps with names of its own and deletes them afterwards. It leaves all
// other objects alone. So tests can share an API server.
type Fixture struct {
	Source objects.Source
	Writer objects.Writer
	// Lister lists nodes and config maps. Nil: the implementation has no Lister,
	// and the promises about lists are not tested.
	Lister objects.Lister
	// Namespaces exist.
	Namespaces [2]string
	// Unsynced returns a source over the same objects that has not synced. It
	// syncs once sync is called, which may be twice. Nil: the implementation is
	// always synced.
	Unsynced func(t *testing.T) (source objects.Source, sync func())
	// Break makes every request fail until restore is called. The source may
	// still return the objects that it knows. Nil: nothing can fail.
	Break func(t *testing.T) (restore func())
	// Deviations are the promises that the implementation is known to break. The
	// suite fails if one of them is kept after all.
	Deviations map[Contract]Deviation
	// Patience is the longest delay of a watcher's notification; 0: 30 seconds.
	Patience time.Duration
}

// Deviation is a promise that is broken.
type Deviation struct {
	Why string
	// Sometimes is for promises that are kept by luck.
	Sometimes bool
}

// Suite tests that the fixture's implementation keeps its promises. Every promise
// is a subtest with a fixture of its own. None is skipped: each is tested, or
// shown to be broken with its reason.
func Suite(t *testing.T, fixture func(t *testing.T) Fixture) {
	for _, p := range promises() {
		t.Run(string(p.contract), func(t *testing.T) {
			f := fixture(t)
			if !p.applies(f) {
				t.Logf("does not apply: %s", p.lacks)
				return
			}
			err := p.check(newProbe(t, f))
			known, deviates := f.Deviations[p.contract]
			switch {
			case deviates && err == nil && !known.Sometimes:
				t.Errorf("is kept, although it is said to be broken (%s); take it off the deviations", known.Why)
			case deviates:
				t.Logf("deviates, as known (%s): %v", known.Why, err)
			case err != nil:
				t.Error(err)
			}
		})
	}
}

// promise is a contract and its test.
type promise struct {
	contract Contract
	check    func(*probe) error
	needs    func(Fixture) bool // nil: applies always
	lacks    string             // why not, where needs says no
}

func (p promise) applies(f Fixture) bool { return p.needs == nil || p.needs(f) }

func promises() []promise {
	var all []promise
	for _, table := range [][]promise{readPromises(), createPromises(), updatePromises(), deletePromises(), watchPromises(), listPromises()} {
		all = append(all, table...)
	}
	return all
}

// probe is one test of one promise.
type probe struct {
	Fixture
	t      *testing.T
	ctx    context.Context
	prefix string // of the names of all objects
}

func newProbe(t *testing.T, f Fixture) *probe {
	patience := f.Patience
	if patience == 0 {
		patience = 30 * time.Second
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return &probe{Fixture: f, t: t, ctx: ctx, prefix: "suite-" + string(objects.NewUID()[:8]) + "-"}
}

func (p *probe) configMap(name string) *v1.ConfigMap {
	return &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespaces[0], Name: p.prefix + name}, Data: map[string]string{"key": "value"}}
}

func (p *probe) node(name string) *v1.Node {
	return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: p.prefix + name}}
}

func (p *probe) configMapRef(name string) volume.ObjectRef { return refOf(p.configMap(name)) }

// create stores an object and removes it at the end.
func create[T metav1.Object](p *probe, object T) (T, error) {
	var none T
	stored, err := p.Writer.Create(p.ctx, object)
	if err != nil {
		return none, err
	}
	p.t.Cleanup(func() { p.remove(refOf(stored)) })
	typed, ok := stored.(T)
	if !ok {
		return none, fmt.Errorf("create returned a %T, want a %T", stored, none)
	}
	return typed, nil
}

func (p *probe) remove(ref volume.ObjectRef) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if object, err := p.live().Get(ctx, ref); err == nil && len(object.GetFinalizers()) > 0 {
		bare := bareCopy(object)
		bare.SetFinalizers(nil)
		if _, err := p.Writer.Update(ctx, bare); err != nil && !errors.Is(err, volume.ErrNotFound) {
			p.t.Errorf("clean-up: %v", err)
		}
	}
	if err := p.Writer.Delete(ctx, ref, objects.Preconditions{}); err != nil && !errors.Is(err, volume.ErrNotFound) {
		p.t.Errorf("clean-up: %v", err)
	}
}

// live is the reader whose answers are current.
func (p *probe) live() objects.Getter {
	if c, ok := p.Source.(objects.Cached); ok {
		return c.Live()
	}
	return p.Source
}

// await returns once the source answers as wanted. Between two reads it waits for
// the source's watch.
func (p *probe) await(source objects.Source, ref volume.ObjectRef, wanted func(metav1.Object, error) bool) error {
	changed := make(chan struct{}, 1)
	stop := source.Watch(ref, func(volume.ObjectRef) {
		select {
		case changed <- struct{}{}:
		default:
		}
	})
	defer stop()
	for {
		object, err := source.Get(p.ctx, ref)
		if wanted(object, err) {
			return nil
		}
		select {
		case <-changed:
		case <-p.ctx.Done():
			return fmt.Errorf("the watch of %s told nothing new; Get says %v, %v", ref, object, err)
		}
	}
}

// bareCopy copies one of the suite's objects.
func bareCopy(object metav1.Object) metav1.Object {
	switch o := object.(type) {
	case *v1.ConfigMap:
		return o.DeepCopy()
	case *v1.Node:
		return o.DeepCopy()
	}
	return nil
}

func exists(_ metav1.Object, err error) bool   { return err == nil }
func notFound(_ metav1.Object, err error) bool { return errors.Is(err, volume.ErrNotFound) }

// annotated is true of an object that carries an annotation.
func annotated(key string) func(metav1.Object, error) bool {
	return func(object metav1.Object, err error) bool {
		if err != nil {
			return false
		}
		_, ok := object.GetAnnotations()[key]
		return ok
	}
}

// want is nil if err matches target.
func want(what string, err, target error) error {
	if errors.Is(err, target) {
		return nil
	}
	return fmt.Errorf("%s: got %v, want an error that matches %q", what, err, target)
}

// wantType is nil if there is an E in err.
func wantType[E error](what string, err error) error {
	if e, ok := errors.AsType[E](err); !ok {
		return fmt.Errorf("%s: got %v, want a %T", what, err, e)
	}
	return nil
}

// wantUnknown is nil if err says nothing about existence.
func wantUnknown(what string, err error) error {
	if err == nil || errors.Is(err, volume.ErrNotFound) {
		return fmt.Errorf("%s: got %v, want an error that is not %q", what, err, volume.ErrNotFound)
	}
	return nil
}
