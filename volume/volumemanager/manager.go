package volumemanager

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/mount/propagation"
	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/containermounts"
	"github.com/podvol/podvol/volume/internal/work"
	"github.com/podvol/podvol/volume/volumemanager/internal/blockmap"
	"github.com/podvol/podvol/volume/volumemanager/internal/dependencies"
	"github.com/podvol/podvol/volume/volumemanager/internal/devices"
	"github.com/podvol/podvol/volume/volumemanager/internal/growth"
	"github.com/podvol/podvol/volume/volumemanager/internal/lifecycle"
	"github.com/podvol/podvol/volume/volumemanager/internal/mountwatch"
	"github.com/podvol/podvol/volume/volumemanager/internal/podevents"
	"github.com/podvol/podvol/volume/volumemanager/internal/rootdir"
)

// Manager keeps the volumes of pods below one root directory as declared. All
// methods are safe for concurrent use.
//
// It is the door: behind it a reconciler compares the desired with the actual
// state of the world, and an executor sets up and tears down. recovery learns
// what an earlier process has left, and mountWatch what others unmount.
type Manager struct {
	config  Config
	host    *volume.Host
	plugins *volume.VolumePluginMgr
	log     *slog.Logger

	life     *lifecycle.Lifecycle
	entries  *entries
	schedule *schedule
	status   *publisher
	devices  *devices.Table
	desired  *desiredStateOfWorld
	actual   *actualStateOfWorld

	records    *rootdir.Records // set by the recovery
	podDirs    *rootdir.PodDirs
	containers *containermounts.Binder
	executor   *operationExecutor
	reconciler *reconciler
	recovery   *recovery
	mountWatch *mountWatch
	hidden     atomic.Pointer[propagation.Warning] // HiddenMounts, found by Run
}

// newManager puts the parts together: first what is known of the world, then the steps that
// share it.
func newManager(config Config, host *volume.Host, plugins *volume.VolumePluginMgr) *Manager {
	life := lifecycle.New()
	schedule := &schedule{life: life}
	status := &publisher{plugins: plugins, nodeName: config.NodeName, watchers: make(map[*watcher]struct{})}
	entries := &entries{pods: make(map[types.UID]*podState), schedule: schedule, status: status}
	actual := &actualStateOfWorld{entries: entries, rootDir: host.RootDir, schedule: schedule, status: status, life: life}
	table := devices.New(devices.Config{
		Lock: entries, Hidden: actual.hidden,
		IsMountPoint: func(path string) (bool, error) { return rootdir.IsMountPoint(host.Mounter, path) },
		Unattached:   func(r devices.Reports) error { return newAttachmentError(config.NodeName, r) },
	})
	status.devices, actual.devices = table, table
	m := &Manager{
		config: config, host: host, plugins: plugins, log: config.Logger,
		life: life, entries: entries, schedule: schedule, status: status, devices: table, actual: actual,
		desired: &desiredStateOfWorld{entries: entries, actual: actual, schedule: schedule, life: life,
			containers: config.Containers, keepEndedPodData: config.KeepEndedPodData},
		records: new(rootdir.Records), podDirs: new(rootdir.PodDirs),
	}
	status.leaves = m.desired.leaves
	m.addSteps()
	return m
}

// addSteps adds what works on the state of the world.
func (m *Manager) addSteps() {
	config := m.config
	m.containers = containermounts.New(m.host, m.plugins, containerVolumes{m.entries, m.status, m.life, m.podDirs})
	needs := &nodeNeeds{entries: m.entries, actual: m.actual, devices: m.devices, selinux: config.SELinux}
	events := podevents.Teller{Sink: config.Events, Plugins: m.plugins}
	m.executor = &operationExecutor{
		entries: m.entries, actual: m.actual, status: m.status, schedule: m.schedule,
		admission: &admission{entries: m.entries, actual: m.actual, status: m.status, host: m.host, needs: needs}, needs: needs,
		grower: growth.Grower{Events: events, Resizes: config.Resizes, Log: m.log},
		host:   m.host, plugins: m.plugins, records: m.records, podDirs: m.podDirs, containers: m.containers,
		blocks:  blockmap.Mapper{Mounter: m.host.Mounter, Holder: config.DeviceHolder, KeepRoot: m.life.KeepRoot},
		objects: config.Objects, trustBundles: config.TrustBundles, translator: config.Translator, events: events, setUpTimeout: config.SetUpTimeout, log: m.log,
	}
	m.reconciler = &reconciler{entries: m.entries, desired: m.desired, actual: m.actual, status: m.status, life: m.life,
		executor: m.executor, containers: config.Containers, trace: tracer{config.Tracer, config.NodeName}}
	m.schedule.queue = work.NewQueue(work.Config[*podVolume]{Reconcile: m.reconciler.reconcile})
	m.recovery = &recovery{entries: m.entries, desired: m.desired, actual: m.actual, status: m.status, devices: m.devices,
		host: m.host, plugins: m.plugins, records: m.records, log: m.log}
	m.mountWatch = &mountWatch{entries: m.entries, devices: m.devices, schedule: m.schedule, status: m.status,
		host: m.host, events: config.Events, log: m.log}
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
	if !m.life.Begin() {
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
	changes := table.Of(m.host.Mounter).Subscribe(watching) // before the table is read for the first time
	if err := m.recovery.recover(ctx, m.config); err != nil {
		err = errors.Join(err, m.records.Close())
		unlock()
		return &RootError{RootDir: m.host.RootDir, Err: err}
	}
	if m.config.Containers != nil {
		defer m.config.Containers.WatchContainers(m.reconciler.containersChanged)()
	}
	left := m.devices.FindLeft(ctx, devices.LeftConfig{Adopt: m.config.Adopt, RootDir: m.host.RootDir, Plugins: m.config.Plugins,
		IsKnown: m.recovery.isRecorded, Gone: m.status.leftGone, Logger: m.log})
	m.life.Recovered()
	m.sweepWork(ctx)
	m.life.Go(func() { mountwatch.Watch(watching, changes, m.mountWatch.lookForVanished) })
	m.runPlugins(watching)
	m.life.Go(func() { left.Unstage(watching) })
	m.schedule.queue.Start(ctx)
	<-ctx.Done()
	m.end()
	return m.close(unlock)
}

// runPlugins has the plugins work that do so beside their volumes.
func (m *Manager) runPlugins(ctx context.Context) {
	for _, p := range m.config.Plugins {
		m.life.Go(func() {
			if err := volume.RunPlugin(ctx, p, m.reconciler.sourceAnswers); err != nil && ctx.Err() == nil {
				m.log.Warn("a plugin does not work beside its volumes any more", "plugin", p.GetPluginName(), "error", err)
			}
		})
	}
}

// HiddenMounts says why the host would not see mounts below the root directory: Run has
// found, and logged, that this agent's container lacks mount propagation. Else it is nil.
func (m *Manager) HiddenMounts() *propagation.Warning { return m.hidden.Load() }

// end lets nothing new begin. It may be repeated.
func (m *Manager) end() {
	m.entries.Lock()
	defer m.entries.Unlock()
	if !m.life.Stop() {
		return
	}
	for s := range m.entries.volumes() {
		s.retryAt = time.Time{}
	}
}

// stopWatches ends the watches of all objects, after the last operation.
func (m *Manager) stopWatches() {
	m.entries.Lock()
	var watches dependencies.Set
	for s := range m.entries.volumes() {
		watches.Add(s.watches.Take())
	}
	m.entries.Unlock()
	watches.Stop()
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
		m.schedule.queue.Wait()
		m.life.Wait()
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
func (m *Manager) WaitForRecovery(ctx context.Context) error { return m.life.WaitForRecovery(ctx) }
