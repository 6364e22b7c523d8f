package clusterhost

import (
	"context"
	"sync"

	"github.com/go-logr/logr"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/podvol/podvol/volume/internal/following"
)

// podFeed is the news of one pod and of its events.
type podFeed struct {
	pods     chan podSeen
	events   chan *v1.Event
	failures chan error // to watch the pod
}

// podSeen is one state of a pod, or its last one.
type podSeen struct {
	pod  *v1.Pod // nil: none is there
	gone bool
}

// feed watches a pod by its name and its events by its UID, until stop is called.
func (r *podRun) feed(pod *v1.Pod) (feed *podFeed, stop func()) {
	logger := logr.FromSlogHandler(r.logger.Handler())
	ctx, cancel := context.WithCancel(klog.NewContext(context.Background(), logger))
	feed = &podFeed{pods: make(chan podSeen), events: make(chan *v1.Event), failures: make(chan error)}
	var running sync.WaitGroup
	core := r.clientset.CoreV1()
	pods := &following.Follower{Kind: "Pod", Clientset: r.clientset, Logger: logger, Store: podSink{ctx.Done(), pod.Name, feed.pods},
		Selector: fields.OneTermEqualSelector(metav1.ObjectNameField, pod.Name),
		List: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return core.Pods(pod.Namespace).List(ctx, o)
		},
		Watch: core.Pods(pod.Namespace).Watch,
		Failed: func(err error) {
			select {
			case feed.failures <- err:
			case <-ctx.Done():
			}
		},
	}
	events := &following.Follower{Kind: "Event", Clientset: r.clientset, Logger: logger, Store: &eventSink{ctx.Done(), pod.UID, feed.events, make(map[types.UID]string)},
		Selector: fields.OneTermEqualSelector("involvedObject.uid", string(pod.UID)),
		List: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return core.Events(pod.Namespace).List(ctx, o)
		},
		Watch:  core.Events(pod.Namespace).Watch,
		Failed: func(error) {}, // they are only for show
	}
	running.Go(func() { pods.Run(ctx) })
	running.Go(func() { events.Run(ctx) })
	return feed, func() {
		cancel()
		running.Wait()
	}
}

// podSink passes on the states of the pod of one name.
type podSink struct {
	done <-chan struct{}
	name string
	to   chan<- podSeen
}

func (s podSink) send(item any, gone bool) error {
	if pod, ok := item.(*v1.Pod); ok && pod.Name == s.name {
		s.put(podSeen{pod, gone})
	}
	return nil
}

func (s podSink) put(seen podSeen) {
	select {
	case s.to <- seen:
	case <-s.done:
	}
}

// Add implements the reflector's store.
func (s podSink) Add(item any) error { return s.send(item, false) }

// Update implements the reflector's store.
func (s podSink) Update(item any) error { return s.send(item, false) }

// Delete implements the reflector's store.
func (s podSink) Delete(item any) error { return s.send(item, true) }

// Resync implements the reflector's store.
func (s podSink) Resync() error { return nil }

// Replace implements the reflector's store: the list is all there is.
func (s podSink) Replace(list []any, _ string) error {
	for _, item := range list {
		if pod, ok := item.(*v1.Pod); ok && pod.Name == s.name {
			s.put(podSeen{pod: pod})
			return nil
		}
	}
	s.put(podSeen{})
	return nil
}

// eventSink passes on the events of one pod, each once in each version.
type eventSink struct {
	done <-chan struct{}
	uid  types.UID
	to   chan<- *v1.Event
	seen map[types.UID]string
}

// Add implements the reflector's store.
func (s *eventSink) Add(item any) error { return s.Update(item) }

// Update implements the reflector's store.
func (s *eventSink) Update(item any) error {
	e, ok := item.(*v1.Event)
	if !ok || e.InvolvedObject.UID != s.uid || s.seen[e.UID] == e.ResourceVersion && e.ResourceVersion != "" {
		return nil
	}
	s.seen[e.UID] = e.ResourceVersion
	select {
	case s.to <- e:
	case <-s.done:
	}
	return nil
}

// Delete implements the reflector's store.
func (s *eventSink) Delete(any) error { return nil }

// Resync implements the reflector's store.
func (s *eventSink) Resync() error { return nil }

// Replace implements the reflector's store.
func (s *eventSink) Replace(list []any, _ string) error {
	for _, item := range list {
		if err := s.Update(item); err != nil {
			return err
		}
	}
	return nil
}
