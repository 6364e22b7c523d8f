package nfs

import (
	"container/list"
	"slices"
	"strings"
	"time"
)

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
	// pause is 0 while the circuit is closed.
	pause   time.Duration
	retryAt time.Time
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

func newCircuit(config *BreakerConfig) *circuit { return &circuit{config: config} }

func (c *circuit) isOpen() bool { return c.pause > 0 }

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
	switch {
	case c.trial == a:
		c.pause = min(2*c.pause, c.config.LastPause)
	case c.isOpen() || c.failures < c.config.Failures:
		return
	default:
		c.pause = c.config.FirstPause
	}
	c.retryAt = now.Add(c.pause)
}

func (c *circuit) close() {
	c.failures, c.since, c.last, c.seen = 0, time.Time{}, nil, time.Time{}
	c.pause, c.retryAt = 0, time.Time{}
	c.endTrial()
}

// endTrial lets those go on that wait for it.
func (c *circuit) endTrial() {
	if c.trial != nil {
		close(c.trial.ended)
		c.trial = nil
	}
}

// endpoint is one service of a server: mounts from the same endpoint go the same
// way.
type endpoint struct {
	server string // as in export.normal
	// options are the mount options that lead elsewhere than to the usual
	// service, sorted and separated by commas.
	options string
}

// String is the server, and the options after it.
func (e endpoint) String() string {
	if e.options == "" {
		return e.server
	}
	return e.server + " (" + e.options + ")"
}

func endpointOf(e export, options []string) endpoint {
	var ways []string
	for _, given := range options {
		for o := range strings.SplitSeq(given, ",") {
			if way := wayOf(strings.TrimSpace(o)); way != "" {
				ways = append(ways, way)
			}
		}
	}
	slices.Sort(ways)
	return endpoint{e.normal().server, strings.Join(slices.Compact(ways), ",")}
}

// wayOf returns what an option says of the way to the server (nfs(5)), or
// nothing. NFSv3 asks more services of the server than the others.
func wayOf(option string) string {
	name, value, _ := strings.Cut(option, "=")
	switch name {
	case "port", "addr", "mountaddr", "mounthost", "mountport", "mountproto", "udp", "rdma":
		return option
	case "proto":
		if value != "tcp" {
			return option
		}
	case "vers", "nfsvers":
		if value == "3" {
			return "vers=3"
		}
	case "v3":
		return "vers=3"
	}
	return ""
}
