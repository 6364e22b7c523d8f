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

// Config says how kinds are read. The zero value is for a node that may list
// claims, PersistentVolumes and storage classes.
type Config struct {
	// Shared are the kinds that are read from the factory's informers; nil:
	// PersistentVolumeClaim, PersistentVolume and StorageClass; empty: none.
	Shared []string
	// Informers are informers outside the factory, by kind, such as the informer
	// for this node's pods. They take precedence over the factory's.
	Informers map[string]cache.SharedIndexInformer
	// Polled are the keyed kinds that this identity may get, but neither list nor
	// watch.
	//
	//   - nil: PersistentVolumeClaim, PersistentVolume and ServiceAccount, as
	//     with the Node authorizer.
	//   - empty: none.
	//
	// A shared kind is not polled. A watched object is read after 1, 2, 4 …
	// seconds, then every minute, and quickly again once it has changed.
	Polled []string
	// Wait is how long Get waits for the first answer about a keyed object before
	// it returns [objects.ErrNotSynced]; 0: 10 seconds. So a node needs one
	// attempt and not two for a new pod's volumes.
	Wait time.Duration
	// Logger gets client-go's messages about the watches of keyed objects, and
	// the reason why [Client.WaitForSync] still waits; nil: they are dropped.
	Logger *slog.Logger
}

// Client reads objects from informers and keyed watches. It writes them through a
// clientset. All methods are safe for concurrent use. Watchers are called from
// goroutines of their own. They may call the client.
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
// makes no request.
//
//   - The factory may be nil if no kind is shared from it. It gets an informer
//     for every shared kind that it did not have, so start it afterwards.
//   - The caller starts, stops and shuts down the informers.
//   - An unknown kind is an *[objects.UnknownKindError]. A missing argument is a
//     *[volume.InvalidSpecError]. A stopped informer is an error.
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

// complete sets the defaults.
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

// Close ends the client's work in the background: its keyed watches, and its
// handlers at the informers. It returns when no watcher is called any more. Then
// reads of shared kinds still answer from the informers, and reads of keyed kinds
// go to the API. It may be called twice, but not by a watcher.
func (c *Client) Close() { c.close() }

func (c *Client) shutDown() {
	c.keyed.close()
	for _, s := range c.shared {
		s.close()
	}
}

// Get implements [objects.Source].
//
//   - A shared kind whose informer has not synced is [objects.ErrNotSynced].
//   - A keyed object without a watch is read from the API.
//   - A keyed object with a watch has its last known state. Before the first
//     state, the error is the last look-up's.
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

// Watch implements [objects.Source]. f is also called when an unknown state
// becomes known. For an unknown kind f is never called.
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

// List implements [objects.Lister] for shared kinds. Until their informer has
// synced, the error is [objects.ErrNotSynced]. For another kind it is a
// [ErrKeyedKind].
func (c *Client) List(ctx context.Context, kind, namespace string) ([]metav1.Object, error) {
	if _, err := resourceOf(kind); err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	s := c.shared[kind]
	if s == nil {
		return nil, keyedKind(kind)
	}
	return s.list(namespace)
}

// WatchKind implements [objects.Lister] for shared kinds. For another kind f is
// never called; the error of List says why. f is not called when the informer has
// synced, see [Client.WaitForSync].
func (c *Client) WatchKind(kind string, f func(volume.ObjectRef)) (stop func()) {
	s := c.shared[kind]
	if s == nil {
		return func() {}
	}
	return s.watch(volume.ObjectRef{Kind: kind}, f)
}
