package nfs

import (
	"cmp"
	"container/list"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/util/blockingcall"
	"github.com/podvol/podvol/util/retry"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/pluginbase"
	"github.com/podvol/podvol/volume/internal/podmount"
	"github.com/podvol/podvol/volume/volumesource"
)

// BreakerConfig says when mounts from a server that does not answer are refused at once,
// and how often it is tried then. Its zero value suits nodes.
//
//   - A mount counts that had no answer: the cause [mount.ErrTimedOut], also where its
//     context's deadline ended it after three seconds or more, and a mount that has not
//     ended after Patience, though it goes on.
//   - A server that refuses a mount (access denied, no such export or version) has
//     answered. So has one whose mount succeeds, however late: that ends the trouble.
//   - A refused connection costs no time and is not counted. While a server is tried again
//     it means that the server is not back.
//   - Faults of the node or the volume, cancelled mounts, unmounts and measurements do not
//     count: they concern single mounts, which may hang on a server that takes others.
//   - A server is its name or address with the mount options that lead to another of its
//     services, such as port= and vers=3: a firewall may keep clients from one of them.
//   - It is forgotten when it answers, or after ten times LastPause without a mount.
type BreakerConfig struct {
	// Failures is how many mounts in a row without an answer it takes; 0 means 3,
	// less than 0 that no mount is ever refused.
	Failures int
	// FirstPause is how long mounts are refused then, until one is let through to
	// try the server. If that has no answer either, the pause doubles, up to
	// LastPause. 0 means 5 seconds and one minute.
	FirstPause, LastPause time.Duration
	// Patience is how long a mount may be without an answer before it counts, and
	// how long others wait for the one that tries the server; 0 means 15 seconds.
	Patience time.Duration
}

func (c BreakerConfig) withDefaults() BreakerConfig {
	c.Failures = cmp.Or(c.Failures, 3)
	c.FirstPause = cmp.Or(c.FirstPause, 5*time.Second)
	c.LastPause = max(cmp.Or(c.LastPause, time.Minute), c.FirstPause)
	c.Patience = cmp.Or(c.Patience, 15*time.Second)
	return c
}

// remembers is how many LastPauses a server stays in the book that no mount asks
// for.
const remembers = 10

// breaker keeps book of the servers that are being mounted from or did not
// answer, of no others. It has no goroutine and no timer: whether an attempt has
// taken too long is found out at the next question. Its methods are safe for
// concurrent use.
type breaker struct {
	config BreakerConfig

	mu      sync.Mutex
	servers map[endpoint]*circuit
}

func newBreaker(config BreakerConfig) *breaker {
	return &breaker{config: config.withDefaults(), servers: make(map[endpoint]*circuit)}
}

// do makes one mount from a server unless that is known not to answer, which is
// a *[ServerDownError]. From its RetryAt on one mount is let through to try the
// server; those that come meanwhile wait for its end, no longer than Patience,
// and then go on or fail likewise. An error of the mount itself that leaves the
// server down says when to try again ([volume.RetryAtError]).
func (b *breaker) do(ctx context.Context, server endpoint, mount func() error) error {
	if b.config.Failures < 0 {
		return mount()
	}
	a, err := b.enter(ctx, server)
	if err != nil {
		return err
	}
	err = mount()
	if at, down := b.leave(a, err); down {
		return &retryError{err, at}
	}
	return err
}

// enter waits for its turn and begins an attempt.
func (b *breaker) enter(ctx context.Context, server endpoint) (*attempt, error) {
	for {
		a, trial, down := b.begin(server)
		if a != nil {
			return a, nil
		}
		if trial == nil {
			return nil, volume.NothingDone(down)
		}
		if err := b.await(ctx, trial); err != nil {
			return nil, volume.NothingDone(fmt.Errorf("%w, while another mount was trying the server: %w", err, down))
		}
	}
}

// begin begins an attempt, or returns the one to wait for, or neither, and why
// then.
func (b *breaker) begin(server endpoint) (a, trial *attempt, down *ServerDownError) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	c, known := b.servers[server]
	if !known {
		c = newCircuit(&b.config)
		b.servers[server] = c
	}
	a, trial = c.begin(now)
	if a == nil {
		return nil, trial, c.downError(server)
	}
	a.server = server
	return a, nil, nil
}

// await waits for the end of an attempt, or until it has taken too long. The
// error is the cause of ctx's end.
func (b *breaker) await(ctx context.Context, trial *attempt) error {
	patience := time.NewTimer(time.Until(trial.began.Add(b.config.Patience)))
	defer patience.Stop()
	select {
	case <-trial.ended:
	case <-patience.C:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return nil
}

// leave takes down how an attempt has ended. If that was for want of an answer
// and the server is down, it returns from when on it is tried again.
func (b *breaker) leave(a *attempt, err error) (retryAt time.Time, down bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	c, known := b.servers[a.server]
	if !known {
		return time.Time{}, false // it was counted long ago, and the server forgotten
	}
	v := judge(err, now.Sub(a.began))
	c.end(a, now, v, err)
	if c.isForgotten() {
		delete(b.servers, a.server)
	} else if c.failures > 0 {
		b.sweep(now)
	}
	return c.retryAt, c.isOpen() && (v == silent || v == refused)
}

// sweep forgets servers that no mount has asked for since long ago. The caller
// holds the lock.
func (b *breaker) sweep(now time.Time) {
	for server, c := range b.servers {
		if c.settle(now); c.isForgotten() {
			delete(b.servers, server)
		}
	}
}

// health returns a server's state.
func (b *breaker) health(server endpoint) volumesource.Health {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.look(server)
}

// worst returns the state of a server's service in the worst trouble, or the
// server's own if none is in any.
func (b *breaker) worst(server string) volumesource.Health {
	b.mu.Lock()
	defer b.mu.Unlock()
	worst := volumesource.Health{Source: server, Answers: true}
	for e := range b.servers {
		if e.server != server {
			continue
		}
		if h := b.look(e); h.Failures > 0 && compareTrouble(h, worst) > 0 {
			worst = h
		}
	}
	return worst
}

// compareTrouble orders healths, the worst last.
func compareTrouble(a, b volumesource.Health) int {
	if a.Answers != b.Answers {
		if b.Answers {
			return 1
		}
		return -1
	}
	return cmp.Or(cmp.Compare(a.Failures, b.Failures), a.RetryAt.Compare(b.RetryAt), strings.Compare(b.Source, a.Source))
}

// look returns a server's state by now. The caller holds the lock.
func (b *breaker) look(server endpoint) volumesource.Health {
	h := volumesource.Health{Source: server.String(), Answers: true}
	c, known := b.servers[server]
	if !known {
		return h
	}
	if c.settle(time.Now()); c.isForgotten() {
		delete(b.servers, server)
		return h
	}
	if c.failures > 0 {
		cause, last := reasonOf(c.last)
		h.Since, h.Failures, h.Err = c.since, c.failures, fmt.Errorf("%w: %w", cause, last)
	}
	if c.isOpen() {
		h.Answers, h.RetryAt = false, c.retryAt
	}
	return h
}

var errNoAnswerYet = errors.New("it has not ended, and the server has not answered so far")

// setUp is [podmount.SetUp] that asks no server that is known not to answer. A
// volume that is mounted already is success, whatever its server does.
func (p *plugin) setUp(ctx context.Context, e export, request mount.Request, same func(mount.Entry) bool) (made bool, err error) {
	m := p.Host.GetMounter()
	return podmount.SetUpBy(ctx, m, request, same, func() error {
		return p.breaker.do(ctx, endpointOf(e, request.Options), func() error { return mountByOwnName(ctx, m, e, request) })
	})
}

// SourceHealth implements [volumesource.HealthPlugin]: the server of the volume,
// as its PersistentVolume leads to it. To which of a server's services an inline
// volume leads may be its pod's choice or a policy's: where the policy has an
// entry for the server, it is the one in the worst trouble.
func (p *plugin) SourceHealth(spec *volume.Spec) (volumesource.Health, bool) {
	source, err := p.Source(spec)
	if err != nil {
		return volumesource.Health{}, false
	}
	e, err := parseExport(source)
	if err != nil {
		return volumesource.Health{}, false
	}
	if _, byPolicy := p.config.Inline.forServer(e.server); spec.PersistentVolume == nil && byPolicy {
		return p.breaker.worst(e.normal().server), true
	}
	options, err := pluginbase.Options(spec, false)
	if err != nil {
		return volumesource.Health{}, false
	}
	return p.breaker.health(endpointOf(e, options)), true
}

func (c *circuit) downError(server endpoint) *ServerDownError {
	cause, last := reasonOf(c.last)
	return &ServerDownError{Server: server.String(), Since: c.since, Failures: c.failures, Next: c.retryAt, Last: last, Cause: cause}
}

// reasonOf is the reason of a failed mount, without whose mount it was.
func reasonOf(err error) (cause mount.Cause, reason error) {
	e, ok := errors.AsType[*mount.Error](err)
	if !ok {
		return mount.ErrTimedOut, err
	}
	if e.Err == nil || e.Err == error(e.Cause) {
		return e.Cause, errors.New("nothing more is known")
	}
	return e.Cause, e.Err
}

// leastSilence is how long a server must have been silent before a deadline ends
// the mount for that to mean anything: TCP repeats a lost packet after one second
// and after two more.
const leastSilence = 3 * time.Second

// judge tells what the end of a mount says of its server. Whether a name could
// not be resolved in time or the server behind it was silent makes no difference.
func judge(err error, took time.Duration) verdict {
	if err == nil {
		return answered
	}
	e, ok := errors.AsType[*mount.Error](err)
	if !ok {
		return saysNothing // it did not come to a mount
	}
	switch e.Cause {
	case mount.ErrAccessDenied, mount.ErrNoSuchExport, mount.ErrVersionUnsupported, mount.ErrStaleHandle:
		return answered
	case mount.ErrConnectionRefused, mount.ErrNameResolution:
		return refused
	case mount.ErrTimedOut:
		if abandoned, ok := errors.AsType[*blockingcall.AbandonedError](err); ok && !abandoned.Started && !abandoned.Earlier {
			return saysNothing
		}
		if isCut(err) && took < leastSilence {
			return saysNothing
		}
		return silent
	}
	return saysNothing
}

// isCut tells a mount that was ended by a deadline, rather than by what the
// network said.
func isCut(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded)
}

// circuit is the state of one server: closed while mounts from it are made, open
// while they are refused, except one that tries the server from retryAt on.
// Nothing in it looks at a clock; times that are given to it never go back.
type circuit struct {
	config *BreakerConfig

	// failures counts attempts without an answer since the last that had one;
	// since is when the first of them began, last why the last of them failed and
	// seen when that was found out.
	failures int
	since    time.Time
	last     error
	seen     time.Time
	// retryAt is zero while the circuit is closed.
	retryAt time.Time
	pause   retry.Pause
	trial   *attempt // under way, and not counted; nil: none
	// waiting are the attempts that are under way and not counted, the oldest
	// first, and so those that are counted first.
	waiting list.List
}

// attempt is one mount.
type attempt struct {
	server endpoint
	began  time.Time
	place  *list.Element // in waiting; nil once it is counted
	ended  chan struct{} // closed when others need not wait any more; nil but for a trial
}

// verdict is what the end of a mount says of the server.
type verdict int

const (
	saysNothing verdict = iota
	answered
	silent
	// refused: the machine answers, but not the server.
	refused
)

func newCircuit(config *BreakerConfig) *circuit {
	return &circuit{config: config, pause: retry.Pause{First: config.FirstPause, Last: config.LastPause}}
}

func (c *circuit) isOpen() bool { return !c.retryAt.IsZero() }

// isForgotten reports whether nothing would be lost with it.
func (c *circuit) isForgotten() bool { return c.failures == 0 && c.waiting.Len() == 0 }

// begin begins an attempt. While the circuit is open there is none but the
// trial; then, that is what to wait for, if there is one under way.
func (c *circuit) begin(now time.Time) (a, trial *attempt) {
	c.settle(now)
	if c.isOpen() && (c.trial != nil || now.Before(c.retryAt)) {
		return nil, c.trial
	}
	a = &attempt{began: now}
	a.place = c.waiting.PushBack(a)
	if c.isOpen() {
		a.ended = make(chan struct{})
		c.trial = a
	}
	return a, nil
}

// end takes down what an attempt has shown. One that was counted may have been
// begun in an earlier circuit of the same server.
func (c *circuit) end(a *attempt, now time.Time, v verdict, err error) {
	c.settle(now)
	counted := a.place == nil
	c.stopWaiting(a)
	isTrial := c.trial == a
	switch {
	case v == answered:
		c.close()
	case v == silent && !counted, v == refused && isTrial:
		c.fail(a, now, err)
	case v == silent && c.failures > 0:
		c.last = err // which says more than that it had not ended
	}
	if isTrial {
		c.endTrial()
	}
}

// settle counts attempts that have taken too long, at the time when they had, and
// forgets old ones.
func (c *circuit) settle(now time.Time) {
	for first := c.waiting.Front(); first != nil; first = c.waiting.Front() {
		a := first.Value.(*attempt)
		overdue := a.began.Add(c.config.Patience)
		if overdue.After(now) {
			break
		}
		c.stopWaiting(a)
		c.forget(overdue)
		isTrial := c.trial == a
		c.fail(a, overdue, errNoAnswerYet)
		if isTrial {
			c.endTrial()
		}
	}
	c.forget(now)
}

// forget closes the circuit if nothing was found out for a long time.
func (c *circuit) forget(now time.Time) {
	if c.failures > 0 && c.trial == nil && now.Sub(c.seen) >= remembers*c.config.LastPause {
		c.close()
	}
}

func (c *circuit) stopWaiting(a *attempt) {
	if a.place != nil {
		c.waiting.Remove(a.place)
		a.place = nil
	}
}

// fail counts an attempt that had no answer. Of several that were begun before
// the circuit opened, only the first ones matter.
func (c *circuit) fail(a *attempt, now time.Time, err error) {
	if c.failures == 0 {
		c.since = a.began
	}
	c.failures++
	c.last, c.seen = err, now
	if c.trial != a && (c.isOpen() || c.failures < c.config.Failures) {
		return
	}
	c.retryAt = now.Add(c.pause.Next())
}

func (c *circuit) close() {
	c.failures, c.since, c.last, c.seen = 0, time.Time{}, nil, time.Time{}
	c.retryAt = time.Time{}
	c.pause.Reset()
	c.endTrial()
}

// endTrial lets those go on that wait for it.
func (c *circuit) endTrial() {
	if c.trial != nil {
		close(c.trial.ended)
		c.trial = nil
	}
}
