package nodehttp

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/podvol/podvol/volume/volumemanager"
)

// Watch tells clients of changed rows as server-sent events, which browsers read by EventSource; see
// [WatchPage]. Each event is an [Event] in JSON. It tells only of what has changed, and does
// nothing while nothing changes. With rows=none in its query a client is told that something has
// changed, rows or other things, in events without rows: for one that asks elsewhere then. At most
// 16 clients watch at each server, so that those of one leave room at another. Its methods are safe
// for concurrent use. The zero value is ready.
type Watch struct {
	version atomic.Uint64

	mu      sync.Mutex
	clients map[chan struct{}]any // and the server of each
}

// Event is one event of a [Watch].
type Event struct {
	// Volumes are the rows that are new or changed, by keys that mean nothing else: in the first
	// event all rows, as of /explain.
	Volumes map[string]json.RawMessage `json:"volumes"`
	// Gone are the keys of rows that are not there any more.
	Gone []string `json:"gone,omitempty"`
}

const (
	// maxWatchers leaves connections to requests that end.
	maxWatchers = 16
	// watchPause gathers changes: a client is told at most so often. On a node of many volumes the
	// pauses are longer, so that clients take a tenth of a processor at most, each.
	watchPause = 100 * time.Millisecond
)

// Version is another number after each change.
func (w *Watch) Version() uint64 { return w.version.Load() }

// Changed says that rows may have changed. It never blocks; see Manager.Subscribe.
func (w *Watch) Changed(volumemanager.VolumeStatus) { w.Notify() }

// Notify says that rows, or other things that a page shows, may have changed. It never blocks.
func (w *Watch) Notify() {
	w.version.Add(1)
	w.mu.Lock()
	defer w.mu.Unlock()
	for news := range w.clients {
		select {
		case news <- struct{}{}:
		default:
		}
	}
}

// add returns what tells a client of changes; nil: its server has too many.
func (w *Watch) add(server any) chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	same := 0
	for _, other := range w.clients {
		if other == server {
			same++
		}
	}
	if same >= maxWatchers {
		return nil
	}
	if w.clients == nil {
		w.clients = make(map[chan struct{}]any)
	}
	news := make(chan struct{}, 1)
	w.clients[news] = server
	return news
}

func (w *Watch) remove(news chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.clients, news)
}

// handler tells of the rows that explain returns.
func (w *Watch) handler(explain func() []volumemanager.VolumeStatus) http.HandlerFunc {
	return func(rw http.ResponseWriter, r *http.Request) {
		news := w.add(r.Context().Value(http.ServerContextKey))
		if news == nil {
			http.Error(rw, "too many clients watch this node", http.StatusServiceUnavailable)
			return
		}
		defer w.remove(news)
		conn := http.NewResponseController(rw)
		_ = conn.SetReadDeadline(time.Time{}) // which would end the request
		rw.Header().Set("Content-Type", "text/event-stream")
		rw.Header().Set("Cache-Control", "no-store")
		next := newsOf(explain)
		if r.URL.Query().Get("rows") == "none" {
			next = func() ([]byte, bool, error) { return []byte(`{"volumes":{}}`), true, nil }
		}
		for first := true; ; first = false {
			began := time.Now()
			text, changed, err := next()
			if err != nil {
				return
			}
			took := time.Since(began) // without the time that the client takes
			if (first || changed) && !send(conn, rw, text) {
				return
			}
			pause := time.NewTimer(max(watchPause, 9*took))
			select {
			case <-pause.C:
			case <-r.Context().Done():
				pause.Stop()
				return
			}
			select {
			case <-news:
			case <-r.Context().Done():
				return
			}
		}
	}
}

// newsOf returns what a client of rows is told next, and whether that is anything.
func newsOf(explain func() []volumemanager.VolumeStatus) func() ([]byte, bool, error) {
	told := make(map[string][sha256.Size]byte)
	return func() ([]byte, bool, error) {
		event, err := changesOf(explain(), told)
		if err != nil {
			return nil, false, err
		}
		text, err := json.Marshal(event)
		return text, len(event.Volumes)+len(event.Gone) > 0, err
	}
}

// send reports whether the client took it.
func send(conn *http.ResponseController, rw http.ResponseWriter, event []byte) bool {
	_ = conn.SetWriteDeadline(time.Now().Add(writeTimeout))
	_, err := fmt.Fprintf(rw, "data: %s\n\n", event)
	return err == nil && conn.Flush() == nil
}

// changesOf are the rows that a client was not told of, which counts as told then.
func changesOf(rows []volumemanager.VolumeStatus, told map[string][sha256.Size]byte) (Event, error) {
	event := Event{Volumes: make(map[string]json.RawMessage)}
	there := make(map[string]bool, len(rows))
	for _, row := range rows {
		text, err := json.Marshal(row)
		if err != nil {
			return event, err
		}
		key := string(row.PodUID) + "/" + row.Volume
		for there[key] {
			key += "+" // a volume that was found, beside the pod's of its name
		}
		there[key] = true
		if sum := sha256.Sum256(text); told[key] != sum {
			told[key], event.Volumes[key] = sum, text
		}
	}
	for key := range told {
		if !there[key] {
			delete(told, key)
			event.Gone = append(event.Gone, key)
		}
	}
	return event, nil
}
