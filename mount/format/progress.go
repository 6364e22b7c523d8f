package format

import "sync"

// untilReturn returns the request with a Progress that can always be called,
// and does nothing any more once stop has returned.
func (r Request) untilReturn() (gated Request, stop func()) {
	report := r.Progress
	var mu sync.Mutex
	r.Progress = func(doing string) {
		mu.Lock()
		defer mu.Unlock()
		if report != nil {
			report(doing)
		}
	}
	return r, func() {
		mu.Lock()
		defer mu.Unlock()
		report = nil
	}
}
