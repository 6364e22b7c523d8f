// Package nodepage shows the volumes of a node to people, as one page of HTML. The server
// renders all of it, so it needs no script. With one it updates itself: the script asks for
// the next state, the server answers when there is one, and the script puts the difference in
// place. The page has nothing from elsewhere, and its policy lets it load nothing.
package nodepage

import (
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/podvol/podvol/examples/nodehttp/nodepage/internal/markup"
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
	// Damaged says which records are lost; nil: the page says nothing about that.
	Damaged func() error
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

const (
	// pause is the least time between two looks at the node, however many look at the page.
	pause = time.Second
	// longest is how long a request waits for a change. Then the ages are new at least.
	longest = 25 * time.Second
	// maxWaiting is how many requests wait for a change, each with a connection of its own.
	// Further ones are refused, and their pages ask from time to time.
	maxWaiting = 16
)

// Page is the page of a node. Changed and ServeHTTP may be called concurrently.
type Page struct {
	config Config
	page   *markup.Template[view]
	begun  int64 // tells the versions of two processes apart

	mu      sync.Mutex
	version uint64
	changed chan struct{} // closed by the next change; nil: nobody waits
	waiting int

	looking sync.Mutex // held during a look at the node
	shared  *look      // the last look, while it is young
	next    time.Time  // when the next look may be
}

// look is the state of a node at a time.
type look struct {
	version string
	taken   time.Time
	rows    []volumemanager.VolumeStatus
	drivers []Driver
	damaged error
}

// New returns a page. Show must be called before its first request.
func New() *Page {
	page, err := markup.Parse[view](source)
	if err != nil {
		panic(fmt.Sprintf("page.html: %v", err))
	}
	return &Page{page: page, begun: time.Now().UnixNano()}
}

// Show says what the page shows.
func (p *Page) Show(config Config) { p.config = config }

// Changed says that the node has another state. It does not block, and may be called by a
// subscriber of the manager, before Show too.
func (p *Page) Changed() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.version++
	if p.changed != nil {
		close(p.changed)
		p.changed = nil
	}
}

// ServeHTTP answers with the page. The parameter q is a text that volumes must have, state is
// a state that they must have, and page counts from 1. With after, the version of a page, the
// answer waits for another version.
func (p *Page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if after := r.URL.Query().Get("after"); after != "" && !p.wait(r, after) {
		w.Header().Set("Retry-After", "10")
		http.Error(w, "too many pages wait for changes", http.StatusServiceUnavailable)
		return
	}
	if r.Context().Err() != nil {
		return
	}
	header := w.Header()
	header.Set("Content-Type", "text/html; charset=utf-8")
	header.Set("Content-Security-Policy", policy())
	header.Set("Cache-Control", "no-store")
	header.Set("Cross-Origin-Opener-Policy", "same-origin")
	header.Set("Cross-Origin-Resource-Policy", "same-origin")
	header.Set("Referrer-Policy", "no-referrer")
	header.Set("X-Content-Type-Options", "nosniff")
	_, _ = w.Write(p.page.Execute(newView(p.config.Node, p.look(), r.URL.Query()))) // the client has gone
}

// wait waits until there is another version than after, and a new look may be taken. It
// returns false at once where too many requests wait.
func (p *Page) wait(r *http.Request, after string) bool {
	p.mu.Lock()
	if after != p.versionLocked() {
		p.mu.Unlock()
		return p.rest(r)
	}
	if p.waiting >= maxWaiting {
		p.mu.Unlock()
		return false
	}
	if p.changed == nil {
		p.changed = make(chan struct{})
	}
	changed := p.changed
	p.waiting++
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.waiting--
	}()
	enough := time.NewTimer(longest)
	defer enough.Stop()
	select {
	case <-changed:
	case <-enough.C:
	case <-r.Context().Done():
	}
	return p.rest(r)
}

// rest waits for the end of the pause after the last look. It always returns true.
func (p *Page) rest(r *http.Request) bool {
	p.looking.Lock()
	left := time.Until(p.next)
	p.looking.Unlock()
	timer := time.NewTimer(left)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-r.Context().Done():
	}
	return true
}

func (p *Page) versionLocked() string {
	return strconv.FormatInt(p.begun, 36) + "-" + strconv.FormatUint(p.version, 10)
}

// look looks at the node, or takes the last look while that is young.
func (p *Page) look() *look {
	p.looking.Lock()
	defer p.looking.Unlock()
	if p.shared != nil && time.Now().Before(p.next) {
		return p.shared
	}
	p.mu.Lock()
	l := &look{version: p.versionLocked(), taken: time.Now()}
	p.mu.Unlock()
	l.rows = p.config.Rows()
	if p.config.Drivers != nil {
		l.drivers = p.config.Drivers()
	}
	if p.config.Damaged != nil {
		l.damaged = p.config.Damaged()
	}
	p.shared, p.next = l, time.Now().Add(pause)
	time.AfterFunc(pause, func() { // nobody may look for days
		p.looking.Lock()
		defer p.looking.Unlock()
		if p.shared == l {
			p.shared = nil
		}
	})
	return l
}
