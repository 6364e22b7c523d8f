package selfattach

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/util/durable"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/machinedir"
	"github.com/podvol/podvol/volume/internal/pvapi"
	"github.com/podvol/podvol/volume/internal/work"
)

// ErrRunOnce says that an [Attacher] was run a second time.
var ErrRunOnce = errors.New("an attacher can be run only once")

// ErrStillAttached is the cause of [Attacher.WaitForDetached].
const ErrStillAttached volume.Cause = "volumes are still attached that are not used any more"

// Config is what an [Attacher] is made of.
type Config struct {
	// Dir is the directory of the records, an absolute path. It goes with the root directory
	// of the manager, and must outlive the machine's boots as the attachments do. It is made
	// (0700) where it is missing.
	Dir string
	// SharedDir is a directory of this machine in which programs tell each other which volumes
	// they have attached, an absolute path. It is made (0700) where it is missing, and should
	// go when the machine ends, as /run does. Empty: no other program attaches here.
	SharedDir string
	// NodeName is this node's name, the manager's.
	NodeName types.NodeName
	// Plugins are those that attach ([CanAttach]), the same as the manager's, which
	// initializes them.
	Plugins []volume.VolumePlugin
	// Logger takes failed attempts, which are tried again, once for each text of a volume's
	// errors; nil drops them.
	Logger *slog.Logger
}

// Node is what an [Attacher] needs of a volume manager; *volumemanager.Manager is one, with S
// its VolumeStatus. The manager's comments say what the methods do.
type Node[S any] interface {
	Reports
	WaitForRecovery(ctx context.Context) error
	Subscribe(f func(S)) (stop func())
}

// Reports are what a manager and an [Attacher] tell each other.
type Reports interface {
	VolumesInUse() []v1.UniqueVolumeName
	AttachableSpec(name v1.UniqueVolumeName) *volume.Spec
	ReportedInUse(names []v1.UniqueVolumeName)
	SetVolumesAttached(attached []v1.AttachedVolume)
}

// Attacher attaches the volumes of one volume manager, and detaches them. Its methods may be
// called concurrently.
type Attacher struct {
	config  Config
	log     *slog.Logger
	records records
	sharing sharing
	boot    string
	queue   *work.Queue[v1.UniqueVolumeName]
	news    chan struct{} // has a value when the manager's lists may have changed
	ran     atomic.Bool

	reporting sync.Mutex // reports follow one another
	node      Reports    // nil until the manager has recovered

	mu      sync.Mutex
	volumes map[v1.UniqueVolumeName]*attachment
	byName  map[string]*attachment // by the names of VolumeAttachments
	changed chan struct{}          // closed at the next change of volumes
}

// attachment is a volume that is attached, is to be, or may be.
type attachment struct {
	volume v1.UniqueVolumeName
	// record is nil where nothing can be attached.
	record *record
	// inUse: the manager has it in use; spec is what it wants attached, nil: nothing new.
	inUse bool
	spec  *volume.Spec
	// shared: other programs know that this one has it.
	shared bool
	// uncertain: an attempt may have attached it.
	uncertain bool
	err       error  // of the last attempt
	logged    string // what failed in the last attempt; empty: nothing
	since     time.Time
}

// isAttached reports whether the volume can be mounted.
func (a *attachment) isAttached() bool { return a.record != nil && a.record.Step == attached }

// Open reads the records of a directory. It changes nothing. Records that cannot be read are
// logged, and stay: a person has to detach what they are of. The error is of the directory, or
// says that the configuration is not complete.
func Open(c Config) (*Attacher, error) {
	boot, err := machinedir.BootID()
	if err != nil {
		return nil, err
	}
	return open(c, boot)
}

func open(c Config, boot string) (*Attacher, error) {
	a := &Attacher{config: c, log: c.Logger, records: records{c.Dir}, sharing: sharing{c.SharedDir}, boot: boot,
		news: make(chan struct{}, 1), volumes: make(map[v1.UniqueVolumeName]*attachment), byName: make(map[string]*attachment), changed: make(chan struct{})}
	if a.log == nil {
		a.log = slog.New(slog.DiscardHandler)
	}
	a.queue = work.NewQueue(work.Config[v1.UniqueVolumeName]{Reconcile: a.reconcile, FirstPause: work.OperationPause})
	if err := a.load(); err != nil {
		return nil, err
	}
	return a, nil
}

// load takes what the records say in place of what is known.
func (a *Attacher) load() error {
	all, damaged, err := a.records.load()
	if err != nil {
		return err
	}
	for path, err := range damaged {
		a.log.Error("the record of a volume that may be attached cannot be read, and stays: find out what is attached to this machine, detach it, and remove the file", "file", path, "error", err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	clear(a.volumes)
	clear(a.byName)
	for _, r := range all {
		if r.Step == attached && r.Boot != a.boot {
			r.Step = attaching
		}
		a.enter(&attachment{volume: r.Volume, record: r, uncertain: true, since: time.Now()}, r.spec())
	}
	return nil
}

// enter makes a volume known. The caller holds the lock, or is alone.
func (a *Attacher) enter(one *attachment, spec *volume.Spec) {
	a.volumes[one.volume] = one
	if name := attachmentName(spec, a.config.NodeName); name != "" {
		a.byName[name] = one
	}
}

// forget is for a volume that is neither used nor attached. The caller holds the lock.
func (a *Attacher) forget(one *attachment) {
	delete(a.volumes, one.volume)
	maps.DeleteFunc(a.byName, func(_ string, is *attachment) bool { return is == one })
}

// attachmentName is the name under which the plugin of CSI volumes looks for the attachment.
func attachmentName(spec *volume.Spec, node types.NodeName) string {
	if spec.PersistentVolume == nil || spec.PersistentVolume.Spec.CSI == nil {
		return ""
	}
	s := spec.PersistentVolume.Spec.CSI
	return pvapi.CSIAttachmentName(s.VolumeHandle, s.Driver, string(node))
}

// Run attaches and detaches until ctx ends, and then returns nil. Calls of plugins end with it;
// what they were about is in the records. Volumes stay attached. The error is [ErrRunOnce], that
// of the records' directory, or the manager's that has not recovered.
func Run[S any](ctx context.Context, a *Attacher, node Node[S]) error {
	if a.ran.Swap(true) {
		return ErrRunOnce
	}
	defer node.Subscribe(func(S) { a.wake() })()
	if err := node.WaitForRecovery(ctx); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	// The manager has the root directory alone by now: an earlier one may have changed them.
	if _, err := durable.Sweep(a.config.Dir); err != nil {
		return err
	}
	if err := a.load(); err != nil {
		return err
	}
	// What a damaged record hides may be any of them.
	node.SetVolumesAttached(a.list(func(one *attachment) bool { return one.record != nil }))
	a.recovered(node)
	a.resync()
	a.start(ctx)
	defer a.queue.Wait()
	for {
		select {
		case <-a.news:
			a.resync()
		case <-ctx.Done():
			return nil
		}
	}
}

// recovered says that reports can be made from now on.
func (a *Attacher) recovered(node Reports) {
	a.reporting.Lock()
	defer a.reporting.Unlock()
	a.node = node
}

// resync makes the reports of both sides. It does nothing until the manager has recovered.
func (a *Attacher) resync() {
	a.reporting.Lock()
	defer a.reporting.Unlock()
	if a.node == nil {
		return
	}
	names := a.node.VolumesInUse()
	if names == nil {
		return
	}
	specs := make(map[v1.UniqueVolumeName]*volume.Spec, len(names))
	for _, name := range names {
		specs[name] = a.node.AttachableSpec(name)
	}
	a.use(specs)
	a.node.SetVolumesAttached(a.list(func(one *attachment) bool { return one.inUse && one.isAttached() }))
	a.node.ReportedInUse(names)
}

// start begins to work on all volumes.
func (a *Attacher) start(ctx context.Context) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for name := range a.volumes {
		a.queue.Enqueue(name)
	}
	a.change()
	a.queue.Start(ctx)
}

func (a *Attacher) wake() {
	select {
	case a.news <- struct{}{}:
	default:
	}
}

// list returns the volumes that are as asked for, for the manager.
func (a *Attacher) list(is func(*attachment) bool) []v1.AttachedVolume {
	a.mu.Lock()
	defer a.mu.Unlock()
	list := []v1.AttachedVolume{}
	for name, one := range a.volumes {
		if is(one) {
			list = append(list, v1.AttachedVolume{Name: name, DevicePath: one.record.DevicePath})
		}
	}
	return list
}

// use notes which volumes are in use, and enqueues those with work to do.
func (a *Attacher) use(specs map[v1.UniqueVolumeName]*volume.Spec) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for name, spec := range specs {
		one := a.volumes[name]
		if one == nil {
			if spec == nil || a.attacherFor(name) == nil {
				continue // left by an earlier owner, or another attaches it
			}
			one = &attachment{volume: name, since: time.Now()}
			a.enter(one, spec)
		}
		if !one.inUse || one.spec == nil && spec != nil {
			a.queue.Enqueue(name)
		}
		one.inUse, one.spec = true, spec
	}
	for name, one := range a.volumes {
		if _, used := specs[name]; one.inUse && !used {
			one.inUse, one.spec = false, nil
			a.queue.Enqueue(name)
		}
	}
}

// change has all waits look again. The caller holds the lock.
func (a *Attacher) change() {
	close(a.changed)
	a.changed = make(chan struct{})
}

// GetVolumeAttachment implements [volume.AttachmentGetter] for volumes of CSI drivers: the
// VolumeAttachment says of the volume what one in a cluster would. It does no I/O.
func (a *Attacher) GetVolumeAttachment(_ context.Context, name string) (*storagev1.VolumeAttachment, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	one := a.byName[name]
	if one == nil {
		return nil, &volume.ObjectNotFoundError{Ref: volume.NewObjectRef("VolumeAttachment", "", name)}
	}
	object := volumeAttachment(name, a.config.NodeName, one.record)
	object.CreationTimestamp = metav1.NewTime(one.since) // when the attempt began
	if one.err != nil && one.inUse && !object.Status.Attached {
		object.Status.AttachError = pvapi.AttachmentError(one.err, one.since)
	}
	return object, nil
}

// WaitForDetached returns nil once all that is not used any more is detached. If ctx ends
// before, the error matches [ErrStillAttached] and says what is attached, and why.
func (a *Attacher) WaitForDetached(ctx context.Context) error {
	for {
		a.resync() // the manager may be about to tell of it
		left, changed := a.left()
		if len(left) == 0 {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return stillAttached(left)
		}
	}
}

// left are the volumes to detach.
func (a *Attacher) left() (left []attachment, changed <-chan struct{}) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, one := range a.volumes {
		if one.record != nil && !one.inUse {
			left = append(left, *one)
		}
	}
	slices.SortFunc(left, func(a, b attachment) int { return strings.Compare(string(a.volume), string(b.volume)) })
	return left, a.changed
}

func stillAttached(left []attachment) error {
	names, errs := make([]string, 0, len(left)), make([]error, 0, len(left))
	for _, one := range left {
		names = append(names, string(one.volume))
		errs = append(errs, one.err)
	}
	why := errors.Join(errs...)
	what := "still attached, and not used any more: " + strings.Join(names, ", ")
	if why != nil {
		what += fmt.Sprintf(": %v", why)
	}
	return &volume.Failure{Cause: ErrStillAttached, Subject: names[0], What: what, Err: why,
		Next: "they are recorded, and the next program that uses this root directory detaches them"}
}
