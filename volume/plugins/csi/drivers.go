package csi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/volumesource"
)

// drivers are the drivers of the node, by name.
type drivers struct {
	log       *slog.Logger
	dial      dialer
	observers observers

	mu     sync.Mutex
	byName map[string]*driver
	// older are registrations of a name that have another after them.
	older map[string][]*driver
}

// dialer is [Config.Dial].
type dialer = func(ctx context.Context, socket string) (net.Conn, error)

// driver is one registration of a driver: a name and a socket.
type driver struct {
	name, socket string
	dial         dialer
	observers    *observers
	fixed        bool // by the configuration
	since        time.Time
	connecting   chan struct{} // holds a value while a session is opened

	mu       sync.Mutex
	closed   bool
	session  *session
	running  map[*runningCall]struct{}
	failures int
	failing  time.Time // since when
	failure  error     // the last
}

// runningCall is a call that has not returned.
type runningCall struct {
	method, volume string
	since          time.Time
}

func newDrivers(c Config) *drivers {
	d := &drivers{log: c.Logger, dial: c.Dial, byName: make(map[string]*driver), older: make(map[string][]*driver)}
	for name, socket := range c.Drivers {
		d.byName[name] = d.newDriver(name, socket, true)
	}
	return d
}

func (d *drivers) newDriver(name, socket string, fixed bool) *driver {
	return &driver{name: name, socket: socket, dial: d.dial, observers: &d.observers, fixed: fixed, since: time.Now(), connecting: make(chan struct{}, 1), running: make(map[*runningCall]struct{})}
}

// get returns a driver. The error has the mark of NothingDone.
func (d *drivers) get(name string) (*driver, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if found := d.byName[name]; found != nil {
		return found, nil
	}
	return nil, volume.NothingDone(notRegistered(name, slices.Sorted(maps.Keys(d.byName))))
}

func (d *drivers) close() error {
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

func (d *driver) close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	if d.session == nil {
		return nil
	}
	s := d.session
	d.session = nil
	return s.conn.Close()
}

// retire closes the connection after the last call under way. No other begins.
func (d *driver) retire() {
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
func (d *driver) ready(ctx context.Context) (*session, error) {
	if s := d.current(); s.isReady() {
		return s, nil
	}
	select {
	case d.connecting <- struct{}{}:
	case <-ctx.Done():
		return nil, volume.NothingDone(unreachable(d.name, d.socket, context.Cause(ctx)))
	}
	defer func() { <-d.connecting }()
	if s := d.current(); s.isReady() {
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

func (d *driver) current() *session {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.session
}

func (d *driver) replace(s *session) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return errors.Join(fmt.Errorf("the connections of driver %s are closed", d.name), s.conn.Close())
	}
	if d.session != nil {
		d.session.conn.Close() // it has ended
	}
	d.session = s
	return nil
}

// failed notes that the driver has not answered.
func (d *driver) failed(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.failures == 0 {
		d.failing = time.Now()
	}
	d.failures++
	d.failure = err
}

func (d *driver) answered() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.failures, d.failing, d.failure = 0, time.Time{}, nil
}

// call is one call of a driver for one volume.
type call struct {
	driver *driver
	method string
	volume string   // its id
	secret []string // what must not be in an error
}

// do makes a call: one at a time for a volume, and no longer than the limit. An error of
// a call that was not sent has the mark of NothingDone. Another one is of failedCall.
func (p *Plugin) do(ctx context.Context, c call, send func(context.Context, *session) error) error {
	caller := ctx
	ctx, cancel := context.WithTimeout(ctx, p.config.CallTimeout)
	defer cancel()
	unlock, err := p.calls.Lock(ctx, c.driver.name+"^"+c.volume)
	if err != nil {
		return volume.NothingDone(fmt.Errorf("an earlier call of driver %s for volume %.128q has not returned: %w", c.driver.name, c.volume, err))
	}
	defer unlock()
	s, err := c.driver.ready(ctx)
	if err != nil {
		return err
	}
	done := c.driver.begin(c)
	err = send(ctx, s)
	done()
	if err == nil {
		c.driver.answered()
		return nil
	}
	failure := endedWith(caller, failedCall(c.method, c.driver.name, c.volume, err, c.secret))
	if isRefusal(failure) {
		c.driver.answered()
	} else {
		c.driver.failed(failure)
	}
	return failure
}

func (d *driver) begin(c call) (done func()) {
	r := &runningCall{method: c.method, volume: c.volume, since: time.Now()}
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

// hangs reports whether a call has not returned for longer than a measurement may take,
// and since when.
func (d *driver) hangs() (since time.Time, hangs bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for r := range d.running {
		if time.Since(r.since) >= statsTimeout && (!hangs || r.since.Before(since)) {
			since, hangs = r.since, true
		}
	}
	return since, hangs
}

// DriverStatus is what is known of a driver without a call.
type DriverStatus struct {
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
}

// CallStatus is a call under way.
type CallStatus struct {
	Method, Volume string
	Since          time.Time
}

// Drivers returns the status of all drivers, by name. It does no I/O.
func (p *Plugin) Drivers() []DriverStatus {
	p.drivers.mu.Lock()
	defer p.drivers.mu.Unlock()
	var all []DriverStatus
	for _, name := range slices.Sorted(maps.Keys(p.drivers.byName)) {
		all = append(all, p.drivers.byName[name].status())
	}
	return all
}

func (d *driver) status() DriverStatus {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := DriverStatus{Name: d.name, Socket: d.socket, Since: d.since, Connected: d.session.isReady(), Failures: d.failures, FailingSince: d.failing, Err: d.failure}
	if d.session != nil {
		s.Version = d.session.version
		for _, c := range d.session.can {
			s.Capabilities = append(s.Capabilities, csi.NodeServiceCapability_RPC_Type_name[int32(c)])
		}
	}
	for r := range d.running {
		s.Calls = append(s.Calls, CallStatus{Method: r.method, Volume: r.volume, Since: r.since})
	}
	slices.SortFunc(s.Calls, func(a, b CallStatus) int { return a.Since.Compare(b.Since) })
	return s
}

// Connect connects to a driver unless there is a connection, so that [Plugin.Drivers]
// knows its version and what it can do. The error is that of a call.
func (p *Plugin) Connect(ctx context.Context, name string) error {
	d, err := p.drivers.get(name)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, p.config.CallTimeout)
	defer cancel()
	if _, err := d.ready(ctx); err != nil {
		return err
	}
	d.answered()
	return nil
}

// SourceHealth implements [volumesource.HealthPlugin]: a volume's server is its driver.
func (p *Plugin) SourceHealth(spec *volume.Spec) (volumesource.Health, bool) {
	s, err := p.Source(spec)
	if err != nil || s.isNothing() {
		return volumesource.Health{}, false
	}
	health := volumesource.Health{Source: s.driver, Answers: true}
	d, err := p.drivers.get(s.driver)
	if err != nil {
		health.Answers, health.Err = false, err
		return health, true
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	health.Answers, health.Since, health.Failures, health.Err = d.failures == 0, d.failing, d.failures, d.failure
	return health, true
}
