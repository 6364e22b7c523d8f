package hostpath

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/util/blockingcall"
	"github.com/podvol/podvol/util/eintr"
	"github.com/podvol/podvol/util/pathin"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/pluginbase"
	"github.com/podvol/podvol/volume/internal/sharedirs"
	"github.com/podvol/podvol/volume/internal/wipe"
	"github.com/podvol/podvol/volume/reclaim"
	"github.com/podvol/podvol/volume/recyclerpod"
	"github.com/podvol/podvol/volume/validation"
)

const (
	defaultMinimumTimeout = 60 * time.Second
	defaultTimeoutPerGiB  = 30 * time.Second
	defaultProgressEvery  = 10 * time.Second
	maxTimeout            = math.MaxInt32 * time.Second
)

// emptier has the capability of a plugin that recycles.
type emptier struct{ plugin *plugin }

// recycling is the emptying of one released volume.
type recycling struct {
	release
	config  RecycleConfig
	timeout time.Duration
	done    atomic.Int64
	events  eventGate
}

// Recycle implements [volume.RecyclableVolumePlugin] as [RecycleConfig] says. The
// host must have the role [volume.ReleaseVerifier], whose refusal is returned and
// ends a recycling under way; else the error is a *[volume.MissingRoleError]. The
// spec must be the stored PersistentVolume's, with UIDs. The error is a
// *[reclaim.DryRunError], a *[reclaim.IncompleteError] that says how far it came,
// or the obstacle, such as a *[volume.InvalidSpecError], [ErrOtherNode],
// [volume.ErrInUse] or [ErrHoldsVolumes], in a *[volume.Error]. Record is not
// called after the return.
func (m emptier) Recycle(ctx context.Context, pvName string, spec *volume.Spec, record volume.RecycleEventRecorder) error {
	r, err := m.plugin.newRecycling(pvName, spec)
	if err == nil {
		r.events.to(record)
		defer r.events.to(nil)
		err = r.recycle(ctx)
	}
	if err != nil {
		return volumeError("Recycle", pvName, err)
	}
	return nil
}

// newRecycling refuses volumes that must not be emptied, as far as the volume
// itself says so.
func (p *plugin) newRecycling(pvName string, spec *volume.Spec) (*recycling, error) {
	source, err := p.Source(spec)
	if err != nil {
		return nil, err
	}
	pv := spec.PersistentVolume
	switch {
	case spec.Volume != nil || pv == nil || pv.Name != pvName:
		return nil, volume.Invalid("volume", "is not PersistentVolume %q; nothing else can be recycled", pvName)
	case pv.Spec.PersistentVolumeReclaimPolicy != v1.PersistentVolumeReclaimRecycle:
		return nil, volume.Invalid("persistentVolumeReclaimPolicy", "is %q, not %q", pv.Spec.PersistentVolumeReclaimPolicy, v1.PersistentVolumeReclaimRecycle)
	case recyclerpod.ReleaseID(pv) == "":
		return nil, volume.Invalid("claimRef", "the UIDs of the PersistentVolume and of the claim that has left it are needed")
	case pluginbase.ReadOnly(spec):
		return nil, volume.Invalid("accessModes", "the PersistentVolume can only be read, so no claim has written what is in it; use reclaim policy %s", v1.PersistentVolumeReclaimRetain)
	}
	if err := pluginbase.CheckFilesystem(spec, "hostPath"); err != nil {
		return nil, err
	}
	if err := validation.CheckAbsolutePath("hostPath.path", source.Path); err != nil {
		return nil, err
	}
	if err := p.checkHere(pv, p.ownLabels()); err != nil {
		return nil, volume.NothingDone(err)
	}
	r := &recycling{config: p.config.Recycle, timeout: p.config.Recycle.timeout(pv)}
	r.release = release{plugin: p, pv: pv.DeepCopy(), path: filepath.Clean(source.Path)}
	return r, nil
}

func (p *plugin) ownLabels() map[string]string {
	if name := p.config.Provision.Hostname; name != "" {
		return map[string]string{v1.LabelHostname: name}
	}
	return nil
}

// timeout is how long emptying a volume of this capacity may take.
func (c RecycleConfig) timeout(pv *v1.PersistentVolume) time.Duration {
	capacity := pv.Spec.Capacity[v1.ResourceStorage]
	gib := capacity.Value() >> 30
	least := cmp.Or(c.MinimumTimeout, defaultMinimumTimeout)
	each := cmp.Or(c.TimeoutPerGiB, defaultTimeoutPerGiB)
	if gib > int64(maxTimeout/each) {
		return maxTimeout
	}
	return min(maxTimeout, max(least, time.Duration(gib)*each))
}

func (r *recycling) recycle(ctx context.Context) error {
	if err := r.verifyUnused(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, r.timeout,
		fmt.Errorf("the %s that a volume of this size gets are over: %w", r.timeout, context.DeadlineExceeded))
	defer cancel()
	err := r.plugin.do(ctx, "recycle "+r.path, func() error { return r.scrub(ctx) })
	if abandoned, ok := errors.AsType[*blockingcall.AbandonedError](err); ok && abandoned.Started {
		return &reclaim.IncompleteError{Done: r.done.Load(), Err: err}
	}
	return err
}

// scrub takes the configured action. It may outlive the call to Recycle.
func (r *recycling) scrub(ctx context.Context) error {
	root, path, err := r.open()
	if err != nil {
		return volume.NothingDone(err)
	}
	defer root.Close()
	if err := r.verifyHoldsNoBase(ctx, root); err != nil {
		return err
	}
	if err := r.verifyUnused(ctx); err != nil {
		return err
	}
	options := wipe.Options{
		MayGoOn: func(ctx context.Context) error { return errors.Join(r.verifyUnused(ctx), r.verifyNoBase(root)) },
		Every:   cmp.Or(r.config.ProgressEvery, defaultProgressEvery), Report: r.report, Count: &r.done,
	}
	switch r.config.Action {
	case RecycleArchive:
		return r.archive(ctx, root, path, options)
	case RecycleDelete:
		r.events.normal("deleting the contents of %s, in no more than %s", r.path, r.timeout)
		return r.finished("deleted", wipe.Empty(ctx, root, options))
	}
	return r.dryRun(ctx, root)
}

// open opens the volume's directory, and returns where it really lies, which must
// be where volumes may be emptied.
func (r *recycling) open() (root *os.File, path string, err error) {
	root, err = os.OpenFile(r.path, unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, "", err
	}
	if path, err = pathOf(root); err == nil {
		err = r.mayEmpty(path)
	}
	if err != nil {
		root.Close()
		return nil, "", err
	}
	return root, path, nil
}

func (r *recycling) mayEmpty(path string) error {
	pods, err := r.plugin.podsDir()
	if err != nil {
		return err
	}
	if overlap(pods, path) {
		return volume.Invalid("hostPath.path", "%q holds the volumes of this node's pods (%s), or lies in them, and is not emptied", path, pods)
	}
	for _, dir := range r.config.Below {
		real, err := filepath.EvalSymlinks(dir)
		if err == nil && pathin.Strictly(real, path) {
			return nil
		}
	}
	return volume.Invalid("hostPath.path", "%q is not strictly below a directory in which this node empties volumes (%v); use reclaim policy %s, or have its administrator allow it", path, r.config.Below, v1.PersistentVolumeReclaimRetain)
}

// verifyNoBase refuses a volume in which volumes are provisioned.
func (r *recycling) verifyNoBase(root *os.File) error {
	base, err := sharedirs.HasBook(root)
	if err == nil && base {
		err = sharedirs.HoldsVolumes(r.path, sharedirs.BookOf(r.path), sharedirs.Disk)
	}
	return volume.NothingDone(err)
}

// verifyHoldsNoBase refuses one that is above such a directory, too. It reads
// every directory, and so comes before anything is removed.
func (r *recycling) verifyHoldsNoBase(ctx context.Context, root *os.File) error {
	book, err := wipe.FindDir(ctx, root, sharedirs.InBook)
	if err == nil && book != "" {
		err = sharedirs.HoldsVolumes(r.path, book, sharedirs.Disk)
	}
	return volume.NothingDone(err)
}

func (r *recycling) report(p wipe.Progress) {
	r.events.normal("%s of %s gone after %s", entries(p.Done), r.path, p.Elapsed.Round(time.Second))
}

func entries(n int64) string {
	if n == 1 {
		return "1 entry"
	}
	return fmt.Sprintf("%d entries", n)
}

func (r *recycling) finished(what string, err error) error {
	if err == nil {
		r.events.normal("%s is empty: %s %s", r.path, entries(r.done.Load()), what)
	}
	return err
}

func (r *recycling) dryRun(ctx context.Context, root *os.File) error {
	found, err := wipe.Survey(ctx, root)
	if err != nil {
		return volume.NothingDone(err)
	}
	e := &reclaim.DryRunError{
		Source: r.path, Entries: found.Entries, Bytes: found.Bytes, First: found.First, Mounts: found.Mounts,
		Do: fmt.Sprintf("to empty it for its next claim, set the recycler's action to %s or %s", RecycleDelete, RecycleArchive),
	}
	r.events.tell(v1.EventTypeWarning, e.Error())
	return volume.NothingDone(e)
}

// archive moves the content of the volume, which lies at path, into the archive.
func (r *recycling) archive(ctx context.Context, root *os.File, path string, options wipe.Options) error {
	archives, err := r.openArchive(path)
	if err != nil {
		return volume.NothingDone(err)
	}
	defer archives.Close()
	r.events.normal("moving the contents of %s to %s", r.path, r.config.Archive)
	archive, err := wipe.Archive(ctx, root, archives, archiveName(r.pv.Name, recyclerpod.ReleaseID(r.pv)), options)
	if archive != "" {
		r.events.normal("%s has what was in %s", filepath.Join(r.config.Archive, archive), r.path)
	}
	return r.finished("moved", err)
}

// archiveName leaves room for additions in a name of at most 255 bytes.
func archiveName(pv, release string) string {
	const most = 200
	return strings.TrimRight(pv[:min(len(pv), most)], ".-") + "-" + release
}

// openArchive opens the directory for archives, if it is safe from others and
// apart from the volume.
func (r *recycling) openArchive(volumePath string) (*os.File, error) {
	err := os.Mkdir(r.config.Archive, 0o700)
	if err != nil && !errors.Is(err, os.ErrExist) {
		return nil, err
	}
	dir, err := os.OpenFile(r.config.Archive, unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	if err := r.checkArchive(dir, volumePath); err != nil {
		dir.Close()
		return nil, err
	}
	return dir, nil
}

func (r *recycling) checkArchive(dir *os.File, volumePath string) error {
	path, err := pathOf(dir)
	if err != nil {
		return err
	}
	if overlap(path, volumePath) {
		return volume.Invalid("hostPath.path", "%q and the archive %q lie within one another, so that the next claim would see what is archived", volumePath, path)
	}
	var st unix.Stat_t
	if err := eintr.Do(func() error { return unix.Fstat(int(dir.Fd()), &st) }); err != nil {
		return &os.PathError{Op: "stat", Path: path, Err: err}
	}
	switch {
	case st.Mode&0o022 != 0:
		return fmt.Errorf("%s has mode %04o: only its owner may write in the directory for archives (chmod go-w)", path, st.Mode&0o7777)
	case st.Uid != 0 && st.Uid != uint32(unix.Geteuid()):
		return fmt.Errorf("%s belongs to user %d: the directory for archives must be root's or the agent's own", path, st.Uid)
	}
	return nil
}

// eventGate passes events on while there is a listener.
type eventGate struct {
	mu     sync.Mutex
	record volume.RecycleEventRecorder
}

// to names the listener; nil: none. An event that is being told is told first.
func (g *eventGate) to(record volume.RecycleEventRecorder) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.record = record
}

func (g *eventGate) tell(eventType, message string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.record != nil {
		g.record(eventType, message)
	}
}

func (g *eventGate) normal(format string, args ...any) {
	g.tell(v1.EventTypeNormal, fmt.Sprintf(format, args...))
}
