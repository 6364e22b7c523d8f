package volumemanager

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/util/durable"
	"github.com/podvol/podvol/util/keylock"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/containermounts"
	"github.com/podvol/podvol/volume/mountrecord"
	"github.com/podvol/podvol/volume/volumemanager/internal/blockmap"
	"github.com/podvol/podvol/volume/volumemanager/internal/rootdir"
)

var (
	// ErrStopped says that the manager's Run has ended.
	ErrStopped = errors.New("the volume manager has stopped")
	// ErrNotRun says that Run was not called, so that nobody mounts anything.
	ErrNotRun = errors.New("the volume manager does not run: call Run first, in a goroutine of its own")
	// ErrAlreadyRun says that Run was called before; a manager runs once.
	ErrAlreadyRun = errors.New("the volume manager runs only once")
)

// Manager keeps the volumes of pods below one root directory as they are
// wanted. All methods are safe for concurrent use.
type Manager struct {
	config  Config
	host    *volume.Host
	plugins *volume.VolumePluginMgr
	log     *slog.Logger
	records rootdir.Records // set before ready is closed

	running     sync.WaitGroup // operations, also those that nobody waits for
	podDirs     rootdir.PodDirs
	deviceLocks keylock.Map[v1.UniqueVolumeName]
	blocks      blockmap.Mapper
	containers  *containermounts.Binder

	began   chan struct{} // closed when Run is called
	ready   chan struct{} // closed when the records have been read
	stopped chan struct{} // closed when Run ends
	wake    chan struct{} // holds a value while the queue is not empty

	mu           sync.Mutex
	ran          bool
	stopping     bool
	pods         map[types.UID]*podState
	byClaim      claimIndex
	declarations int
	complete     bool               // every pod has been declared once
	kept         map[types.UID]bool // though they are not declared
	queue        []*podVolume
	watchers     map[*watcher]struct{}
	devices      map[deviceKey]*deviceMount
	oncePod      map[string]map[*podVolume]struct{} // those that wait for a PersistentVolume that another pod has
	attachments  map[v1.UniqueVolumeName]*attachment
	reported     map[v1.UniqueVolumeName]struct{} // in use, in the node's status
	attached     map[v1.UniqueVolumeName]string   // with the devices' paths; nil until somebody says
}

func newManager(config Config, host *volume.Host, plugins *volume.VolumePluginMgr) *Manager {
	m := &Manager{
		config:      config,
		host:        host,
		plugins:     plugins,
		log:         config.Logger,
		began:       make(chan struct{}),
		ready:       make(chan struct{}),
		stopped:     make(chan struct{}),
		wake:        make(chan struct{}, 1),
		pods:        make(map[types.UID]*podState),
		byClaim:     make(claimIndex),
		watchers:    make(map[*watcher]struct{}),
		devices:     make(map[deviceKey]*deviceMount),
		oncePod:     make(map[string]map[*podVolume]struct{}),
		attachments: make(map[v1.UniqueVolumeName]*attachment),
	}
	m.blocks = blockmap.Mapper{Mounter: host.Mounter, Holder: config.DeviceHolder, KeepRoot: m.keepRoot}
	m.containers = containermounts.New(host, plugins, containerVolumes{m})
	return m
}

// Run locks the root directory, reads its records, and keeps the volumes of
// the declared pods as they are wanted until ctx ends, also where somebody else
// unmounts them; then it cancels what is under way, waits for it, and returns nil. Mounts stay. A root that is owned by
// another process is [ErrRootBusy], one that cannot be used a
// *[RootError]; a second call returns [ErrAlreadyRun].
//
// An operation that hangs in the kernel does not keep Run from returning, but
// the root stays locked until it ends, or the process does: what it may still
// do must not surprise the next owner.
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
	changes := m.subscribeMounts(watching) // before the table is read for the first time
	if err := m.recover(ctx); err != nil {
		err = errors.Join(err, m.records.Close())
		unlock()
		return &RootError{RootDir: m.host.RootDir, Err: err}
	}
	if m.config.Containers != nil {
		defer m.config.Containers.WatchContainers(m.containersChanged)()
	}
	close(m.ready)
	m.sweepWork(ctx)
	m.running.Go(func() { m.watchMounts(watching, changes) })
	m.reconcileAll(ctx)
	m.end()
	return m.close(unlock)
}

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
			s.stopRetry()
			if s.refresh != nil {
				s.refresh.Stop()
			}
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
// the records say, which a busy one does for seconds: whoever comes next for the
// root finds it unlocked.
const closingLimit = 30 * time.Second

// close closes the records and unlocks the root after the last operation has
// ended, for which it waits only so long.
func (m *Manager) close(unlock func()) error {
	ended, released := make(chan struct{}), make(chan error, 1)
	go func() {
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

// WaitForRecovery waits until Run owns the root directory and knows what is
// there. It returns [ErrStopped] when Run has ended, and the cause of ctx's
// end when that comes first, which matches [ErrNotRun] too where Run was not
// called by then.
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

// recover learns from the records and the mount table what is there, after the
// mount helpers of a dead owner have been ended: they could mount later.
func (m *Manager) recover(ctx context.Context) error {
	if m.config.Adopt {
		if err := m.config.refuseKubelet(); err != nil {
			return err
		}
	}
	if err := rootdir.EndHelpers(ctx, m.host.RootDir, m.log); err != nil {
		return err
	}
	if err := rootdir.MakePodsDir(m.host.RootDir, m.log); err != nil {
		return err
	}
	mounted, err := rootdir.ReadMounts(m.host.RootDir, m.host.Mounter)
	if err != nil {
		return err
	}
	if _, err := durable.Sweep(rootdir.StateDir(m.host.RootDir)); err != nil {
		return err
	}
	opened, found, unreadable, err := rootdir.OpenRecords(m.host.RootDir)
	if err != nil {
		return err
	}
	m.records = opened
	if err := m.Damaged(); err != nil {
		m.log.Warn("the volume records are damaged", "error", err)
	}
	for _, err := range unreadable {
		m.log.Warn("a volume record cannot be read", "error", err)
		m.recoverUnreadable(err)
	}
	for _, record := range found {
		if err := m.recoverRecord(record, mounted); err != nil {
			return err
		}
	}
	if m.config.Adopt {
		if err := m.adopt(ctx, mounted); err != nil {
			return err
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.resyncUndeclared() // the pods may be complete already
	m.recoverEnded()
	return nil
}

func (m *Manager) recoverRecord(record *mountrecord.Record, mounted rootdir.Mounts) error {
	line, err := mountrecord.Encode(record)
	if err != nil {
		return err
	}
	row := statusOf(record, mounted, noneGone)[0]
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.recovered(rootdir.KeyOf(record), record.Volumes)
	s.actual.record, s.actual.digest, s.actual.source = record, rootdir.DigestOf(line), m.sourceName(record)
	if record.Detached != nil {
		s.actual.detached = record.Detached.Recall(m.host.Mounter)
	}
	m.byClaim.note(s)
	m.recoverDevice(s, record, mounted)
	if s.pod.name.Name == "" {
		s.pod.name = record.Pod
	}
	s.state, s.since, s.took, s.err = row.State, row.Since, row.Duration, reasonOf(record, mounted, noneGone)
	if s.unused && s.pod.wanted {
		m.rest(s)
	}
	return nil
}

func (m *Manager) recoverUnreadable(unreadable *UnreadableRecordError) {
	key, ok := rootdir.ParseKey(unreadable.Volume)
	if !ok {
		return // it is no volume's, and nothing will ask for it
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.recovered(key, []string{key.Spec})
	s.actual.unreadable = unreadable
	s.state, s.err = StateFailed, unreadable
}

// recovered returns the volume of a directory that was found, which may be
// wanted already. The caller holds the lock.
func (m *Manager) recovered(key rootdir.Key, names []string) *podVolume {
	p := m.pod(key.PodUID)
	s := p.volumeFor(names)
	if s.actual.exists() {
		s = &podVolume{pod: p, names: names}
		p.volumes = append(p.volumes, s)
	}
	s.actual.key = key
	return s
}

// sourceName is the plugin's name of a recorded source; empty where the plugin
// does not know it any more.
func (m *Manager) sourceName(record *mountrecord.Record) string {
	plugin, err := m.plugins.FindPluginByName(record.Plugin)
	if err != nil {
		return ""
	}
	name, err := plugin.GetVolumeName(record.Spec())
	if err != nil {
		return ""
	}
	return name
}

// Explain returns the status of every volume that is wanted, mounted, being
// worked on, failed or recorded, ordered by pod and volume. While
// [Manager.Damaged] returns an error there may be more.
func (m *Manager) Explain() []VolumeStatus {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []VolumeStatus
	for _, p := range m.pods {
		for _, s := range p.volumes {
			all = append(all, m.rows(s)...)
		}
	}
	slices.SortFunc(all, compareStatus)
	return all
}
