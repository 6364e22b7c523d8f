package drivers

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/podvol/podvol/util/keylock"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/volumesource"
)

// Set is the drivers of a node, by name. It is safe for concurrent use.
type Set struct {
	config Config
	// calls keeps the calls of one volume apart.
	calls     keylock.Map[string]
	observers observers
	sent      sentSecrets

	mu     sync.Mutex
	byName map[string]*Driver
	// older are registrations of a name that have another after them.
	older map[string][]*Driver
}

// Driver is one registration of a driver: a name and a socket.
type Driver struct {
	// Name and Socket are the registration. Fixed: it is the configuration's.
	Name, Socket string
	Fixed        bool
	set          *Set
	since        time.Time
	connecting   chan struct{} // holds a value while a session is opened

	mu       sync.Mutex
	closed   bool
	session  *Session
	running  map[*CallStatus]struct{}
	failures int
	failing  time.Time // since when
	failure  error     // the last
	// silentSince is when it took a connection first and answered nothing; zero: it did.
	silentSince time.Time
	storage     *volume.Condition
	asked       time.Time // for the storage's condition
}

// NewSet returns the drivers that have sockets of their own. It does no I/O.
func NewSet(c Config) *Set {
	d := &Set{config: c, byName: make(map[string]*Driver), older: make(map[string][]*Driver)}
	for name, socket := range c.Sockets {
		d.byName[name] = d.newDriver(name, socket, true)
	}
	return d
}

func (d *Set) newDriver(name, socket string, fixed bool) *Driver {
	return &Driver{Name: name, Socket: socket, Fixed: fixed, set: d, since: time.Now(), connecting: make(chan struct{}, 1), running: make(map[*CallStatus]struct{})}
}

// Get returns a driver. The error has the mark of NothingDone.
func (d *Set) Get(name string) (*Driver, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if found := d.byName[name]; found != nil {
		return found, nil
	}
	return nil, volume.NothingDone(notRegistered(name, slices.Sorted(maps.Keys(d.byName))))
}

// Close ends the connections. Calls under way end with an uncertain error. It may be
// called twice.
func (d *Set) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	var errs []error
	for _, one := range d.byName {
		errs = append(errs, one.close())
	}
	for _, older := range d.older {
		for _, one := range older {
			errs = append(errs, one.close())
		}
	}
	return errors.Join(errs...)
}

func (d *Driver) close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	if d.session == nil {
		return nil
	}
	s := d.session
	d.session = nil
	return s.Conn.Close()
}

// retire closes the connection after the last call under way. No other begins.
func (d *Driver) retire() {
	d.mu.Lock()
	d.closed = true
	idle := len(d.running) == 0
	d.mu.Unlock()
	if idle {
		_ = d.close() // nobody waits for it
	}
}

// ready returns the session, and opens one if there is none or it has ended. Of several
// callers one opens it. The error has the mark of NothingDone.
func (d *Driver) ready(ctx context.Context) (*Session, error) {
	if s := d.Current(); s.isReady() {
		return s, nil
	}
	select {
	case d.connecting <- struct{}{}:
	case <-ctx.Done():
		return nil, volume.NothingDone(unreachable(d.Name, d.Socket, context.Cause(ctx)))
	}
	defer func() { <-d.connecting }()
	if s := d.Current(); s.isReady() {
		return s, nil
	}
	s, err := connect(ctx, d)
	if err != nil {
		err = endedWith(ctx, err)
		d.failed(err)
		return nil, volume.NothingDone(err)
	}
	return s, volume.NothingDone(d.replace(s))
}

// Current returns the driver's last connection; nil: there was none.
func (d *Driver) Current() *Session {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.session
}

func (d *Driver) replace(s *Session) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return errors.Join(fmt.Errorf("the connections of driver %s are closed", d.Name), s.Conn.Close())
	}
	if d.session != nil {
		d.session.Conn.Close() // it has ended
	}
	d.session = s
	return nil
}

// failed notes that the driver has not answered.
func (d *Driver) failed(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.failures == 0 {
		d.failing = time.Now()
	}
	d.failures++
	d.failure = err
}

func (d *Driver) answered() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.failures, d.failing, d.failure = 0, time.Time{}, nil
}

// Call is one call of a driver for one volume.
type Call struct {
	Driver *Driver
	Method string
	Volume string   // its id
	Secret []string // what must not be in this call's error, nor in a later one's
	// Migrated: the volume was translated from an in-tree source.
	Migrated bool
}

// Do makes a call: one at a time for a volume, and no longer than the limit. An error of
// a call that was not sent has the mark of NothingDone. Another one is of failedCall.
func (s *Set) Do(ctx context.Context, c Call, send func(context.Context, *Session) error) error {
	caller := ctx
	ctx, cancel := context.WithTimeout(ctx, s.config.CallTimeout)
	defer cancel()
	unlock, err := s.calls.Lock(ctx, c.Driver.Name+"^"+c.Volume)
	if err != nil {
		return volume.NothingDone(fmt.Errorf("an earlier call of driver %s for volume %.128q has not returned: %w", c.Driver.Name, c.Volume, err))
	}
	defer unlock()
	session, err := c.Driver.ready(ctx)
	if err != nil {
		return err
	}
	s.sent.add(c.Secret)
	done := c.Driver.begin(c)
	err = send(context.WithValue(ctx, migratedKey{}, c.Migrated), session)
	done()
	if err == nil {
		c.Driver.answered()
		return nil
	}
	failure := endedWith(caller, s.failedCall(c.Method, c.Driver.Name, c.Volume, err, c.Secret...))
	if status.Code(err) == codes.Canceled && errors.Is(caller.Err(), context.Canceled) {
		failure = abandonedCall(c, context.Cause(caller), failure)
	}
	if IsRefusal(failure) {
		c.Driver.answered()
	} else {
		c.Driver.failed(failure)
	}
	return failure
}

func (d *Driver) begin(c Call) (done func()) {
	r := &CallStatus{Method: c.Method, Volume: c.Volume, Since: time.Now()}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.running[r] = struct{}{}
	return func() {
		d.mu.Lock()
		delete(d.running, r)
		last := d.closed && len(d.running) == 0
		d.mu.Unlock()
		if last {
			_ = d.close()
		}
	}
}

// Hangs reports whether a call has not returned for at least that long, and since when.
func (d *Driver) Hangs(long time.Duration) (since time.Time, hangs bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for r := range d.running {
		if time.Since(r.Since) >= long && (!hangs || r.Since.Before(since)) {
			since, hangs = r.Since, true
		}
	}
	return since, hangs
}

// Status has the facts about a driver that need no call.
type Status struct {
	// Name and Socket are the registration. Since is its time.
	Name, Socket string
	Since        time.Time
	// Connected: there is a connection. Version and Capabilities are those of the
	// driver's last connection.
	Connected    bool
	Version      string
	Capabilities []string
	// Calls are under way, the oldest first.
	Calls []CallStatus
	// Failures counts the calls without a certain answer since the last one with it.
	// FailingSince is the first of them, and Err the last; nil: none.
	Failures     int
	FailingSince time.Time
	Err          error
	// Storage is the condition of the driver's storage as it was told last; nil: it was not
	// asked for, or the driver does not tell. The caller must not change it.
	Storage *volume.Condition
}

// CallStatus is a call under way.
type CallStatus struct {
	Method, Volume string
	Since          time.Time
}

// Status returns that of all drivers, by name. It does no I/O.
func (s *Set) Status() []Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []Status
	for _, name := range slices.Sorted(maps.Keys(s.byName)) {
		all = append(all, s.byName[name].status())
	}
	return all
}

func (d *Driver) status() Status {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := Status{Name: d.Name, Socket: d.Socket, Since: d.since, Connected: d.session.isReady(), Failures: d.failures, FailingSince: d.failing, Err: d.failure, Storage: d.storage}
	if d.session != nil {
		s.Version = d.session.version
		for _, c := range d.session.can {
			s.Capabilities = append(s.Capabilities, csi.NodeServiceCapability_RPC_Type_name[int32(c)])
		}
	}
	for r := range d.running {
		s.Calls = append(s.Calls, *r)
	}
	slices.SortFunc(s.Calls, func(a, b CallStatus) int { return a.Since.Compare(b.Since) })
	return s
}

// Session returns the driver's connection, and opens one if there is none or it has ended,
// no longer than the limit of calls. The error has the mark of NothingDone.
func (s *Set) Session(ctx context.Context, d *Driver) (*Session, error) {
	ctx, cancel := context.WithTimeout(ctx, s.config.CallTimeout)
	defer cancel()
	return d.ready(ctx)
}

// Connect opens a session, which counts as an answer of the driver.
func (s *Set) Connect(ctx context.Context, name string) error {
	d, err := s.Get(name)
	if err != nil {
		return err
	}
	if _, err := s.Session(ctx, d); err != nil {
		return err
	}
	d.answered()
	return nil
}

// Health says whether the driver answers. Its Source is the driver's name.
func (d *Driver) Health() volumesource.Health {
	d.mu.Lock()
	defer d.mu.Unlock()
	return volumesource.Health{Source: d.Name, Answers: d.failures == 0, Since: d.failing, Failures: d.failures, Err: d.failure}
}

// StorageIsDue reports whether the condition of the storage was not asked for since a pause, and
// notes that it is now: of several callers one asks.
func (d *Driver) StorageIsDue(pause time.Duration) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.asked.IsZero() && time.Since(d.asked) < pause {
		return false
	}
	d.asked = time.Now()
	return true
}

// SetStorage notes the condition of the driver's storage, and reports whether it is news.
func (d *Driver) SetStorage(c *volume.Condition) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	news := d.storage == nil || *d.storage != *c
	d.storage = c
	return news
}
