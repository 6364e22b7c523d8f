package objectstest

import (
	"context"
	"errors"
	"fmt"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/util/fault"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
)

// ErrCrashed is the error of every call of a [Client] once its process has died.
var ErrCrashed = errors.New("the process has crashed")

// Call is one call to the API.
type Call struct {
	// Verb is "create", "update", "update status", "delete", "load", "get" or
	// "list". The last two come only from [Client.Live].
	Verb string
	// Ref is the object. For List it has a kind and maybe a namespace. For Load
	// it is empty.
	Ref volume.ObjectRef
	// Object is the written object; nil for reads. It must not be changed.
	Object metav1.Object
}

// Client is one process's view of a store. Get, List and the watches answer from
// a cache of its own. The cache follows the store a little later, or much later
// with [Client.Hold]. Writes and [Client.Live] go to the store and may hit
// injected faults. All methods are safe for concurrent use.
type Client struct {
	fault.Injector[Call]
	store objects.Writer
	live  objects.Reader
	view  view

	mu         sync.Mutex
	calls      int
	crashAt    int // 0: never
	crashAfter bool
	crashed    chan struct{}
	stops      []func()
}

// view is a process's cache of a store.
type view interface {
	objects.Source
	objects.Lister
	// Hold stops the changes of a kind from reaching it, until release is called.
	Hold(kind string) (release func())
}

// Process is another process's view of a store. Its answers may be older than its
// Live's ([objects.Cached]).
type Process interface {
	view
	objects.Writer
	objects.Cached
}

// NewClientOf returns a client that passes its calls to p, for example of a real
// API. Its calls can fail, and its process can die, too. Closing the client does
// not close p.
func NewClientOf(p Process) *Client {
	return &Client{store: p, live: p.Live(), view: p, crashed: make(chan struct{})}
}

var (
	_ objects.Source = (*Client)(nil)
	_ objects.Lister = (*Client)(nil)
	_ objects.Writer = (*Client)(nil)
	_ objects.Cached = (*Client)(nil)
	_ objects.Loader = (*Client)(nil)
	_ objects.Sharer = (*Client)(nil)
)

// NewClient returns a client whose cache has the present state of the store. It
// follows the store until it is closed.
func NewClient(store *objects.Store) *Client {
	cached := new(cache)
	c := &Client{store: store, live: store, view: cached, crashed: make(chan struct{})}
	cached.init(store)
	for _, kind := range objects.Kinds() {
		c.stops = append(c.stops, store.WatchKind(kind.Kind, cached.changed))
	}
	cached.fill()
	return c
}

// Close ends the client's watches of the store. It may be called twice.
func (c *Client) Close() {
	for _, stop := range c.stops {
		stop()
	}
}

// Hold stops the changes of a kind from reaching the cache, until release is
// called. The cache then gets the missed changes.
func (c *Client) Hold(kind string) (release func()) { return c.view.Hold(kind) }

// CrashAt lets the process die at its n-th call from now on, counted from 1:
// before the call takes effect, or after. That call and all later ones return
// [ErrCrashed], and the channel is closed.
func (c *Client) CrashAt(n int, after bool) (crashed <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.crashAt, c.crashAfter = c.calls+n, after
	return c.crashed
}

// Count returns how many calls were made.
func (c *Client) Count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.calls
}

// Get answers from the cache.
func (c *Client) Get(ctx context.Context, ref volume.ObjectRef) (metav1.Object, error) {
	return c.view.Get(ctx, ref)
}

// List answers from the cache.
func (c *Client) List(ctx context.Context, kind, namespace string) ([]metav1.Object, error) {
	return c.view.List(ctx, kind, namespace)
}

// Watch reports changes of the cache.
func (c *Client) Watch(ref volume.ObjectRef, f func(volume.ObjectRef)) (stop func()) {
	return c.view.Watch(ref, f)
}

// WatchKind reports changes of the cache.
func (c *Client) WatchKind(kind string, f func(volume.ObjectRef)) (stop func()) {
	return c.view.WatchKind(kind, f)
}

// Create implements [objects.Writer].
func (c *Client) Create(ctx context.Context, object metav1.Object) (metav1.Object, error) {
	return c.write(ctx, "create", object, c.store.Create)
}

// Update implements [objects.Writer].
func (c *Client) Update(ctx context.Context, object metav1.Object) (metav1.Object, error) {
	return c.write(ctx, "update", object, c.store.Update)
}

// UpdateStatus implements [objects.Writer].
func (c *Client) UpdateStatus(ctx context.Context, object metav1.Object) (metav1.Object, error) {
	return c.write(ctx, "update status", object, c.store.UpdateStatus)
}

// Delete implements [objects.Writer].
func (c *Client) Delete(ctx context.Context, ref volume.ObjectRef, preconditions objects.Preconditions) error {
	return c.change(ctx, Call{Verb: "delete", Ref: ref}, func() error { return c.store.Delete(ctx, ref, preconditions) })
}

// Sharing implements [objects.Sharer]: the same faults hit these writes.
func (c *Client) Sharing(outer objects.Writer) objects.Writer {
	if outer != objects.Writer(c) {
		return outer
	}
	return sharing{c, objects.Sharing(c.store)}
}

type sharing struct {
	*Client
	store objects.Writer
}

func (s sharing) Create(ctx context.Context, object metav1.Object) (metav1.Object, error) {
	return s.write(ctx, "create", object, s.store.Create)
}

func (s sharing) Update(ctx context.Context, object metav1.Object) (metav1.Object, error) {
	return s.write(ctx, "update", object, s.store.Update)
}

func (s sharing) UpdateStatus(ctx context.Context, object metav1.Object) (metav1.Object, error) {
	return s.write(ctx, "update status", object, s.store.UpdateStatus)
}

// Load implements [objects.Loader].
func (c *Client) Load(ctx context.Context, floor uint64, all ...metav1.Object) error {
	loader, ok := c.store.(objects.Loader)
	if !ok {
		return errors.ErrUnsupported
	}
	return c.do(ctx, Call{Verb: "load"}, func() error { return loader.Load(ctx, floor, all...) })
}

// Live implements [objects.Cached].
func (c *Client) Live() objects.Reader { return live{c} }

type live struct{ client *Client }

func (l live) Get(ctx context.Context, ref volume.ObjectRef) (object metav1.Object, err error) {
	err = l.client.do(ctx, Call{Verb: "get", Ref: ref}, func() error {
		object, err = l.client.live.Get(ctx, ref)
		return err
	})
	return object, err
}

func (l live) List(ctx context.Context, kind, namespace string) (list []metav1.Object, err error) {
	err = l.client.do(ctx, Call{Verb: "list", Ref: volume.NewObjectRef(kind, namespace, "")}, func() error {
		list, err = l.client.live.List(ctx, kind, namespace)
		return err
	})
	return list, err
}

func (c *Client) write(ctx context.Context, verb string, object metav1.Object,
	f func(context.Context, metav1.Object) (metav1.Object, error)) (stored metav1.Object, err error) {
	err = c.change(ctx, Call{Verb: verb, Ref: refOf(object), Object: object}, func() error {
		stored, err = f(ctx, object)
		return err
	})
	if err != nil {
		return nil, err
	}
	return stored, nil
}

// change is do for a write. If a write takes effect and fails by a fault, its
// error matches [objects.ErrUncertain].
func (c *Client) change(ctx context.Context, call Call, effect func() error) error {
	changed := false
	err := c.do(ctx, call, func() error {
		err := effect()
		changed = err == nil
		return err
	})
	if err != nil && changed {
		return fmt.Errorf("%w: %w", err, objects.ErrUncertain)
	}
	return err
}

func (c *Client) do(ctx context.Context, call Call, effect func() error) error {
	alive, dies := c.count()
	if !alive && !dies {
		return ErrCrashed
	}
	if dies && !c.crashAfter {
		close(c.crashed)
		return ErrCrashed
	}
	err := c.Injector.Do(ctx, call, effect)
	if dies {
		close(c.crashed)
		return ErrCrashed
	}
	return err
}

// count reports whether the process survives this call. If not, dies reports
// whether it dies at this call.
func (c *Client) count() (alive, dies bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls++
	return c.crashAt == 0 || c.calls < c.crashAt, c.calls == c.crashAt
}
