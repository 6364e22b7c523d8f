package objectstest

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
)

func watchPromises() []promise {
	return []promise{
		{contract: WatchTellsAll, check: func(p *probe) error { return checkLife(p, p.Source.Watch) }},
		{contract: WatchTellsOfItsObject, check: checkOwnObject},
		{contract: WatchCoalesces, check: checkCoalesces},
		{contract: WatchStops, check: func(p *probe) error { return checkStops(p, p.Source.Watch) }},
		{contract: StopWaits, check: checkStopWaits},
	}
}

func listPromises() []promise {
	lists := func(f Fixture) bool { return f.Lister != nil }
	const lacks = "it does not list"
	kind := func(p *probe) watchFunc {
		return func(ref volume.ObjectRef, f func(volume.ObjectRef)) (stop func()) {
			return p.Lister.WatchKind(ref.Kind, f)
		}
	}
	return []promise{
		{contract: ListIsSorted, check: checkListSorted, needs: lists, lacks: lacks},
		{contract: ListKeepsToNamespace, check: checkListNamespace, needs: lists, lacks: lacks},
		{contract: ListOfClusterWide, check: checkListNodes, needs: lists, lacks: lacks},
		{contract: WatchKindTellsAll, check: func(p *probe) error { return checkLife(p, kind(p)) }, needs: lists, lacks: lacks},
		{contract: WatchKindStops, check: func(p *probe) error { return checkStops(p, kind(p)) }, needs: lists, lacks: lacks},
	}
}

type watchFunc func(volume.ObjectRef, func(volume.ObjectRef)) (stop func())

// follow calls change. It returns once watch has reported ref at a time when the
// source answered as wanted.
func (p *probe) follow(watch watchFunc, ref volume.ObjectRef, change func() error, wanted func(metav1.Object, error) bool) error {
	seen := make(chan struct{})
	var once sync.Once
	stop := watch(ref, func(told volume.ObjectRef) {
		if told != ref {
			return
		}
		if wanted(p.Source.Get(p.ctx, ref)) { // a watcher may ask the source
			once.Do(func() { close(seen) })
		}
	})
	defer stop()
	if err := change(); err != nil {
		return err
	}
	select {
	case <-seen:
		return nil
	case <-p.ctx.Done():
		object, err := p.Source.Get(p.t.Context(), ref)
		return fmt.Errorf("the watch did not tell; Get says %v, %v", object, err)
	}
}

func checkLife(p *probe, watch watchFunc) error {
	ref := p.configMapRef("life")
	steps := []struct {
		name   string
		change func() error
		wanted func(metav1.Object, error) bool
	}{
		{"creation", func() error { _, err := create(p, p.configMap("life")); return err }, exists},
		{"change", func() error { return p.annotate(ref, "example.com/changed") }, annotated("example.com/changed")},
		{"deletion", func() error { return p.Writer.Delete(p.ctx, ref, objects.Preconditions{}) }, notFound},
		{"creation anew", func() error { _, err := create(p, p.configMap("life")); return err }, exists},
	}
	for _, step := range steps {
		if err := p.follow(watch, ref, step.change, step.wanted); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
	}
	return nil
}

func checkOwnObject(p *probe) error {
	mine := p.configMapRef("mine")
	var strangers atomic.Int64
	stop := p.Source.Watch(mine, func(told volume.ObjectRef) {
		if told != mine {
			strangers.Add(1)
		}
	})
	defer stop()
	for _, name := range []string{"other", "mine"} {
		add := func() error { _, err := create(p, p.configMap(name)); return err }
		if err := p.follow(p.Source.Watch, p.configMapRef(name), add, exists); err != nil {
			return err
		}
	}
	if n := strangers.Load(); n > 0 {
		return fmt.Errorf("told %d times of others", n)
	}
	return nil
}

// checkCoalesces blocks a watcher while an object changes often.
func checkCoalesces(p *probe) error {
	ref := p.configMapRef("busy")
	const changes = 10
	last := fmt.Sprintf("example.com/n%d", changes-1)
	release, entered, seen := make(chan struct{}), make(chan struct{}), make(chan struct{})
	var first, end sync.Once
	stop := p.Source.Watch(ref, func(volume.ObjectRef) {
		first.Do(func() { close(entered); <-release })
		if annotated(last)(p.Source.Get(p.ctx, ref)) {
			end.Do(func() { close(seen) })
		}
	})
	defer stop()
	letGo := sync.OnceFunc(func() { close(release) })
	defer letGo() // before stop, which waits for it
	if _, err := create(p, p.configMap("busy")); err != nil {
		return err
	}
	if err := p.wait(entered, "the first call"); err != nil {
		return err
	}
	for n := range changes {
		if err := p.annotate(ref, fmt.Sprintf("example.com/n%d", n)); err != nil {
			return err
		}
	}
	letGo()
	return p.wait(seen, "the call for the last change")
}

func (p *probe) wait(c <-chan struct{}, what string) error {
	select {
	case <-c:
		return nil
	case <-p.ctx.Done():
		return fmt.Errorf("%s did not come", what)
	}
}

func checkStops(p *probe, watch watchFunc) error {
	ref := p.configMapRef("stopped")
	var stopped, late atomic.Bool
	stop := watch(ref, func(volume.ObjectRef) { late.CompareAndSwap(false, stopped.Load()) })
	stop()
	stopped.Store(true)
	stop()
	// Another watcher has been notified. By now the stopped one would have been,
	// too.
	add := func() error { _, err := create(p, p.configMap("stopped")); return err }
	if err := p.follow(p.Source.Watch, ref, add, exists); err != nil {
		return err
	}
	if late.Load() {
		return errors.New("called after stop")
	}
	return nil
}

func checkStopWaits(p *probe) error {
	entered, release := make(chan struct{}), make(chan struct{})
	var left atomic.Bool
	var first sync.Once
	stop := p.Source.Watch(p.configMapRef("slow"), func(volume.ObjectRef) {
		first.Do(func() {
			close(entered)
			<-release
			left.Store(true)
		})
	})
	if _, err := create(p, p.configMap("slow")); err != nil {
		return err
	}
	if err := p.wait(entered, "the call"); err != nil {
		close(release)
		return err
	}
	go close(release)
	stop()
	if !left.Load() {
		return errors.New("stop returned while the watcher ran")
	}
	return nil
}

// populate creates config maps in both namespaces, not in their order, and waits
// until the source knows them all.
func (p *probe) populate() error {
	for _, name := range []string{"c", "a", "b"} {
		for _, namespace := range []string{p.Namespaces[1], p.Namespaces[0]} {
			object := p.configMap(name)
			object.Namespace = namespace
			created, err := create(p, object)
			if err != nil {
				return err
			}
			if err := p.await(p.Source, refOf(created), exists); err != nil {
				return err
			}
		}
	}
	return nil
}

// list returns the names of the probe's own config maps in a list.
func (p *probe) list(namespace string) ([]string, error) {
	all, err := objects.List[*v1.ConfigMap](p.ctx, p.Lister, "ConfigMap", namespace)
	var names []string
	for _, object := range all {
		if name := object.Name; len(name) == len(p.prefix)+1 && name[:len(p.prefix)] == p.prefix {
			names = append(names, object.Namespace+"/"+name[len(p.prefix):])
		}
	}
	return names, err
}

func (p *probe) wantList(namespace string, names ...string) error {
	if err := p.populate(); err != nil {
		return err
	}
	got, err := p.list(namespace)
	if err == nil && !slices.Equal(got, names) {
		return fmt.Errorf("listed %v, want %v", got, names)
	}
	return err
}

func checkListSorted(p *probe) error {
	namespaces := slices.Sorted(slices.Values(p.Namespaces[:]))
	var names []string
	for _, namespace := range namespaces {
		names = append(names, namespace+"/a", namespace+"/b", namespace+"/c")
	}
	return p.wantList("", names...)
}

func checkListNamespace(p *probe) error {
	namespace := p.Namespaces[1]
	return p.wantList(namespace, namespace+"/a", namespace+"/b", namespace+"/c")
}

func checkListNodes(p *probe) error {
	created, err := create(p, p.node("listed"))
	if err != nil {
		return err
	}
	if err := p.await(p.Source, refOf(created), exists); err != nil {
		return err
	}
	nodes, err := objects.List[*v1.Node](p.ctx, p.Lister, "Node", "")
	if err == nil && !slices.ContainsFunc(nodes, func(n *v1.Node) bool { return n.Name == created.Name }) {
		return fmt.Errorf("%s is not listed", created.Name)
	}
	_, unknown := p.Lister.List(p.ctx, "Pood", "")
	return errors.Join(err, wantType[*objects.UnknownKindError]("an unknown kind", unknown))
}
