package embedded

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/mount/host"
	"github.com/podvol/podvol/util/keylock"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/objects/persisted"
	"github.com/podvol/podvol/volume/persistentvolume"
	"github.com/podvol/podvol/volume/persistentvolume/release"
)

// Config is what a [Cluster] is made of.
type Config struct {
	// Dir is where claims and volumes are kept; it is made where it is missing
	// (0700). One process has it at a time.
	Dir string
	// NodeName is this machine's name as a node: the only one there is.
	NodeName string
	// Manager names the applying program; [Cluster.Prune] deletes only what the same
	// one has applied. Empty: "podvol".
	Manager string
	// Plugins make, empty and delete storage. They are instances of their own:
	// none that a node uses too.
	Plugins []volume.VolumePlugin
	// Host is what these plugins are given: at least RootDir and Mounter.
	// NodeName and Releases are filled in, and so are Secrets and CSIDrivers where they
	// are nil: the objects'. Mounter is given what it lacks (host.Wrap).
	Host volume.Host
	// Mounted returns the mounts on this machine and their pods, declared or not. It
	// is asked before storage is emptied or deleted; an error keeps it, and ends
	// [Open] unless it matches [ErrIncomplete]. Nil: nothing is mounted but what
	// pods among the objects use.
	Mounted func(context.Context) ([]Mounted, error)
	// MountedFor is that part of what Mounted says that is for the pod of that UID,
	// or of one of these claims for whichever pod; each may be empty. It is asked
	// for every pod that is applied or placed, so that its cost must not grow with
	// the node. Nil: Mounted is asked.
	MountedFor func(ctx context.Context, pod types.UID, claims []types.NamespacedName) ([]Mounted, error)
	// Only limits what the cluster works on; see
	// [persistentvolume.ControllerConfig.Only]. Nil: everything.
	Only func(volume.ObjectRef) bool
	// Store is where the objects are put, for a node that was started before on
	// the same one; nil: a new one. It must hold no claims and no volumes yet, and
	// they are written to it only through [Cluster.Objects].
	Store *objects.Store
	// LockTimeout is how long Open waits for another process to let go of Dir; 0
	// means 10 seconds. Logger is told of a wait of more than a second, with the process.
	LockTimeout time.Duration
	// Explained is called after what [Cluster.Explain] says of a claim has changed,
	// from several goroutines; it must not block. Nil: it is not called.
	Explained func(types.NamespacedName)
	// Events takes what happens to claims and volumes, Logger attempts that
	// failed and are made again; nil drops them.
	Events persistentvolume.EventRecorder
	Logger *slog.Logger
	// Tracer is [persistentvolume.ControllerConfig]'s; nil: nothing is recorded.
	Tracer volume.Tracer
}

// Mounted is a volume that is mounted for a pod.
type Mounted struct {
	Pod    types.NamespacedName
	PodUID types.UID
	// Volume names its directory: the PersistentVolume, for one of a claim.
	Volume string
	// Claim is the claim that it was mounted for; empty for another volume.
	Claim types.NamespacedName
	// By names the user that has it mounted, if that is not this machine's node
	// ([Cluster.Use]).
	By string `json:"-"`
}

// Cluster is the objects of one machine and the controller of its claims. All
// methods are safe for concurrent use.
type Cluster struct {
	nodeName, manager string
	dir               string
	store             *objects.Store
	objects           *persisted.Store
	controller        *persistentvolume.Controller
	plugins           *volume.VolumePluginMgr
	mounted           func(context.Context) ([]Mounted, error)
	mountedFor        func(context.Context, types.UID, []types.NamespacedName) ([]Mounted, error)
	log               *slog.Logger

	applying keylock.Map[struct{}]
	placing  keylock.Map[struct{}]
	running  atomic.Bool
	users    users
	reasons  reasons
	complete func() // once

	mu    sync.Mutex
	plain map[volume.ObjectRef]bool          // applied, and in memory only
	later map[volume.ObjectRef]metav1.Object // to be made when the object of its name is gone
}

// Open loads the claims and volumes that are kept in a directory, and locks it until Close.
// All other objects must be applied anew. Nothing is bound or made before [Cluster.Run].
//
// The error matches [ErrBusy] if another process has the directory for too long, and a
// *[persisted.DamagedError] if a file cannot be understood: a guess could show data to
// another claim. An empty node name is a *[volume.InvalidSpecError]; a Store with one of
// the claims or volumes matches [objects.ErrExists]. Errors of Mounted and of the plugins'
// Init are returned, too, with the directory free.
func Open(ctx context.Context, config Config) (*Cluster, error) {
	c := &Cluster{
		nodeName: config.NodeName, manager: config.Manager, dir: config.Dir, store: config.Store, mounted: config.Mounted, mountedFor: config.MountedFor, log: config.Logger,
		plugins: &volume.VolumePluginMgr{},
		plain:   make(map[volume.ObjectRef]bool), later: make(map[volume.ObjectRef]metav1.Object),
	}
	if c.manager == "" {
		c.manager = "podvol"
	}
	if c.store == nil {
		c.store = objects.NewStore()
	}
	if c.log == nil {
		c.log = slog.New(slog.DiscardHandler)
	}
	if config.NodeName == "" {
		return nil, volume.Invalid("NodeName", "must not be empty")
	}
	records, err := openLocked(ctx, c.store, c.manager, config)
	if err != nil {
		return nil, err
	}
	c.objects = records
	if err := c.start(ctx, config); err != nil {
		return nil, errors.Join(err, records.Close())
	}
	return c, nil
}

func (c *Cluster) start(ctx context.Context, config Config) error {
	node := config.Host
	node.NodeName = types.NodeName(c.nodeName)
	node.Mounter = host.Wrap(node.Mounter, config.Logger)
	node.Releases = &release.Verifier{Objects: c.objects, Plugins: c.plugins, OtherUses: c.usesByMounts}
	read := objects.Roles{Source: c.objects}
	if node.Secrets == nil {
		node.Secrets = read
	}
	if node.CSIDrivers == nil {
		node.CSIDrivers = read
	}
	if err := c.plugins.InitPlugins(config.Plugins, &node); err != nil {
		return err
	}
	c.reasons.start(config)
	complete := make(chan struct{})
	c.complete = sync.OnceFunc(func() { close(complete) })
	c.controller = persistentvolume.NewController(persistentvolume.ControllerConfig{
		Objects: c.objects, Plugins: c.plugins, Events: config.Events, Tracer: config.Tracer, Logger: c.log, PodsComplete: complete, NodeName: c.nodeName,
		Explained: c.reasons.explained, Only: config.Only, TrustedClaims: true, // declarable takes them from no manifest
	})
	if _, err := c.applyPlain(ctx, c.nodeRef(), c.defaultNode()); err != nil {
		return err
	}
	if err := c.loadUsers(ctx); err != nil {
		return err
	}
	return c.addMounted(ctx, config.Mounted)
}

// Objects returns the objects, for a node that reads them and for programs that
// change them otherwise than by manifests. Claims and volumes are written to disk
// first. After Close they can still be read.
func (c *Cluster) Objects() objects.Client { return c.objects }

// Run binds claims, makes storage for them and reclaims it until ctx ends, and
// returns nil then, after all that it began has ended. It can be called once
// ([persistentvolume.ErrRunOnce]). Objects applied before are synced together:
// each claim gets the declared volume that fits it best.
func (c *Cluster) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	c.running.Store(true)
	defer c.running.Store(false)
	var remaking sync.WaitGroup
	remaking.Go(func() { c.remake(ctx) })
	remaking.Go(func() { c.awaitUsers(ctx) })
	remaking.Go(func() { c.recordReasons(ctx) })
	err := c.controller.Run(ctx)
	cancel()
	remaking.Wait()
	c.writeReasons(ctx, true)
	return err
}

// PodsComplete says that all pods that use volumes of this machine have been
// applied. Until then no claim in deletion goes, and no storage is emptied or
// deleted: the pod that uses it may not have been announced yet. A program that
// knows some pods only never calls it. It may be called twice.
func (c *Cluster) PodsComplete() { c.complete() }

// Idle returns once there is nothing to do; see
// [persistentvolume.Controller.Idle].
func (c *Cluster) Idle(ctx context.Context) error { return c.controller.Idle(ctx) }

// Explain says why a claim is not bound, nil if it is; see
// [persistentvolume.Controller.Explain]. Where the class makes volumes in a
// cluster, but not here, the error matches [ErrNotProvisionedHere]. Of a claim that
// does not exist it matches [volume.ErrNotFound].
func (c *Cluster) Explain(ctx context.Context, claim types.NamespacedName) error {
	return c.withClass(ctx, claim, c.controller.Explain(claim))
}

// Close gives the directory back, after Run has returned; it waits for writes
// under way. A second call does nothing but return an error that matches
// [os.ErrClosed].
func (c *Cluster) Close() error { return c.objects.Close() }

// remake applies an object again that was declared while another of its name was
// being deleted, when that is gone.
func (c *Cluster) remake(ctx context.Context) {
	changed, stop := c.watch(kindClaim, kindVolume)
	defer stop()
	for {
		for _, object := range c.waiting() {
			if err := c.Apply(ctx, object); err != nil && !errors.Is(err, ErrBeingDeleted) && ctx.Err() == nil {
				c.log.WarnContext(ctx, "not made anew", "error", err)
			}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

func (c *Cluster) waiting() []metav1.Object {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := make([]metav1.Object, 0, len(c.later))
	for _, object := range c.later {
		all = append(all, object)
	}
	return all
}

// watch returns a channel that has a value after an object of some kinds has
// changed.
func (c *Cluster) watch(kinds ...string) (changed <-chan struct{}, stop func()) {
	news := make(chan struct{}, 1)
	stops := make([]func(), 0, len(kinds))
	for _, kind := range kinds {
		stops = append(stops, c.objects.WatchKind(kind, func(volume.ObjectRef) {
			select {
			case news <- struct{}{}:
			default:
			}
		}))
	}
	return news, func() {
		for _, stop := range stops {
			stop()
		}
	}
}
