package cluster_test

import (
	"errors"
	"strings"
	"testing"

	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/objects/cluster"
)

func TestConfigIsChecked(t *testing.T) {
	set := fake.NewClientset()
	factory := informers.NewSharedInformerFactory(set, 0)
	stopped := factory.Core().V1().Pods().Informer()
	end := make(chan struct{})
	close(end)
	stopped.Run(end)
	isUnknown := func(err error) bool { _, ok := errors.AsType[*objects.UnknownKindError](err); return ok }
	isInvalid := func(err error) bool { _, ok := errors.AsType[*volume.InvalidSpecError](err); return ok }
	isError := func(err error) bool { return err != nil }
	for name, tc := range map[string]struct {
		factory informers.SharedInformerFactory
		config  cluster.Config
		want    func(error) bool
	}{
		"an unknown shared kind":   {factory, cluster.Config{Shared: []string{"Pood"}}, isUnknown},
		"an unknown polled kind":   {factory, cluster.Config{Polled: []string{"Pood"}}, isUnknown},
		"an unknown informer":      {factory, cluster.Config{Informers: map[string]cache.SharedIndexInformer{"Pood": stopped}}, isUnknown},
		"an informer that stopped": {factory, cluster.Config{Informers: map[string]cache.SharedIndexInformer{"Pod": stopped}}, isError},
		"shared, and no factory":   {nil, cluster.Config{}, isError},
		"no informer":              {factory, cluster.Config{Informers: map[string]cache.SharedIndexInformer{"Pod": nil}}, isInvalid},
	} {
		if _, err := cluster.FromInformers(tc.factory, set, tc.config); !tc.want(err) {
			t.Errorf("%s: err = %v", name, err)
		}
	}
	if _, err := cluster.FromInformers(factory, nil, cluster.Config{}); !isInvalid(err) {
		t.Errorf("no clientset: err = %v", err)
	}
}

// What is shared from an informer of the caller's own is not watched twice.
func TestInformersOfTheCallersComeFirst(t *testing.T) {
	set := fake.NewClientset()
	factory := informers.NewSharedInformerFactory(set, 0)
	pods := informers.NewSharedInformerFactory(set, 0).Core().V1().Pods().Informer()
	c, err := cluster.FromInformers(factory, set, cluster.Config{Shared: []string{"Pod"}, Informers: map[string]cache.SharedIndexInformer{"Pod": pods}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.List(t.Context(), "Pod", ""); !errors.Is(err, objects.ErrNotSynced) || !strings.Contains(err.Error(), "must have been started") {
		t.Errorf("before the start: %v", err)
	}
	stop := make(chan struct{})
	factory.Start(stop)
	ran := make(chan struct{})
	go func() {
		defer close(ran)
		pods.Run(stop)
	}()
	if err := c.WaitForSync(t.Context()); err != nil {
		t.Error(err)
	}
	close(stop)
	factory.Shutdown()
	<-ran // either of the two is the one that runs it
	lists := 0
	for _, action := range set.Actions() {
		if action.GetVerb() == "list" { // each watch begins with one
			lists++
		}
	}
	if lists != 1 {
		t.Errorf("listed %d times, want once", lists)
	}
}

// handled counts the handlers of an informer.
type handled struct {
	cache.SharedIndexInformer
	handlers int
}

func (h *handled) AddEventHandler(handler cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	h.handlers++
	return h.SharedIndexInformer.AddEventHandler(handler)
}

func (h *handled) RemoveEventHandler(registration cache.ResourceEventHandlerRegistration) error {
	err := h.SharedIndexInformer.RemoveEventHandler(registration)
	if err == nil {
		h.handlers--
	}
	return err
}

// The informers outlive the client.
func TestAClosedClientLeavesInformersAlone(t *testing.T) {
	set := fake.NewClientset()
	pods := &handled{SharedIndexInformer: informers.NewSharedInformerFactory(set, 0).Core().V1().Pods().Informer()}
	c, err := cluster.FromInformers(nil, set, cluster.Config{Shared: []string{}, Informers: map[string]cache.SharedIndexInformer{"Pod": pods}})
	if err != nil {
		t.Fatal(err)
	}
	if pods.handlers != 1 {
		t.Errorf("%d handlers, want one", pods.handlers)
	}
	c.Close()
	if pods.handlers != 0 {
		t.Errorf("%d handlers are left", pods.handlers)
	}
}
