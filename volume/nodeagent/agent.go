package nodeagent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/host"
	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/localdiscovery"
	"github.com/podvol/podvol/volume/nodeagent/manifestdir"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/persistentvolume"
	"github.com/podvol/podvol/volume/standalone"
	"github.com/podvol/podvol/volume/volumemanager"
)

// Config names the directory of manifests whose volumes an agent keeps mounted,
// and where.
type Config struct {
	// Dir is the absolute path of the directory of manifests.
	Dir string
	// Accept takes the directory as it is, also if it is empty or another one
	// than at the last start.
	Accept bool

	// RootDir is the absolute path below which volumes are mounted and claims are
	// kept.
	RootDir string
	// NodeName is this node's name: pods of other nodes are left out.
	NodeName string
	// Mounter mounts. Nil: the kernel's mounter.
	Mounter mount.Interface
	// HostFiles makes files outside the root directory. Nil: the machine's files.
	HostFiles volume.HostFiles
	// Containers reports when a pod's containers are gone. Nil: the agent runs
	// none.
	Containers volumemanager.PodContainers
	// Store keeps the objects. Nil: a store of the agent's own.
	Store *objects.Store
	// Adopt adopts volumes without a record.
	Adopt bool
	// Plugins replace stock plugins that mount.
	Plugins []volume.VolumePlugin
	// Translator is [volumemanager.Config]'s.
	Translator volume.Translator
	// ClaimPlugins replace stock plugins that make, release and delete volumes.
	// They must be other instances than Plugins.
	ClaimPlugins []volume.VolumePlugin
	// VolumeDirs are directories for new volumes, beside the root directory.
	VolumeDirs []string
	// Disks are classes of disks that are offered as local volumes, also disks
	// that appear later.
	Disks []localdiscovery.Class
	// UnmountOnExit unmounts all volumes when Run ends, for at most UnmountTimeout.
	UnmountOnExit bool
	// UnmountTimeout limits UnmountOnExit; 0: two minutes and three seconds, as a
	// kubelet waits.
	UnmountTimeout time.Duration

	// Manager names the agent as a field manager, and in messages to processes
	// that wait for its claims. Empty: "nodeagent" and the directory.
	Manager string
	// Events takes events about pods; nil drops them.
	Events volume.EventSink
	// ClaimEvents takes events about claims and volumes; nil drops them.
	ClaimEvents persistentvolume.EventRecorder
	// Tracer records a span for each operation on a volume, as
	// [volumemanager.Config]'s does, and for each on the storage of claims, as
	// [persistentvolume.ControllerConfig]'s does; nil: nothing is recorded, at no cost.
	Tracer volume.Tracer
	// Logger may be nil.
	Logger *slog.Logger
	// Notice receives a sentence for people about each news, such as a refused
	// file; nil drops it. Calls may come from several goroutines.
	Notice func(sentence string)
	// Status receives each outcome of an operation on a volume, and all volumes
	// of a pod that waits for a claim. Run and Close call it from one goroutine.
	// Its error ends Run. Nil drops the statuses.
	Status func(volumemanager.VolumeStatus) error
	// Refused receives all refused files each time that they change, also when none is left,
	// and the directory while a person has a question to answer about it.
	// Run calls it from one goroutine. Nil drops them.
	Refused func([]manifestdir.Refusal)
	// Hints are for notices.
	Hints Hints
}

// Hints are the words of notices for things that a person can do. An empty hint
// names the field of [Config].
type Hints struct {
	// Accept names how Config.Accept is set, such as "--accept-manifests".
	Accept string
	// Adopt names how Config.Adopt is set.
	Adopt string
	// Restart says what to do once a damaged record is repaired.
	Restart string
	// Delete returns the command that deletes a claim or volume without a
	// manifest.
	Delete func(volume.ObjectRef) string
}

func (h Hints) complete() Hints {
	h.Accept, h.Adopt = cmp.Or(h.Accept, "Config.Accept"), cmp.Or(h.Adopt, "Config.Adopt")
	h.Restart = cmp.Or(h.Restart, "start the agent again")
	if h.Delete == nil {
		h.Delete = func(volume.ObjectRef) string { return "the package volume/persistentvolume/embedded" }
	}
	return h
}

// kubeletPodWait is how long a kubelet waits for a pod's volumes.
const kubeletPodWait = 2*time.Minute + 3*time.Second

func (c Config) complete() Config {
	c.Hints = c.Hints.complete()
	c.UnmountTimeout = cmp.Or(c.UnmountTimeout, kubeletPodWait)
	c.Manager = cmp.Or(c.Manager, "nodeagent "+c.Dir)
	if c.Containers == nil {
		c.Containers = noContainers{}
	}
	if c.Store == nil {
		c.Store = objects.NewStore()
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	c.Mounter = host.Wrap(c.Mounter, c.Logger) // once for the node and its claims
	if c.Notice == nil {
		c.Notice = func(string) {}
	}
	if c.Refused == nil {
		c.Refused = func([]manifestdir.Refusal) {}
	}
	if c.Status == nil {
		c.Status = func(volumemanager.VolumeStatus) error { return nil }
	}
	return c
}

// ErrLeftMounted says that a volume is still mounted although
// [Config].UnmountOnExit should have unmounted it. Status has the volume, with
// its error.
var ErrLeftMounted = errors.New("volumes are mounted still")

// Agent keeps the volumes of the pods in a directory of manifests mounted. Any
// goroutine may call Explain and Node.
type Agent struct {
	config   Config
	node     *standalone.Node
	watch    *manifestdir.Watch
	dir      *manifestdir.Directory
	keep     *keeper
	statuses *statusQueue
	closers  []func() error // in the order of what they close

	due      *time.Timer           // of the next look at missing or refused objects
	want     *manifestdir.Contents // as seen last
	volumes  int                   // of its pods
	unpruned bool                  // since then
	told     string                // about the manifests, last
	refused  []manifestdir.Refusal // as told last
	complete bool                  // the node has been told that it knows all pods
	failed   bool                  // something is still mounted that should not be
}

// Start takes the root directory and its claims, and recovers the mounts there.
// It mounts nothing: Run does. Close must be called in the end, unless Start
// fails. If the root directory cannot be used, the error is a
// *[volumemanager.RootError].
//
// While a record of claims is damaged, pods without claims are served, and a
// notice says so.
func Start(ctx context.Context, c Config) (_ *Agent, err error) {
	c = c.complete()
	a := &Agent{config: c, statuses: newStatusQueue()}
	defer func() {
		if err != nil {
			err = errors.Join(err, a.Close())
		}
	}()
	resizes := new(standalone.Resizes)
	nodeConfig := standalone.NodeConfig{
		RootDir: c.RootDir, NodeName: c.NodeName, Objects: c.Store, Mounter: c.Mounter, HostFiles: c.HostFiles,
		Containers: c.Containers, Adopt: c.Adopt, Plugins: c.Plugins, Events: c.Events, Tracer: c.Tracer, Logger: c.Logger, Resizes: resizes, Translator: c.Translator, DetachTimeout: c.UnmountTimeout,
	}
	if a.node, err = standalone.StartNode(ctx, nodeConfig); err != nil {
		return nil, err
	}
	a.closers = append(a.closers, a.node.Stop)
	claims, err := openClaims(ctx, standalone.ClaimsConfig{
		RootDir: c.RootDir, Node: nodeConfig, Manager: c.Manager, Store: c.Store, Events: c.ClaimEvents,
		VolumeDirs: c.VolumeDirs, Plugins: c.ClaimPlugins, Mounted: standalone.MountedOn(a.node.Manager),
		MountedFor: standalone.MountedFor(a.node.Manager), Logger: c.Logger,
	}, c.Hints.Restart)
	if err != nil {
		return nil, err
	}
	a.closers = append(a.closers, claims.stop)
	resizes.Use(claims.cluster)
	// The watch comes before the first look, so that no change goes unseen.
	if a.watch, err = manifestdir.NewWatch(c.Dir); err != nil {
		return nil, err
	}
	a.closers = append(a.closers, func() error { a.watch.Close(); return nil })
	if err := a.nameUnrecorded(); err != nil {
		return nil, err
	}
	disks := c.Disks
	if claims.without != nil {
		c.Notice(claims.without.Error())
		disks = nil // of which claims would be told
	}
	if err := a.discover(ctx, disks, claims); err != nil {
		return nil, err
	}
	a.dir = manifestdir.New(manifestdir.Config{
		Dir: c.Dir, KnownFile: filepath.Join(volumemanager.StateDir(c.RootDir), knownFile), NodeName: c.NodeName,
		Check: a.node.CheckPod, Mounted: a.node.Explain, Accept: c.Accept, AcceptHint: c.Hints.Accept, Notice: c.Notice,
	})
	a.keep = newKeeper(a.node.Manager, claims, a.statuses.put, c.Notice, c.Hints.Delete)
	unsubscribe := a.node.Subscribe(a.statuses.take)
	a.closers = append(a.closers, func() error { unsubscribe(); return nil })
	return a, nil
}

// knownFile is the name of the file with the known manifests, in the state directory.
const knownFile = "manifests"

// nameUnrecorded says how many volumes have no record.
func (a *Agent) nameUnrecorded() error {
	rootDir := a.config.RootDir
	mounts := table.Kernel()
	rows, _ := volumemanager.Inspect(rootDir, mounts) // the manager has told of unreadable ones
	rows = slices.DeleteFunc(rows, func(v volumemanager.VolumeStatus) bool { return !errors.Is(v.Err, volumemanager.ErrNoRecord) })
	if len(rows) > 0 {
		a.config.Notice(fmt.Sprintf("%d volumes below %s are left alone, since podvol has no record of them, such as %s; if no other agent uses this root directory, %s takes them over",
			len(rows), rootDir, rows[0].Path, a.config.Hints.Adopt))
	}
	return nil
}

// discover offers disks among the claims' volumes until Close.
func (a *Agent) discover(ctx context.Context, classes []localdiscovery.Class, claims *claims) error {
	if len(classes) == 0 {
		return nil
	}
	mounts := table.Kernel()
	d := &localdiscovery.Discoverer{Objects: claims.cluster.Objects(), Mounts: mounts, NodeName: a.config.NodeName, Classes: classes, Events: a.config.ClaimEvents, Logger: a.config.Logger}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := d.Run(ctx); err != nil && ctx.Err() == nil {
			a.config.Notice("no disks are offered any more: " + err.Error())
		}
	}()
	a.closers = append(a.closers, func() error { cancel(); <-ended; return nil })
	return nil
}

// Node is the volume manager. Its pods are declared by the agent, and by no other
// caller.
func (a *Agent) Node() *volumemanager.Manager { return a.node.Manager }

// Explain returns the volumes of the node, and all volumes of pods that wait for
// claims.
func (a *Agent) Explain() []volumemanager.VolumeStatus {
	return append(a.node.Explain(), a.keep.waiting.rows()...)
}

// Close releases the claims and the root directory, and passes the last outcomes
// to Status. Mounts stay. It must be called once, after Run.
func (a *Agent) Close() error {
	var errs []error
	for _, closing := range slices.Backward(a.closers) {
		errs = append(errs, closing())
	}
	return errors.Join(append(errs, a.report(nil))...)
}

// report passes the queued statuses to Status, and to see.
func (a *Agent) report(see func(volumemanager.VolumeStatus)) error {
	var errs []error
	for _, v := range a.statuses.drain() {
		errs = append(errs, a.config.Status(v))
		if see != nil {
			see(v)
		}
	}
	return errors.Join(errs...)
}

// Run keeps volumes mounted until ctx ends. Then mounts stay, unless
// UnmountOnExit. It must be called at most once. Its error is [ErrLeftMounted],
// or the error that ended it before, such as one of Status.
func (a *Agent) Run(ctx context.Context) error {
	if err := a.untilStopped(ctx); err != nil {
		return err
	}
	if a.failed {
		return ErrLeftMounted
	}
	return nil
}

func (a *Agent) untilStopped(ctx context.Context) error {
	a.due = time.NewTimer(afterRefusal)
	defer a.due.Stop()
	a.due.Stop()
	// The first resync comes before any change of claims or disks: until then it is
	// not known which pods are wanted.
	err := a.resync(ctx)
	for err == nil || ctx.Err() != nil {
		select {
		case <-ctx.Done():
			return a.end(ctx)
		case <-a.watch.Changed():
			err = a.resync(ctx)
		case <-a.due.C:
			err = a.resync(ctx)
		case uid := <-a.keep.replaced.gone:
			a.keep.reapply(uid)
			err = a.resync(ctx)
		case uid := <-a.keep.left:
			a.keep.forget(ctx, uid)
		case <-a.keep.claims.changed:
			if err = a.keep.placeWaiting(ctx, a.keep.claims.news.take()); err == nil {
				err = a.pruneAndReport(ctx)
			}
		case err = <-a.keep.claims.ended:
			if err == nil {
				err = errors.New("claims and volumes are not kept any more")
			}
		case <-a.statuses.news:
			err = a.report(func(v volumemanager.VolumeStatus) { a.keep.see(ctx, v) })
		}
	}
	return err
}

// resync reads the directory and makes its objects and pods the wanted state.
func (a *Agent) resync(ctx context.Context) error {
	again := a.dir.Scan()
	a.want, a.volumes = a.dir.Wanted(), 0
	for _, pod := range a.want.Pods {
		a.volumes += len(pod.Spec.Volumes)
	}
	refused, err := a.keep.apply(ctx, a.want)
	if err != nil {
		return err
	}
	if refused && (again == 0 || again > afterRefusal) {
		again = afterRefusal
	}
	if again > 0 {
		a.due.Reset(again)
	}
	a.unpruned = true
	return a.pruneAndReport(ctx)
}

// pruneAndReport releases everything that is no longer wanted, once all wanted objects
// are known. It then reports the state.
func (a *Agent) pruneAndReport(ctx context.Context) error {
	if !a.complete && a.dir.Complete() {
		a.complete = true
		a.keep.complete(ctx)
	}
	if a.complete && a.unpruned {
		held, refused, err := a.keep.prune(ctx, a.want, a.dir.Taken())
		if err != nil {
			return err
		}
		if a.unpruned = held || refused; refused {
			a.due.Reset(afterRefusal)
		}
	}
	a.tell()
	return nil
}

// tell reports the state if it is new.
func (a *Agent) tell() {
	told := fmt.Sprintf("the manifests declare %s of %s", number(a.volumes, "volume"), number(len(a.want.Pods), "pod"))
	refused := a.dir.Refused()
	files := slices.DeleteFunc(slices.Clone(refused), func(r manifestdir.Refusal) bool { return r.Question })
	if n := len(files); n > 0 {
		told += "; " + number(n, "file") + " refused"
	}
	if !slices.Equal(refused, a.refused) {
		a.refused = refused
		a.config.Refused(slices.Clone(refused))
	}
	if !a.complete && !a.dir.AllRead() {
		told += "; pods in no manifest are kept until every manifest has been read"
	}
	if a.want.Held != "" {
		told += "; " + a.want.Held
	}
	if a.dir.Question() != "" {
		told += "; " + a.dir.Question()
	}
	if told != a.told {
		a.told = told
		a.config.Notice(told)
	}
}

// number is so many of something.
func number(n int, of string) string {
	if n == 1 {
		return "1 " + of
	}
	return fmt.Sprintf("%d %ss", n, of)
}

// end unmounts the volumes that are to be unmounted when the agent ends.
func (a *Agent) end(ctx context.Context) error {
	if !a.config.UnmountOnExit {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), a.config.UnmountTimeout)
	defer cancel()
	var mu sync.Mutex
	a.node.TearDownPods(ctx, a.node.Explain(), func(v volumemanager.VolumeStatus) {
		if v.Err != nil {
			mu.Lock()
			defer mu.Unlock()
			a.failed = true
			a.statuses.put(v)
		}
	})
	return nil
}

// afterRefusal is the back-off after a failed apply, unless a file changes
// before. It is for full disks.
const afterRefusal = 10 * time.Second
