package volumemanager

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"

	"github.com/podvol/podvol/mount"
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
	podDirs    podDirs

	ready   chan struct{} // closed when the records have been read
	stopped chan struct{} // closed when Run ends

	mu       sync.Mutex
	ran      bool
	calls    sync.WaitGroup // calls let in by enter; Add only under mu while not stopping
	stopping bool
	actual   actualState
	watchers map[*watcher]struct{}

	// unreadable are the volumes whose records must not be overwritten, by
	// volumeKey.String. It is not changed after recovery.
	unreadable map[string]*UnreadableRecordError
}

func newManager(config Config, host *volume.Host, plugins *volume.VolumePluginMgr) *Manager {
	return &Manager{
		config:     config,
		host:       host,
		plugins:    plugins,
		log:        config.Logger,
		ready:      make(chan struct{}),
		stopped:    make(chan struct{}),
		actual:     make(actualState),
		unreadable: make(map[string]*UnreadableRecordError),
		watchers:   make(map[*watcher]struct{}),
	}
}

// Run locks the root directory, reads its records, and serves the other
// methods until ctx ends; then it cancels what is under way, waits for it, and
// returns nil. Mounts stay. A root that is owned by another process is a
// *[RootBusyError], one that cannot be used a *[RootError]; a second call
// returns [ErrAlreadyRun].
func (m *Manager) Run(ctx context.Context) error {
	if !m.begin() {
		return ErrAlreadyRun
	}
	defer m.end()
	unlock, err := lockRoot(m.host.RootDir)
	if err != nil {
		return err
	}
	defer unlock()
	if err := m.recover(); err != nil {
		return &RootError{m.host.RootDir, err}
	}
	close(m.ready)
	<-ctx.Done()
	m.drain()
	return m.records.close()
}

func (m *Manager) begin() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	first := !m.ran
	m.ran = true
	return first
}

// drain cancels the calls and waits for them; what hangs in the kernel on their
// behalf is left behind, as the contract of util/flight says.
func (m *Manager) drain() {
	m.end()
	m.calls.Wait()
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

// WaitForRecovery waits until Run owns the root directory and knows what is
// there. It returns [ErrStopped] when Run has ended, and the cause of ctx's
// end when that comes first.
func (m *Manager) WaitForRecovery(ctx context.Context) error {
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
	table, err := mount.TableOf(m.host.Mounter)
	if err != nil {
		return err
	}
	if _, err := durable.Sweep(ownDir(m.host.RootDir)); err != nil {
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
		m.unreadable[err.Volume] = err
	}
	for _, record := range found {
		line, err := volume.EncodeRecord(record)
		if err != nil {
			return err
		}
		v := m.actual.volume(keyOf(record))
		v.record, v.line, v.status = record, line, statusOf(record, table)
	}
	return nil
}

// Explain returns the status of every volume that is mounted, being worked on,
// or recorded, ordered by pod and volume.
func (m *Manager) Explain() []VolumeStatus {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []VolumeStatus
	for _, volumes := range m.actual {
		for _, v := range volumes {
			all = append(all, v.status)
		}
	}
	slices.SortFunc(all, compareStatus)
	return all
}
