package clusterhost

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/podvol/podvol/util/kubeapi"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
)

const (
	// reportTimeout bounds one request.
	reportTimeout    = 30 * time.Second
	firstReportPause = time.Second
	lastReportPause  = 30 * time.Second
	firstConflict    = 10 * time.Millisecond
	lastConflict     = 2 * time.Second
)

// VolumeReporter is what [ReportVolumes] needs of a volume manager;
// *volumemanager.Manager is one, with S its VolumeStatus.
type VolumeReporter[S any] interface {
	// WaitForRecovery returns nil once VolumesInUse knows all mounts.
	WaitForRecovery(ctx context.Context) error
	VolumesInUse() []v1.UniqueVolumeName
	ReportedInUse([]v1.UniqueVolumeName)
	SetVolumesAttached([]v1.AttachedVolume)
	// Subscribe tells when VolumesInUse may have changed.
	Subscribe(f func(S)) (stop func())
}

// ReportConfig is the configuration of [ReportVolumes]; its zero value works.
type ReportConfig struct {
	// Logger takes failures of reports; nil: none are logged.
	Logger *slog.Logger
}

// ReportVolumes keeps status.volumesInUse of a Node object as the volume manager wants it,
// and tells the manager its status.volumesAttached, until ctx ends; then it returns nil.
// If the manager has stopped before it had recovered, that is its error.
//
//   - nodes is where changes of the Node are seen, such as a cluster.Client. All writes, and
//     reads of what was written, go through the clientset.
//   - A report is a patch of status.volumesInUse alone, with the resourceVersion that it was
//     decided upon, so it and other writers of the status do not overwrite each other.
//   - It is sent only when the list changes, never before the manager has recovered, and
//     retried with growing pauses (10 ms to 2 s after conflicts, 1 to 30 s after other
//     failures).
//   - A volume is acknowledged to the manager only after the API has said that the status
//     lists it, together with the attached volumes of that answer: nothing is mounted that
//     a controller may still believe to be unused.
//   - A report whose answer was lost, also an earlier run's, may still take effect and take a
//     volume off the list. It is ruled out before more is acknowledged: the Node gets
//     another version by a new value of [FenceAnnotation].
//   - A Node that does not exist, or not any more, is waited for. If nodes cannot tell, it is
//     asked for again, with pauses from 1 to 30 s.
//   - Only one process may report for a node. If another one keeps replacing the list, that
//     is logged, and the list restored with pauses of up to 2 s.
func ReportVolumes[S any](ctx context.Context, clientset kubernetes.Interface, nodes objects.Source, nodeName string, manager VolumeReporter[S], config ReportConfig) error {
	if config.Logger == nil {
		config.Logger = slog.New(slog.DiscardHandler)
	}
	r := &report{
		clientset: clientset, nodes: nodes, ref: volume.NewObjectRef("Node", "", nodeName), logger: config.Logger,
		volumesInUse: manager.VolumesInUse, reportedInUse: manager.ReportedInUse, setVolumesAttached: manager.SetVolumesAttached,
		changed: make(chan struct{}, 1), seen: make(chan struct{}, 1),
	}
	defer nodes.Watch(r.ref, func(volume.ObjectRef) { signal(r.seen) })()
	defer manager.Subscribe(func(S) { signal(r.changed) })()
	if err := manager.WaitForRecovery(ctx); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return fmt.Errorf("volumes in use of %s: %w", r.ref, err)
	}
	r.run(ctx)
	return nil
}

// signal leaves word for a reader that looks at everything anyway.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// report is one run of [ReportVolumes]. Only its own goroutine uses it.
type report struct {
	clientset          kubernetes.Interface
	nodes              objects.Source
	ref                volume.ObjectRef
	logger             *slog.Logger
	volumesInUse       func() []v1.UniqueVolumeName
	reportedInUse      func([]v1.UniqueVolumeName)
	setVolumesAttached func([]v1.AttachedVolume)
	changed, seen      chan struct{}

	// node is the newest state of the Node that is known; nil: it must be asked for.
	node *v1.Node
	// listed is what the manager last wanted.
	listed []v1.UniqueVolumeName
	// acknowledged is what the manager believes to be reported.
	acknowledged []v1.UniqueVolumeName
	// settled: no report whose answer was lost can take effect any more.
	fenced    bool
	failures  int
	conflicts int
	// unseen is how often in a row nodes could not tell the Node.
	unseen int
	rival  rival
}

func (r *report) run(ctx context.Context) {
	for ctx.Err() == nil {
		p, err := r.step(ctx)
		switch {
		case ctx.Err() != nil:
		case err == nil && p.length == 0:
			p = r.untilAsked(ctx)
		case err == nil:
		case r.conflicts > 0 && r.conflicts < 5:
			r.logger.Debug("the node has changed, the volumes in use are reported again", "node", r.ref.Name, "error", err)
		default:
			r.logger.Warn("the volumes in use could not be reported", "node", r.ref.Name, "failures", r.failures+r.conflicts, "nextTry", p.length, "error", err)
		}
		r.wait(ctx, p)
	}
}

// pause is a time to wait; 0: until there is news.
type pause struct {
	length time.Duration
	ends   news
}

// news is what ends a pause early.
type news int

const (
	anyNews news = iota
	nodeNews
	noNews
)

// wait returns when there may be something to do.
func (r *report) wait(ctx context.Context, p pause) {
	changed, seen := r.changed, r.seen
	var over <-chan time.Time
	if p.length > 0 {
		over = time.After(p.length)
	}
	if p.ends != anyNews {
		changed = nil
	}
	if p.ends == noNews {
		seen = nil
	}
	select {
	case <-changed:
	case <-seen:
	case <-over:
	case <-ctx.Done():
	}
}

// step brings the status up to date, and the manager. It returns how long to wait
// before the next one.
func (r *report) step(ctx context.Context) (pause, error) {
	if err := r.look(ctx); err != nil {
		return r.failed(err), err
	}
	if first := r.acknowledged == nil; first && len(r.node.Status.VolumesInUse) > 0 {
		if err := r.fence(ctx); err != nil {
			return r.failed(err), err
		}
	}
	r.tell()
	r.listed = r.volumesInUse()
	if r.listed == nil {
		return pause{}, nil // it says nothing, which is not to be reported
	}
	r.acknowledged = among(r.acknowledged, r.listed) // as the manager does it
	if lists(r.node, r.listed) {
		if len(r.acknowledged) < len(r.listed) {
			if err := r.fence(ctx); err != nil {
				return r.failed(err), err
			}
		}
		r.acknowledge()
		return pause{}, nil
	}
	if p := r.rivalry(); p.length > 0 {
		return p, nil
	}
	if err := r.send(ctx); err != nil {
		return r.failed(err), err
	}
	return pause{}, nil
}

// look makes r.node the newest state that is known, and asks the API where there
// is none.
func (r *report) look(ctx context.Context) error {
	if r.node == nil {
		ctx, cancel := context.WithTimeoutCause(ctx, reportTimeout, fmt.Errorf("the API has not answered within %s", reportTimeout))
		defer cancel()
		node, err := r.clientset.CoreV1().Nodes().Get(ctx, r.ref.Name, metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("get %s: %w", r.ref, err)
		}
		r.node = node
		return nil
	}
	seen, err := objects.Get[*v1.Node](ctx, r.nodes, r.ref)
	if err != nil {
		return nil // the known list stands
	}
	order, err := kubeapi.CompareResourceVersion(seen.ResourceVersion, r.node.ResourceVersion)
	switch {
	case err != nil || seen.UID != r.node.UID || order < 0:
		// The seen version is late, or the API has been restored from a backup, or the
		// Node made anew: only the API itself knows.
		r.node = nil
		return r.look(ctx)
	case order > 0:
		r.node = seen
	}
	return nil
}

// untilAsked is the pause after a step that has left nothing to do: until there is
// news, unless nodes cannot tell it.
func (r *report) untilAsked(ctx context.Context) pause {
	_, err := objects.Get[*v1.Node](ctx, r.nodes, r.ref)
	if _, missing := errors.AsType[*volume.ObjectNotFoundError](err); err == nil || missing {
		r.unseen = 0
		return pause{}
	}
	r.node = nil
	if r.unseen++; r.unseen == 1 && ctx.Err() == nil {
		r.logger.Warn("changes of the node cannot be seen, it is asked for again and again: let the node's identity get and watch its Node", "node", r.ref.Name, "error", err)
	}
	return pause{growing(firstReportPause, lastReportPause, r.unseen), anyNews}
}

// lists reports whether the status of a node has exactly these volumes in use.
func lists(node *v1.Node, names []v1.UniqueVolumeName) bool {
	return slices.Equal(sorted(node.Status.VolumesInUse), sorted(names))
}

func sorted(names []v1.UniqueVolumeName) []v1.UniqueVolumeName {
	names = slices.Clone(names)
	slices.Sort(names)
	return slices.Compact(names)
}

// tell gives the manager the status: the volumes attached, and those in use, if
// these are not known yet or another writer has taken some off the list. It comes
// before the manager is asked for the volumes in use, which may include some of
// them.
func (r *report) tell() {
	r.setVolumesAttached(r.node.Status.VolumesAttached)
	reported := r.node.Status.VolumesInUse
	if r.acknowledged != nil {
		if reported = among(r.acknowledged, reported); len(reported) == len(r.acknowledged) {
			return
		}
	}
	r.acknowledged = append([]v1.UniqueVolumeName{}, reported...)
	r.reportedInUse(reported)
}

// among returns the names that are in all.
func among(names, all []v1.UniqueVolumeName) []v1.UniqueVolumeName {
	found := []v1.UniqueVolumeName{}
	for _, name := range names {
		if slices.Contains(all, name) {
			found = append(found, name)
		}
	}
	return found
}

// acknowledge has the manager go on with the listed volumes.
func (r *report) acknowledge() {
	r.failures, r.conflicts = 0, 0
	if len(r.acknowledged) < len(r.listed) { // it is a part of it
		r.acknowledged = slices.Clone(r.listed)
		r.reportedInUse(r.listed)
	}
}

// send writes the list, and acknowledges it when the API has said that it is
// written.
func (r *report) send(ctx context.Context) error {
	version := r.node.ResourceVersion
	node, err := r.patch(ctx, nil, r.listed)
	r.fenced = err == nil && node.ResourceVersion != version
	if err != nil {
		return fmt.Errorf("report the volumes in use of %s: %w", r.ref, err)
	}
	r.node = node
	if !lists(node, r.listed) {
		return fmt.Errorf("report the volumes in use of %s: the API took the report, but lists %d volumes instead of %d", r.ref, len(node.Status.VolumesInUse), len(r.listed))
	}
	r.rival.written = r.listed
	r.setVolumesAttached(node.Status.VolumesAttached) // first: the acknowledgement has volumes mounted that are attached
	r.acknowledge()
	return nil
}

// failed says how long to pause. The Node is asked for again.
func (r *report) failed(err error) pause {
	r.node = nil
	if apierrors.IsConflict(err) {
		r.conflicts++
		return pause{growing(firstConflict, lastConflict, r.conflicts), noNews}
	}
	r.conflicts = 0
	r.failures++
	return pause{growing(firstReportPause, lastReportPause, r.failures), nodeNews}
}

// growing doubles with each of a row of tries, from 1.
func growing(first, last time.Duration, try int) time.Duration {
	d := min(first<<min(try-1, 10), last)
	return d + rand.N(d/4+1)
}
