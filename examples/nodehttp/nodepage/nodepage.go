// Package nodepage shows the volumes of a node to people, as one page of HTML. The server
// renders all of it, so it needs no script. With one it updates itself: the script watches the
// node by the path watch beside the page (nodehttp.WatchPage), asks for the page anew after a
// change, and puts the difference in place. The page has nothing from elsewhere, and its policy
// lets it load nothing.
package nodepage

import (
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/podvol/podvol/examples/nodehttp/nodeevents"
	"github.com/podvol/podvol/volume/volumemanager"
)

// Config says what a page shows. Several goroutines call its functions.
type Config struct {
	// Node is the node's name.
	Node string
	// Rows are the rows of the manager's Explain.
	Rows func() []volumemanager.VolumeStatus
	// Drivers are the node's CSI drivers; nil: it has none.
	Drivers func() []Driver
	// Refused are the manifests that the node refuses; nil: it has none.
	Refused func() []Refused
	// Damaged says which records are lost; nil: the page says nothing about that.
	Damaged func() error
	// Events are what happened lately, the oldest first; nil: the page has none.
	Events func() []nodeevents.Event
	// Version is another number after each change of anything that the page shows. The clients of
	// the path watch must be told of the same changes, as [nodehttp.Watch] does both.
	Version func() uint64
}

// Driver is a CSI driver as the page shows it.
type Driver struct {
	Name, Version string
	// State is a word, and Trouble says that it is no good one.
	State   string
	Trouble bool
	// Calls are under way, as people read them.
	Calls []string
	// Error is the last call's; Since is when the first of the calls without an answer was.
	Error string
	Since time.Time
}

// Refused is a manifest that a node refuses.
type Refused struct {
	Path, Reason string
	Since        time.Time
}

// pause is the least time between two looks at the node, however many look at the page, and how
// long a look is young.
const pause = time.Second

// Page is the page of a node. ServeHTTP may be called concurrently.
type Page struct {
	config Config

	mu     sync.Mutex // held during a look at the node, which is one at its memory
	shared *look      // the last look, while it is young
	next   time.Time  // when the next look may be
}

// look is the state of a node at a time.
type look struct {
	version uint64
	taken   time.Time
	rows    []volumemanager.VolumeStatus
	drivers []Driver
	refused []Refused
	damaged error
	events  events
}

// New returns a page.
func New(config Config) *Page {
	return &Page{config: config}
}

// ServeHTTP answers with the page. The parameter q is a text that volumes must have, state is
// a state that they must have, and page counts from 1.
func (p *Page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	l := p.look(r.Context())
	if l == nil {
		return // the client has gone
	}
	v := newView(p.config.Node, l, r.URL.Query())
	header := w.Header()
	header.Set("Content-Type", "text/html; charset=utf-8")
	header.Set("Content-Security-Policy", policy())
	header.Set("Cache-Control", "no-store")
	header.Set("Cross-Origin-Opener-Policy", "same-origin")
	header.Set("Cross-Origin-Resource-Policy", "same-origin")
	header.Set("Referrer-Policy", "no-referrer")
	header.Set("X-Content-Type-Options", "nosniff")
	_, _ = w.Write(v.render()) // the client may have gone
}

// look returns the state of the node as it is now, or later. It waits where the node has changed
// since the last look and may not be looked at again yet. It returns nil once ctx has ended.
func (p *Page) look(ctx context.Context) *look {
	asked := time.Now()
	for ctx.Err() == nil {
		l, wait := p.lookSince(asked)
		if l != nil {
			return l
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		}
	}
	return nil
}

// lookSince looks at the node, or takes the last look while that is young, and the node has not
// changed since, or not since the page was asked for. Otherwise it returns how long to wait.
func (p *Page) lookSince(asked time.Time) (*look, time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	l := &look{version: p.config.Version(), taken: time.Now()}
	if left := p.next.Sub(l.taken); left > 0 && p.shared != nil {
		if p.shared.version == l.version || p.shared.taken.After(asked) {
			return p.shared, 0
		}
		return nil, left
	}
	l.rows = p.config.Rows()
	if p.config.Drivers != nil {
		l.drivers = p.config.Drivers()
	}
	if p.config.Refused != nil {
		l.refused = p.config.Refused()
	}
	if p.config.Damaged != nil {
		l.damaged = p.config.Damaged()
	}
	if p.config.Events != nil {
		l.events = newEvents(p.config.Events(), l.rows)
	}
	p.shared, p.next = l, time.Now().Add(pause)
	time.AfterFunc(pause, func() { // nobody may look for days
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.shared == l {
			p.shared = nil
		}
	})
	return l, 0
}
