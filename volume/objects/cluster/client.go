package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
)

// Config says how kinds are read. Its zero value suits a node that may list
// claims, PersistentVolumes and storage classes.
type Config struct {
	// Shared are the kinds that are read from the factory's informers. nil:
	// PersistentVolumeClaim, PersistentVolume and StorageClass; empty: none.
	Shared []string
	// Informers are informers outside the factory, by kind, such as the one for
	// this node's pods. They come before the factory's.
	Informers map[string]cache.SharedIndexInformer
	// Polled are the keyed kinds that this identity may get, but neither list nor
	// watch. nil: those that the Node authorizer treats so, which are
	// PersistentVolumeClaim, PersistentVolume and ServiceAccount; empty: none. A
	// shared kind is not polled. An object that is watched here is asked for after
	// 1, 2, 4 … seconds, then every minute, and quickly again once it has changed.
	Polled []string
	// Wait is how long Get waits for the first answer about a keyed object before
	// it is [objects.ErrNotSynced]; 0: 10 seconds. A node that mounts a new pod's
	// volumes so needs one try instead of two.
	Wait time.Duration
	// Logger gets what client-go says about the watches of keyed objects, and why
	// [Client.WaitForSync] still waits; nil: nobody does.
	Logger *slog.Logger
}

// Client reads objects from informers and keyed watches, and writes them through
// a clientset. All methods are safe for concurrent use. Watchers are called from
// goroutines of their own; they may call the client.
type Client struct {
	clientset kubernetes.Interface
	shared    map[string]*sharedKind
	keyed     *keyed
	log       *slog.Logger
	close     func()
}

var (
	_ objects.Source = (*Client)(nil)
	_ objects.Lister = (*Client)(nil)
	_ objects.Writer = (*Client)(nil)
	_ objects.Cached = (*Client)(nil)
)

// FromInformers returns a client over the caller's informers and clientset. It
// makes no request. The factory, which may be nil where no kind is shared from
// it, gets an informer for every shared kind that it did not have: start it
// afterwards. Starting, stopping and shutting down informers stays the caller's.
//
// An unknown kind is an *[objects.UnknownKindError], what is missing a
// *[volume.InvalidSpecError]; an informer that has been stopped is an error.
func FromInformers(factory informers.SharedInformerFactory, clientset kubernetes.Interface, config Config) (*Client, error) {
	if clientset == nil {
		return nil, volume.Invalid("clientset", "is missing")
	}
	config, err := complete(config)
	if err != nil {
		return nil, err
	}
	c := &Client{clientset: clientset, shared: make(map[string]*sharedKind), keyed: newKeyed(clientset, config), log: config.Logger}
	c.close = sync.OnceFunc(c.shutDown)
	all, err := sharedInformers(factory, config)
	if err != nil {
		return nil, err
	}
	for kind, informer := range all {
		s, err := newSharedKind(kind, informer)
		if err != nil {
			c.Close()
			return nil, err
		}
		c.shared[kind] = s
	}
	return c, nil
}

// complete fills in the defaults.
func complete(config Config) (Config, error) {
	if config.Shared == nil {
		config.Shared = []string{"PersistentVolumeClaim", "PersistentVolume", "StorageClass"}
	}
	if config.Polled == nil {
		config.Polled = []string{"PersistentVolumeClaim", "PersistentVolume", "ServiceAccount"}
	}
	for _, kind := range config.Polled {
		if _, err := resourceOf(kind); err != nil {
			return config, err
		}
	}
	if config.Wait == 0 {
		config.Wait = 10 * time.Second
	}
	if config.Logger == nil {
		config.Logger = slog.New(slog.DiscardHandler)
	}
	return config, nil
}

func sharedInformers(factory informers.SharedInformerFactory, config Config) (map[string]cache.SharedIndexInformer, error) {
	all := make(map[string]cache.SharedIndexInformer)
	for kind, informer := range config.Informers {
		if _, err := resourceOf(kind); err != nil {
			return nil, err
		}
		if informer == nil {
			return nil, volume.Invalid("Informers", "has none for kind %s", kind)
		}
		all[kind] = informer
	}
	for _, kind := range config.Shared {
		r, err := resourceOf(kind)
		switch {
		case err != nil:
			return nil, err
		case all[kind] != nil:
			continue
		case factory == nil:
			return nil, fmt.Errorf("kind %s is shared, but there is no informer factory", kind)
		}
		generic, err := factory.ForResource(r.resource)
		if err != nil {
			return nil, fmt.Errorf("informer of kind %s: %w", kind, err)
		}
		all[kind] = generic.Informer()
	}
	return all, nil
}

// Close ends all that the client does in the background: its keyed watches, and
// its handlers at the informers. It returns when no watcher is called any more; reads of shared
// kinds go on to answer from the informers, those of keyed ones ask the API. It
// may be called twice, but not by a watcher.
func (c *Client) Close() { c.close() }

func (c *Client) shutDown() {
	c.keyed.close()
	for _, s := range c.shared {
		s.close()
	}
}

// Get implements [objects.Source]. A shared kind whose informer has not synced
// is [objects.ErrNotSynced]. A keyed object that nobody watches is asked for at
// the API; one that is watched answers with its last known state, and before
// there is any, with the failure of the last look-up.
func (c *Client) Get(ctx context.Context, ref volume.ObjectRef) (metav1.Object, error) {
	r, err := resourceOf(ref.Kind)
	switch {
	case err != nil:
		return nil, err
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	}
	if s := c.shared[ref.Kind]; s != nil {
		return s.get(ref)
	}
	if e := c.keyed.find(ref); e != nil {
		if object, err := e.get(ctx, c.keyed.wait); !errors.Is(err, errUnwatched) {
			return object, err
		}
	}
	return r.liveGet(ctx, c.clientset, ref)
}

// Watch implements [objects.Source]. f is also called when what could not be
// told becomes known. A kind that is unknown is watched in silence.
func (c *Client) Watch(ref volume.ObjectRef, f func(volume.ObjectRef)) (stop func()) {
	r, err := resourceOf(ref.Kind)
	if err != nil {
		return func() {}
	}
	if s := c.shared[ref.Kind]; s != nil {
		return s.watch(ref, f)
	}
	return c.keyed.watch(r, ref, f)
}

// List implements [objects.Lister] for shared kinds, and is
// [objects.ErrNotSynced] until their informer has synced. For another kind it is
// a *[KeyedKindError].
func (c *Client) List(ctx context.Context, kind, namespace string) ([]metav1.Object, error) {
	if _, err := resourceOf(kind); err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	s := c.shared[kind]
	if s == nil {
		return nil, &KeyedKindError{Kind: kind}
	}
	return s.list(namespace)
}

// WatchKind implements [objects.Lister] for shared kinds; another one is watched
// in silence, and its List tells why. It is not told when the informer has
// synced, see [Client.WaitForSync].
func (c *Client) WatchKind(kind string, f func(volume.ObjectRef)) (stop func()) {
	s := c.shared[kind]
	if s == nil {
		return func() {}
	}
	return s.watch(volume.ObjectRef{Kind: kind}, f)
}
