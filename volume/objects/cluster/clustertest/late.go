package clustertest

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"time"
)

// late says which requests take effect late, and when.
type late struct {
	match func(Request) bool
	after time.Duration
}

// SetLate makes every later request that match selects fail with
// [ErrUnreachable]. The request still takes effect after that time, even if its
// sender has gone; nil: none.
func (m *Transport) SetLate(match func(Request) bool, after time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.late = late{match, after}
}

func (m *Transport) delays(a Request) bool {
	m.mu.Lock()
	match := m.late.match
	m.mu.Unlock()
	return match != nil && match(a)
}

func (m *Transport) sendLate(r *http.Request) error {
	var body []byte
	if r.Body != nil {
		var err error
		if body, err = io.ReadAll(r.Body); err != nil {
			return err
		}
	}
	request := r.Clone(context.WithoutCancel(r.Context()))
	request.Body = io.NopCloser(bytes.NewReader(body))
	m.mu.Lock()
	after := m.late.after
	m.mu.Unlock()
	time.AfterFunc(after, func() {
		if response, err := m.serve(request); err == nil {
			_, _ = io.Copy(io.Discard, response.Body)
			_ = response.Body.Close()
		}
	})
	return ErrUnreachable
}
