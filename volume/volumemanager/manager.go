package volumemanager

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/podvol/podvol/util/durable"
	"github.com/podvol/podvol/util/flight"
	"github.com/podvol/podvol/volume"
)

var (
	// ErrStopped says that the manager's Run has ended.
	ErrStopped = errors.New("the volume manager has stopped")
	// ErrAlreadyRun says that Run was called before; a manager runs once.
	ErrAlreadyRun = errors.New("the volume manager runs only once")
)

// Manager sets up and tears down the volumes of pods below one root directory.
// All methods are safe for concurrent use.
type Manager struct {
	config  Config
	host    *volume.Host
	plugins *volume.VolumePluginMgr
	log     *slog.Logger
	records records // set before ready is closed

	operations flight.Group[volumeKey]
	running    sync.WaitGroup // operations, also those that nobody waits for
	podDirs    podDirs

	ready   chan struct{} // closed when the records have been read
	stopped chan struct{} // closed when Run ends

	mu       sync.Mutex
	ran      bool
	calls    sync.WaitGroup // calls let in by enter; Add only under mu while not stopping
	stopping bool
	actual   actualState
	watchers map[*watcher]struct{}
}

func newManager(config Config, host *volume.Host, plugins *volume.VolumePluginMgr) *Manager {
	return &Manager{
		config:   config,
		host:     host,
		plugins:  plugins,
		log:      config.Logger,
		ready:    make(chan struct{}),
		stopped:  make(chan struct{}),
		actual:   make(actualState),
		watchers: make(map[*watcher]struct{}),
	}
}

// Run locks the root directory, reads its records, and serves the other
// methods until ctx ends; then it cancels what is under way, waits for it, and
// returns nil. Mounts stay. A root that is owned by another process is a
// *[RootBusyError], one that cannot be used a *[RootError]; a second call
// returns [ErrAlreadyRun].
//
// An operation that hangs in the kernel does not keep Run from returning, but
// the root stays locked until it ends, or the process does: what it may still
// do must not surprise the next owner.
func (m *Manager) Run(ctx context.Context) error {
	if !m.begin() {
		return ErrAlreadyRun
	}
	defer m.end()
	unlock, err := lockRoot(m.host.RootDir)
	if err != nil {
		return err
	}
	if err := m.recover(); err != nil {
		unlock()
		return &RootError{m.host.RootDir, err}
	}
	close(m.ready)
	<-ctx.Done()
	m.end()
	m.calls.Wait()
	return m.release(unlock)
}

func (m *Manager) begin() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	first := !m.ran
	m.ran = true
	return first
}

// end lets no more calls in and cancels those under way. It may be repeated.
func (m *Manager) end() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.stopping {
		m.stopping = true
		close(m.stopped)
	}
}

// release closes the records and unlocks the root after the last operation has
// ended, for which it waits only so long.
func (m *Manager) release(unlock func()) error {
	released := make(chan error, 1)
	go func() {
		m.running.Wait()
		err := m.records.close()
		unlock()
		released <- err
	}()
	patience := time.NewTimer(grace)
	defer patience.Stop()
	select {
	case err := <-released:
		return err
	case <-patience.C:
		m.log.Warn("an operation on a volume hangs; the root directory stays locked until it ends", "rootDir", m.host.RootDir)
		return nil
	}
}

// WaitForRecovery waits until Run owns the root directory and knows what is
// there. It returns [ErrStopped] when Run has ended, and the cause of ctx's
// end when that comes first.
func (m *Manager) WaitForRecovery(ctx context.Context) error {
	select {
	case <-m.stopped:
		return ErrStopped
	default:
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	select {
	case <-m.ready:
		return nil
	case <-m.stopped:
		return ErrStopped
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// enter waits for recovery and lets a call in. The returned context also ends
// when the manager stops; leave must be called.
func (m *Manager) enter(ctx context.Context) (inner context.Context, leave func(), err error) {
	if err := m.WaitForRecovery(ctx); err != nil {
		return nil, nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.stopping {
		return nil, nil, ErrStopped
	}
	m.calls.Add(1)
	inner, cancel := context.WithCancelCause(ctx)
	go func() {
		select {
		case <-m.stopped:
			cancel(ErrStopped)
		case <-inner.Done():
		}
	}()
	return inner, func() { cancel(nil); m.calls.Done() }, nil
}

// recover learns from the records and the mount table what is there.
func (m *Manager) recover() error {
	mounted, err := readMounts(m.host.RootDir, m.host.Mounter)
	if err != nil {
		return err
	}
	if _, err := durable.Sweep(StateDir(m.host.RootDir)); err != nil {
		return err
	}
	opened, found, unreadable, damaged, err := openRecords(m.host.RootDir)
	if err != nil {
		return err
	}
	m.records = opened
	for _, err := range damaged {
		m.log.Warn("a part of the volume records is damaged", "error", err)
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
	return nil
}

func (m *Manager) recoverRecord(record *volume.Record, mounted mounts) error {
	line, err := volume.EncodeRecord(record)
	if err != nil {
		return err
	}
	m.set(keyOf(record), actualVolume{record: record, line: line, source: m.sourceName(record)})
	for _, row := range statusOf(record, mounted) {
		m.actual.pod(record.PodUID).rows[row.Volume] = row
	}
	return nil
}

func (m *Manager) recoverUnreadable(unreadable *UnreadableRecordError) {
	key, ok := parseKey(unreadable.Volume)
	if !ok {
		return // it is no volume's, and nothing will ask for it
	}
	m.set(key, actualVolume{unreadable: unreadable})
	m.actual.pod(key.podUID).rows[key.spec] = unreadable.status(key)
}

// sourceName is the plugin's name of a recorded source; empty where the plugin
// does not know it any more.
func (m *Manager) sourceName(record *volume.Record) string {
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

// Explain returns the status of every volume that is mounted, being worked on,
// failed or recorded, ordered by pod and volume.
func (m *Manager) Explain() []VolumeStatus {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []VolumeStatus
	for _, pod := range m.actual {
		for _, row := range pod.rows {
			all = append(all, row)
		}
	}
	slices.SortFunc(all, compareStatus)
	return all
}
