package main

import (
	"encoding/json"
	"errors"
	"sync"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// api is client-go's fake clientset, made to do what this node relies on an API
// server for: field selectors, graceful deletion, being away for a while.
type api struct {
	*fake.Clientset

	mu      sync.Mutex
	down    bool
	inVain  map[string]int // how often was asked what while the server was away
	watches []watch.Interface
	kinds   map[string]schema.GroupVersionKind
	listed  map[string]bool // what was listed since the server was away last
	watched []string        // resource and field selector of each watch
}

func newAPI(objects ...runtime.Object) *api {
	kinds := map[string]schema.GroupVersionKind{}
	for resource, kind := range map[string]string{"pods": "Pod", "configmaps": "ConfigMap", "secrets": "Secret", "nodes": "Node",
		"persistentvolumes": "PersistentVolume", "persistentvolumeclaims": "PersistentVolumeClaim"} {
		kinds[resource] = v1.SchemeGroupVersion.WithKind(kind)
	}
	a := &api{Clientset: fake.NewClientset(objects...), kinds: kinds, listed: make(map[string]bool)}
	react := clienttesting.ObjectReaction(a.Tracker())
	a.PrependReactor("list", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		_, list, err := react(action)
		if err != nil {
			return true, nil, err
		}
		a.mu.Lock()
		a.listed[resourceOf(action)+action.(clienttesting.ListAction).GetListRestrictions().Fields.String()] = true
		a.mu.Unlock()
		items, err := meta.ExtractList(list)
		if err != nil {
			return true, nil, err
		}
		var selected []runtime.Object
		for _, item := range items {
			if selects(action.(clienttesting.ListAction).GetListRestrictions().Fields, item) {
				selected = append(selected, item)
			}
		}
		return true, list, meta.SetList(list, selected)
	})
	a.PrependReactor("delete", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		deletion := action.(clienttesting.DeleteActionImpl)
		object, err := a.Tracker().Get(action.GetResource(), deletion.Namespace, deletion.Name)
		if err != nil {
			return true, nil, err
		}
		pod := object.(*v1.Pod).DeepCopy()
		if p := deletion.DeleteOptions.Preconditions; p != nil && p.UID != nil && *p.UID != pod.UID {
			return true, nil, apierrors.NewConflict(action.GetResource().GroupResource(), deletion.Name, errors.New("it is another one"))
		}
		grace := *pod.Spec.TerminationGracePeriodSeconds
		if g := deletion.DeleteOptions.GracePeriodSeconds; g != nil {
			grace = *g
		}
		if grace == 0 {
			return false, nil, nil
		}
		deleted := metav1.Now()
		pod.DeletionTimestamp, pod.DeletionGracePeriodSeconds = &deleted, &grace
		return true, pod, a.Tracker().Update(action.GetResource(), pod, pod.Namespace)
	})
	a.PrependReactor("patch", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		patch := action.(clienttesting.PatchAction)
		object, err := a.Tracker().Get(action.GetResource(), patch.GetNamespace(), patch.GetName())
		if err != nil {
			return true, nil, err
		}
		var says struct{ Metadata struct{ UID types.UID } }
		if err := json.Unmarshal(patch.GetPatch(), &says); err != nil {
			return true, nil, apierrors.NewBadRequest(err.Error())
		}
		if object.(*v1.Pod).UID != says.Metadata.UID {
			return true, nil, apierrors.NewConflict(action.GetResource().GroupResource(), patch.GetName(), errors.New("it is another one"))
		}
		return false, nil, nil
	})
	a.PrependWatchReactor("*", a.watch)
	a.PrependReactor("*", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.down {
			a.inVain[action.GetVerb()+" "+action.GetResource().Resource]++
			return true, nil, apierrors.NewInternalError(errors.New("the API server is away"))
		}
		return false, nil, nil
	})
	return a
}

// watch also tells what is there already, so that nothing is lost between a list
// and its watch, as nothing is at a real server.
func (a *api) watch(action clienttesting.Action) (bool, watch.Interface, error) {
	selector := action.(clienttesting.WatchAction).GetWatchRestrictions().Fields
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.down {
		return true, nil, apierrors.NewInternalError(errors.New("the API server is away"))
	}
	what := resourceOf(action) + selector.String()
	if !a.listed[what] {
		return true, nil, apierrors.NewResourceExpired("the server remembers nothing of what it was before")
	}
	events, err := a.Tracker().Watch(action.GetResource(), action.GetNamespace())
	if err != nil {
		return true, nil, err
	}
	if there, err := a.Tracker().List(action.GetResource(), a.kinds[action.GetResource().Resource], action.GetNamespace()); err == nil {
		_ = meta.EachListItem(there, func(object runtime.Object) error {
			events.(*watch.RaceFreeFakeWatcher).Modify(object)
			return nil
		})
	}
	filtered := newFiltered(events, selector)
	a.watches = append(a.watches, filtered)
	a.watched = append(a.watched, what)
	return true, filtered, nil
}

// setDown ends all watches and has every request refused, until it is up again.
func (a *api) setDown(down bool) {
	a.mu.Lock()
	a.down, a.inVain = down, make(map[string]int)
	watches := a.watches
	a.watches, a.listed = nil, make(map[string]bool)
	a.mu.Unlock()
	a.Lock() // which the fake holds while a request is under way
	defer a.Unlock()
	for _, w := range watches {
		w.Stop()
	}
}

// filtered is a watch of what a selector selects. Unlike [watch.Filter]'s it ends
// when it is stopped, also when nobody reads any more.
type filtered struct {
	events chan watch.Event
	stop   func()
}

func newFiltered(all watch.Interface, selector fields.Selector) *filtered {
	stopped := make(chan struct{})
	f := &filtered{make(chan watch.Event), sync.OnceFunc(func() { close(stopped); all.Stop() })}
	go func() {
		defer close(f.events)
		for e := range all.ResultChan() {
			if !selects(selector, e.Object) {
				continue
			}
			select {
			case f.events <- e:
			case <-stopped:
				return
			}
		}
	}()
	return f
}

func (f *filtered) ResultChan() <-chan watch.Event { return f.events }
func (f *filtered) Stop()                          { f.stop() }

func resourceOf(action clienttesting.Action) string { return action.GetResource().Resource + " " }

func selects(selector fields.Selector, object runtime.Object) bool {
	o, err := meta.Accessor(object)
	if err != nil {
		return true // a status
	}
	set := fields.Set{"metadata.name": o.GetName(), "metadata.namespace": o.GetNamespace()}
	if pod, ok := object.(*v1.Pod); ok {
		set["spec.nodeName"] = pod.Spec.NodeName
	}
	return selector.Matches(set)
}
