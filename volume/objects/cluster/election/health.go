package election

import (
	"fmt"
	"sync"
	"time"
)

// State is how a campaign stands.
type State struct {
	// Leading is whether lead runs, and its context has not ended.
	Leading bool
	// Holder is the identity that was seen to hold the lease last; "": nobody.
	Holder string
	// Renewed is when the request was sent that has renewed the lease last; zero: none.
	Renewed time.Time
	// Ending is since when lead should return, and has not; zero: it need not.
	Ending time.Time
	// Terms is how often lead was called.
	Terms int
	// Err is what lead has returned last.
	Err error
}

// Health tells how a campaign stands, for health checks and metrics. Its zero value
// is ready for one call of [Run]. All methods are safe for concurrent use.
type Health struct {
	mu    sync.Mutex
	state State
}

// State returns how the campaign stands now.
func (h *Health) State() State {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.state
}

// Check is for /healthz: it is an error if lead should have returned for longer than
// that, so that the process is to be replaced. That another replica leads, or that
// the API does not answer, is none.
func (h *Health) Check(tolerated time.Duration) error {
	s := h.State()
	if late := time.Since(s.Ending); !s.Ending.IsZero() && late > tolerated {
		return fmt.Errorf("leadership has ended %s ago, and the work that was led has not", late.Round(time.Second))
	}
	return nil
}

func (h *Health) change(f func(*State)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	f(&h.state)
}

func (h *Health) holds(identity string) { h.change(func(s *State) { s.Holder = identity }) }

func (h *Health) renewed(by string, at time.Time) {
	h.change(func(s *State) { s.Holder, s.Renewed = by, at })
}

func (h *Health) leads() {
	h.change(func(s *State) { s.Leading, s.Terms = true, s.Terms+1 })
}

func (h *Health) ends() {
	h.change(func(s *State) {
		s.Leading = false
		if s.Ending.IsZero() {
			s.Ending = time.Now()
		}
	})
}

func (h *Health) left(err error) {
	h.change(func(s *State) { s.Leading, s.Ending, s.Err = false, time.Time{}, err })
}
