package election

import (
	"fmt"
	"sync"
	"time"
)

// State is the state of a campaign.
type State struct {
	// Leading says that lead runs and its context has not ended.
	Leading bool
	// Holder is the last holder of the lease that was seen; "": none.
	Holder string
	// Renewed is the time at which the last successful renewal was sent; zero:
	// none.
	Renewed time.Time
	// Ending is the time from which on lead should return; zero: it need not.
	// lead has not returned yet.
	Ending time.Time
	// Terms is the number of calls of lead.
	Terms int
	// Err is the last error of lead.
	Err error
}

// Health has the state of a campaign, for health checks and metrics. Its zero
// value is ready for one call of [Run]. All methods are safe for concurrent use.
type Health struct {
	mu    sync.Mutex
	state State
}

// State returns the present state of the campaign.
func (h *Health) State() State {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.state
}

// Check is for /healthz. It is an error if lead should have returned for longer
// than tolerated; then the process must be replaced. It is no error if another
// replica leads, or the API does not answer.
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
