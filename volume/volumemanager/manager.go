package volumemanager

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/propagation"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/containermounts"
	"github.com/podvol/podvol/volume/internal/work"
	"github.com/podvol/podvol/volume/mountrecord"
	"github.com/podvol/podvol/volume/volumemanager/internal/rootdir"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

var (
	// ErrStopped says that the manager's Run has ended.
	ErrStopped = errors.New("the volume manager has stopped")
	// ErrNotRun says that Run was not called, so that nothing is mounted.
	ErrNotRun = errors.New("the volume manager does not run: call Run first, in a goroutine of its own")
	// ErrAlreadyRun says that Run was called before; a manager runs once.
	ErrAlreadyRun = errors.New("the volume manager runs only once")
)

// Manager keeps the volumes of pods below one root directory as declared. All
// methods are safe for concurrent use.
//
// It is the door: behind it a reconciler compares the desired with the actual
// state, both in world, and an operator sets up and tears down. recovery learns
// what an earlier process has left, and mountWatch what others unmount.
type Manager struct {
	*world
	reconciler *reconciler
	operator   *operator
	recovery   *recovery
	mountWatch *mountWatch

	hidden atomic.Pointer[propagation.Warning]

	began chan struct{} // closed when Run is called
	ran   bool          // guarded by the world's lock
}

func newManager(config Config, host *volume.Host, plugins *volume.VolumePluginMgr) *Manager {
	w := newWorld(config, host, plugins)
	operator := newOperator(w)
	m := &Manager{
		world: w, operator: operator, reconciler: &reconciler{world: w, operator: operator},
		recovery: &recovery{w}, mountWatch: &mountWatch{w}, began: make(chan struct{}),
	}
	w.queue = work.NewQueue(work.Config[*podVolume]{Reconcile: m.reconciler.reconcile})
	w.containers = containermounts.New(host, plugins, containerVolumes{m})
	return m
}

// Run locks the root directory, reads its records, and keeps the volumes of the declared
// pods set up until ctx ends, also where another process unmounts them. Then it cancels
// the operations, waits for them, and returns nil. Mounts stay. A root that another
// process owns is [ErrRootBusy], one that cannot be used a *[RootError]; a second call
// returns [ErrAlreadyRun].
//
// An operation that hangs in the kernel does not keep Run from returning. But the root
// stays locked until the operation or the process ends, for the next owner's sake.
func (m *Manager) Run(ctx context.Context) error {
	if !m.begin() {
		return ErrAlreadyRun
	}
	defer m.end()
	unlock, err := rootdir.Lock(m.host.RootDir)
	if err != nil {
		return err
	}
	watching, stopWatching := context.WithCancel(ctx)
	defer stopWatching()
	m.hidden.Store(propagation.Warn(ctx, m.log, m.host.Mounter, m.host.RootDir))
	changes := m.mountWatch.subscribeMounts(watching) // before the table is read for the first time
	if err := m.recovery.recover(ctx); err != nil {
		err = errors.Join(err, m.records.Close())
		unlock()
		return &RootError{RootDir: m.host.RootDir, Err: err}
	}
	if m.config.Containers != nil {
		defer m.config.Containers.WatchContainers(m.containersChanged)()
	}
	close(m.ready)
	m.sweepWork(ctx)
	m.running.Go(func() { m.mountWatch.watchMounts(watching, changes) })
	m.queue.Start(ctx)
	<-ctx.Done()
	m.end()
	return m.close(unlock)
}

// HiddenMounts says why the host would not see mounts below the root directory: Run has
// found, and logged, that this agent's container lacks mount propagation. Else it is nil.
func (m *Manager) HiddenMounts() *propagation.Warning { return m.hidden.Load() }

func (m *Manager) begin() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ran {
		return false
	}
	m.ran = true
	close(m.began)
	return true
}

// end lets nothing new begin. It may be repeated.
func (m *Manager) end() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.stopping {
		return
	}
	m.stopping = true
	close(m.stopped)
	for _, p := range m.pods {
		for _, s := range p.volumes {
			s.retryAt = time.Time{}
		}
	}
}

// stopWatches ends the watches of all objects, after the last operation.
func (m *Manager) stopWatches() {
	m.mu.Lock()
	var watches []watch
	for _, p := range m.pods {
		for _, s := range p.volumes {
			watches = append(watches, s.watches...)
			s.watches = nil
		}
	}
	m.mu.Unlock()
	stopAll(watches)
}

// closingLimit is how long the disk of the root directory may take to sync what
// the records say, which a busy one does for seconds: the next owner of the
// root finds it unlocked.
const closingLimit = 30 * time.Second

// close closes the records and unlocks the root after the last operation has
// ended, for which it waits only so long.
func (m *Manager) close(unlock func()) error {
	ended, released := make(chan struct{}), make(chan error, 1)
	go func() {
		m.queue.Wait()
		m.running.Wait()
		close(ended)
		m.stopWatches()
		err := m.records.Close()
		unlock()
		released <- err
	}()
	if !comesWithin(grace, ended) {
		m.log.Warn("an operation on a volume hangs; the root directory stays locked until it ends", "rootDir", m.host.RootDir)
		return nil
	}
	patience := time.NewTimer(closingLimit)
	defer patience.Stop()
	select {
	case err := <-released:
		return err
	case <-patience.C:
		m.log.Warn("the disk of the root directory hangs; the root directory stays locked until it answers", "rootDir", m.host.RootDir)
		return nil
	}
}

// comesWithin waits for an event, and reports whether it has come in time.
func comesWithin(limit time.Duration, event <-chan struct{}) bool {
	patience := time.NewTimer(limit)
	defer patience.Stop()
	select {
	case <-event:
		return true
	case <-patience.C:
		return false
	}
}

// WaitForRecovery waits until Run owns the root directory and knows its state. It
// returns [ErrStopped] when Run has ended, and the cause of ctx's end when that
// comes first. If Run was not called by then, the error matches [ErrNotRun] too.
func (m *Manager) WaitForRecovery(ctx context.Context) error {
	select {
	case <-m.stopped:
		return ErrStopped
	default:
	}
	if ctx.Err() != nil {
		return m.notRecovered(ctx)
	}
	select {
	case <-m.ready:
		return nil
	case <-m.stopped:
		return ErrStopped
	case <-ctx.Done():
		return m.notRecovered(ctx)
	}
}

// notRecovered is why a wait for the recovery has ended with ctx.
func (m *Manager) notRecovered(ctx context.Context) error {
	select {
	case <-m.began:
		return context.Cause(ctx)
	default:
		return fmt.Errorf("%w (%w)", ErrNotRun, context.Cause(ctx))
	}
}

// startPatience is how long Run may take to begin, which is usually called in
// another goroutine right before or after the call that needs it.
const startPatience = 30 * time.Second

// waitForRun is [Manager.WaitForRecovery] for calls that would never end without
// Run: that it is not called within [startPatience] is [ErrNotRun].
func (m *Manager) waitForRun(ctx context.Context) error {
	patience := time.NewTimer(startPatience)
	defer patience.Stop()
	select {
	case <-m.began:
	case <-ctx.Done():
	case <-patience.C:
		return ErrNotRun
	}
	return m.WaitForRecovery(ctx)
}

// Explain returns the status of every volume that is wanted, mounted, being
// worked on, failed or recorded, ordered by pod and volume. While
// [Manager.Damaged] returns an error there may be more.
func (m *Manager) Explain() []VolumeStatus {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []*podVolume
	for _, p := range m.pods {
		all = append(all, p.volumes...)
	}
	return m.sortedRows(slices.Values(all))
}

// Metrics measures one of a pod's volumes, by its name in the pod, and returns
// promptly when ctx ends: its server may not answer, and costs one thread then
// however often it is asked. The error matches [mount.ErrNotMounted] where the
// volume is not mounted, and [volume.ErrMetricsUnsupported] where volumes of its
// kind have no metrics, as block volumes do not.
func (m *Manager) Metrics(ctx context.Context, podUID types.UID, volumeName string) (*volume.Metrics, error) {
	record, pod := m.mountedRecord(podUID, volumeName)
	if record == nil {
		return nil, &volume.Error{Op: "GetMetrics", Volume: volumeName, PodUID: podUID, Err: mount.ErrNotMounted}
	}
	if record.Spec().IsBlock() {
		return nil, wrap(record, volumeName, "GetMetrics", volume.ErrMetricsUnsupported)
	}
	plugin, err := m.plugins.FindPluginByName(record.Plugin)
	if err != nil {
		return nil, wrap(record, volumeName, "GetMetrics", err)
	}
	mounter, err := plugin.NewMounter(record.Spec(), pod)
	if err != nil {
		return nil, wrap(record, volumeName, "GetMetrics", err)
	}
	metrics, err := mounter.GetMetrics(ctx)
	return metrics, wrap(record, volumeName, "GetMetrics", err)
}

// mountedRecord returns the record of a volume that is mounted, nil if it is
// not, and its pod, of which only the name may be known.
func (m *Manager) mountedRecord(podUID types.UID, volumeName string) (*mountrecord.Record, *v1.Pod) {
	m.mu.Lock()
	defer m.mu.Unlock()
	p := m.pods[podUID]
	s := p.find(func(s *podVolume) bool {
		return s.state == StateMounted && s.actual.record != nil && slices.Contains(s.names, volumeName)
	})
	if s == nil {
		return nil, nil
	}
	pod := p.pod
	if pod == nil { // not declared since the start
		pod = &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: p.name.Namespace, Name: p.name.Name, UID: p.uid}}
	}
	return s.actual.record, pod
}

func persistentVolumeOf(r *mountrecord.Record) string {
	if r.PersistentVolume == nil {
		return ""
	}
	return r.PersistentVolume.Name
}

// claimOf is the claim that a recorded volume was mounted for.
func claimOf(r *mountrecord.Record) types.NamespacedName {
	if r.PersistentVolume == nil || r.PersistentVolume.Spec.ClaimRef == nil {
		return types.NamespacedName{}
	}
	ref := r.PersistentVolume.Spec.ClaimRef
	return types.NamespacedName{Namespace: ref.Namespace, Name: ref.Name}
}

// Subscribe calls f with each new status of a volume until stop is called. f
// must not block and must not call the manager. After stop returns, f is not
// called any more; stop must not be called from within f.
func (m *Manager) Subscribe(f func(VolumeStatus)) (stop func()) {
	w := &watcher{f}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.watchers[w] = struct{}{}
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.watchers, w)
	}
}

// ExplainClaim returns the rows of [Manager.Explain] whose Claim is the given
// one, in its order. Its cost grows with their number only.
func (m *Manager) ExplainClaim(claim types.NamespacedName) []VolumeStatus {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.sortedRows(maps.Keys(m.byClaim[claim]))
}

// ExplainPod returns the given pod's rows of [Manager.Explain], in its order. Its
// cost grows with their number only.
func (m *Manager) ExplainPod(podUID types.UID) []VolumeStatus {
	m.mu.Lock()
	defer m.mu.Unlock()
	if p := m.pods[podUID]; p != nil {
		return m.sortedRows(slices.Values(p.volumes))
	}
	return nil
}
