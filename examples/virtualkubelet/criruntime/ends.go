package criruntime

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// ends finds out when containers end. A runtime tells it by events, or, as containerd
// before 1.7, not at all: then one list a second of its containers does, while any
// of them is waited for.
type ends struct {
	service cri.RuntimeServiceClient
	log     *slog.Logger
	stop    context.CancelFunc
	running sync.WaitGroup
	poked   chan struct{}
	pods    chan struct{} // receives a value after the runtime has told of a sandbox

	mu     sync.Mutex
	waited map[string]chan struct{}
	events bool // the runtime tells
}

// The pauses between two lists, without and with events.
const (
	listEvery      = time.Second
	listBesideThem = 30 * time.Second
)

func newEnds(service cri.RuntimeServiceClient, log *slog.Logger) *ends {
	ctx, stop := context.WithCancel(context.Background())
	e := &ends{service: service, log: log, stop: stop, poked: make(chan struct{}, 1), pods: make(chan struct{}, 1), waited: make(map[string]chan struct{})}
	e.running.Go(func() { e.listen(ctx) })
	e.running.Go(func() { e.list(ctx) })
	return e
}

func (e *ends) close() {
	e.stop()
	e.running.Wait()
}

// of returns a channel that is closed when the container of that ID does not run any more.
func (e *ends) of(id string) <-chan struct{} {
	e.mu.Lock()
	defer e.mu.Unlock()
	ended, ok := e.waited[id]
	if !ok {
		ended = make(chan struct{})
		e.waited[id] = ended
	}
	e.poke()
	return ended
}

// forget is for a container that is not waited for any more.
func (e *ends) forget(id string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.waited, id)
}

// poke has the containers listed soon.
func (e *ends) poke() {
	select {
	case e.poked <- struct{}{}:
	default:
	}
}

// listen pokes when the runtime tells of an end.
func (e *ends) listen(ctx context.Context) {
	tell := func(events bool) {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.events = events
		e.poke()
	}
	for ctx.Err() == nil {
		stream, err := e.service.GetContainerEvents(ctx, &cri.GetEventsRequest{})
		for err == nil {
			var event *cri.ContainerEventResponse
			if event, err = stream.Recv(); err == nil {
				tell(true)
				e.sandbox(event)
			}
		}
		tell(false)
		if status.Code(err) == codes.Unimplemented {
			return
		}
		timer := time.NewTimer(5 * time.Second)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		}
	}
}

// sandbox passes on that there is a sandbox: events of one have its own ID.
func (e *ends) sandbox(event *cri.ContainerEventResponse) {
	if event.ContainerId != event.GetPodSandboxStatus().GetId() || event.ContainerEventType == cri.ContainerEventType_CONTAINER_DELETED_EVENT {
		return
	}
	select {
	case e.pods <- struct{}{}:
	default:
	}
}

// list tells of what runs no more.
func (e *ends) list(ctx context.Context) {
	for {
		select {
		case <-e.poked:
		case <-ctx.Done():
			return
		}
		for e.once(ctx) {
			timer := time.NewTimer(e.pause())
			select {
			case <-timer.C:
			case <-e.poked:
				timer.Stop()
			case <-ctx.Done():
				timer.Stop()
				return
			}
		}
	}
}

func (e *ends) pause() time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.events {
		return listBesideThem
	}
	return listEvery
}

// once lists, and reports whether any container is still waited for.
func (e *ends) once(ctx context.Context) bool {
	e.mu.Lock()
	before := make(map[string]bool)
	for id := range e.waited { // others may be started after the list
		before[id] = true
	}
	e.mu.Unlock()
	if len(before) == 0 {
		return false
	}
	filter := &cri.ContainerFilter{State: &cri.ContainerStateValue{State: cri.ContainerState_CONTAINER_RUNNING}}
	answer, err := e.service.ListContainers(ctx, &cri.ListContainersRequest{Filter: filter})
	if err != nil {
		if ctx.Err() == nil {
			e.log.Warn("the container runtime does not list its containers", "error", err)
		}
		return true
	}
	for _, c := range answer.Containers {
		delete(before, c.Id)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for id := range before {
		if ended, ok := e.waited[id]; ok {
			close(ended)
			delete(e.waited, id)
		}
	}
	return len(e.waited) > 0
}
