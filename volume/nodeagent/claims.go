package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/util/removetree"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects/persisted"
	"github.com/podvol/podvol/volume/persistentvolume/embedded"
	"github.com/podvol/podvol/volume/standalone"
)

// claims are the cluster's part of this machine while an agent keeps it: claims,
// their volumes, and the controllers that make and reclaim these.
type claims struct {
	cluster *embedded.Cluster
	// changed has a value after a change that pods may wait for. news has the
	// change.
	changed chan struct{}
	news    changes
	ended   <-chan error // nil until start
	end     func() error
	stops   []func()
	// without is the reason why claims are not served; nil: they are. Otherwise
	// the cluster is an empty one, in a directory that is removed with it.
	without   *withoutClaimsError
	removeDir func() error
}

// openClaims loads the claims and volumes of a root directory. It does nothing
// with them before start. If a record is damaged, or all are lost, claims are not
// served, but everything else is.
func openClaims(ctx context.Context, config standalone.ClaimsConfig, restart string) (*claims, error) {
	c := &claims{changed: make(chan struct{}, 1), end: func() error { return nil }, removeDir: func() error { return nil }}
	config.Explained = func(claim types.NamespacedName) {
		c.tell(volume.NewObjectRef("PersistentVolumeClaim", claim.Namespace, claim.Name))
	}
	cluster, err := standalone.OpenClaims(ctx, config)
	c.cluster = cluster
	if damaged, ok := errors.AsType[*persisted.DamagedError](err); ok {
		err = c.openWithout(ctx, config, &withoutClaimsError{damaged, restart})
	} else if errors.Is(err, standalone.ErrClaimsLost) {
		err = c.openWithout(ctx, config, &withoutClaimsError{err, restart})
	}
	if err != nil {
		return nil, errors.Join(err, c.removeDir())
	}
	for _, kind := range []string{"PersistentVolumeClaim", "PersistentVolume", "StorageClass", "Node", "Pod"} {
		c.stops = append(c.stops, c.cluster.Objects().WatchKind(kind, c.tell))
	}
	return c, nil
}

func (c *claims) tell(of volume.ObjectRef) {
	c.news.add(of)
	select {
	case c.changed <- struct{}{}:
	default:
	}
}

// start begins to bind claims and to make and reclaim volumes. A second call does
// nothing. It goes on after ctx has ended, until stop.
func (c *claims) start(ctx context.Context) {
	if c.ended != nil {
		return
	}
	c.ended, c.end = standalone.InBackground(ctx, c.cluster.Run)
}

// stop ends the work that start began, and releases the claims and volumes.
func (c *claims) stop() error {
	for _, stop := range c.stops {
		stop()
	}
	err := c.end()
	if closeErr := c.cluster.Close(); err == nil {
		err = closeErr
	}
	return errors.Join(err, c.removeDir())
}

// changes are the objects that have changed since the last call of take.
type changes struct {
	mu  sync.Mutex
	all map[volume.ObjectRef]bool
}

func (c *changes) add(of volume.ObjectRef) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.all == nil {
		c.all = make(map[volume.ObjectRef]bool)
	}
	c.all[of] = true
}

func (c *changes) take() (all map[volume.ObjectRef]bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	all, c.all = c.all, nil
	return all
}

// withoutClaimsError says why pods with claims are not served.
type withoutClaimsError struct {
	cause   error
	restart string // says what to do once it is mended
}

func (e *withoutClaimsError) Error() string {
	return fmt.Sprintf("claims are not served: %v; then %s", e.cause, e.restart)
}

func (e *withoutClaimsError) Unwrap() error { return e.cause }

// openWithout opens no claims, because a record of them is damaged or lost. So pods
// without claims are still served. Its store is empty and is removed with the
// agent. The disk stays as it is.
func (c *claims) openWithout(ctx context.Context, config standalone.ClaimsConfig, without *withoutClaimsError) error {
	dir, err := os.MkdirTemp("", "podvol-without-claims-")
	if err != nil {
		return err
	}
	c.removeDir = func() error { return removetree.Remove(context.Background(), filepath.Dir(dir), filepath.Base(dir)) }
	config.Dir = filepath.Join(dir, "claims")
	c.without = without
	c.cluster, err = standalone.OpenClaims(ctx, config)
	return err
}

// Apply calls the cluster's Apply. If claims are not served, it leaves out claims
// and volumes.
func (c *claims) Apply(ctx context.Context, declared ...metav1.Object) error {
	if c.without == nil {
		return c.cluster.Apply(ctx, declared...)
	}
	var others []metav1.Object
	for _, object := range declared {
		switch object.(type) {
		case *v1.PersistentVolumeClaim, *v1.PersistentVolume:
		default:
			others = append(others, object)
		}
	}
	return c.cluster.Apply(ctx, others...)
}

// Place calls the cluster's Place. If claims are not served, it does so for pods
// without claims only.
func (c *claims) Place(ctx context.Context, pod *v1.Pod) error {
	if c.without != nil && standalone.UsesClaims([]*v1.Pod{pod}) {
		return c.without
	}
	return c.cluster.Place(ctx, pod)
}

// PodsComplete calls the cluster's PodsComplete, unless claims are not served.
func (c *claims) PodsComplete() {
	if c.without == nil {
		c.cluster.PodsComplete()
	}
}

// Prune calls the cluster's Prune, unless claims are not served.
func (c *claims) Prune(ctx context.Context, declared embedded.Declared) error {
	if c.without == nil {
		return c.cluster.Prune(ctx, declared)
	}
	return nil
}
