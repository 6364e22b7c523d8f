package main

import (
	"encoding/json"
	"errors"
	"io"
	"strings"
	"sync"

	"github.com/podvol/podvol/volume/volumemanager"
)

// rowStream prints a row whenever a volume's state, or its error, is another
// one than was printed last.
type rowStream struct {
	add    func(row) error
	rename func(string) string
	news   chan struct{}

	mu      sync.Mutex
	queue   []volumemanager.VolumeStatus
	printed map[rowKey]string
}

func newRowStream(format string, out, errOut io.Writer) (*rowStream, error) {
	r := &rowStream{news: make(chan struct{}, 1), printed: make(map[rowKey]string), rename: func(s string) string { return s }}
	switch format {
	case "table":
		r.add = (&tablePrinter{out: out, err: errOut}).add
	case "json":
		encoder := json.NewEncoder(out)
		r.add = func(row row) error { return encoder.Encode(row) }
	default:
		return nil, usagef("-o %q must be table or json", format)
	}
	return r, nil
}

// take queues the outcome of an operation; it never blocks, as the manager asks
// of subscribers.
func (r *rowStream) take(v volumemanager.VolumeStatus) {
	if isOutcome(v) {
		r.put(v)
	}
}

// put queues a status.
func (r *rowStream) put(v volumemanager.VolumeStatus) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.queue = append(r.queue, v)
	select {
	case r.news <- struct{}{}:
	default:
	}
}

// flush prints what is queued, and shows each to see.
func (r *rowStream) flush(see func(volumemanager.VolumeStatus)) error {
	r.mu.Lock()
	queue := r.queue
	r.queue = nil
	r.mu.Unlock()
	var failed error
	for _, v := range queue {
		failed = errors.Join(failed, r.print(v))
		if see != nil {
			see(v)
		}
	}
	return failed
}

func (r *rowStream) print(v volumemanager.VolumeStatus) error {
	row := rowOf(v)
	row.Path, row.Error, row.Source = r.rename(row.Path), r.rename(row.Error), r.rename(row.Source)
	what := strings.Join([]string{row.State, row.Source, row.Path, row.Error}, "\x00")
	if r.printed[keyOf(v)] == what {
		return nil
	}
	r.printed[keyOf(v)] = what
	if v.State == volumemanager.StateUnmounted {
		delete(r.printed, keyOf(v))
	}
	return r.add(row)
}
