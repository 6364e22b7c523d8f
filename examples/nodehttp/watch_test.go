package nodehttp

import (
	"bufio"
	"encoding/json"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/podvol/podvol/volume/volumemanager"
)

// watched is a server whose rows change.
type watched struct {
	listener *pipeListener
	other    *pipeListener // of a second server
	watch    Watch

	mu   sync.Mutex
	rows []volumemanager.VolumeStatus
	told int // how often they were asked for
}

func newWatched(t *testing.T) *watched {
	t.Helper()
	w := &watched{listener: newPipeListener(), other: newPipeListener()}
	page := WatchPage("/watch", &w.watch, w.explain)
	for _, l := range []*pipeListener{w.listener, w.other} {
		s := &Server{listener: l}
		s.Serve(NewMetrics(idleManager(t), nil), w.explain, page)
		t.Cleanup(s.Close)
	}
	return w
}

func (w *watched) explain() []volumemanager.VolumeStatus {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.told++
	return slices.Clone(w.rows)
}

// set changes the rows and says so.
func (w *watched) set(rows ...volumemanager.VolumeStatus) {
	w.mu.Lock()
	w.rows = rows
	w.mu.Unlock()
	w.watch.Changed(volumemanager.VolumeStatus{})
}

func newPipeListener() *pipeListener {
	return &pipeListener{connecting: make(chan net.Conn), closed: make(chan struct{})}
}

// open begins to watch.
func (w *watched) open(t *testing.T) (answer *http.Response, events *bufio.Reader) {
	t.Helper()
	return openAt(t, w.listener, "/watch")
}

func openAt(t *testing.T, l *pipeListener, path string) (answer *http.Response, events *bufio.Reader) {
	t.Helper()
	conn := l.dial()
	go func() { _, _ = io.WriteString(conn, "GET "+path+" HTTP/1.1\r\nHost: x\r\n\r\n") }()
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // in this order: the body has no end
		conn.Close()
		answer.Body.Close()
	})
	return answer, bufio.NewReader(answer.Body)
}

// next reads an event.
func next(t *testing.T, events *bufio.Reader) (states map[string]string, gone []string) {
	t.Helper()
	line, err := events.ReadString('\n')
	if err == nil {
		_, err = events.ReadString('\n')
	}
	var event Event
	text, ok := strings.CutPrefix(line, "data: ")
	if err != nil || !ok || json.Unmarshal([]byte(text), &event) != nil {
		t.Fatalf("%q, %v", line, err)
	}
	states = make(map[string]string)
	for key, row := range event.Volumes {
		var v struct{ State string }
		if err := json.Unmarshal(row, &v); err != nil {
			t.Fatal(err)
		}
		states[key] = v.State
	}
	return states, event.Gone
}

func TestWatchTellsOfChangesAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWatched(t)
		found := claimRow("b", "web")
		found.Found = true
		w.set(claimRow("a", "web"), claimRow("b", "web"), found)
		answer, events := w.open(t)
		if got := answer.Header.Get("Content-Type"); got != "text/event-stream" {
			t.Errorf("it is %q", got)
		}
		states, _ := next(t, events)
		if want := map[string]string{"web/a": "mounted", "web/b": "mounted", "web/b+": "mounted"}; !maps.Equal(states, want) {
			t.Fatalf("at first: %v", states)
		}
		w.watch.Changed(volumemanager.VolumeStatus{}) // though nothing has
		time.Sleep(time.Hour)                         // longer than any request may take
		failed := claimRow("a", "web")
		failed.State = volumemanager.StateFailed
		w.set(failed, claimRow("b", "web"))
		states, gone := next(t, events)
		if !maps.Equal(states, map[string]string{"web/a": "failed"}) || !slices.Equal(gone, []string{"web/b+"}) {
			t.Errorf("after an hour: %v, gone %v", states, gone)
		}
		if w.told != 3 {
			t.Errorf("the rows were asked for %d times in an hour of two changes", w.told)
		}
		// Many changes at once are one event.
		for i := range 1000 {
			failed.Failures = i
			w.set(failed)
		}
		states, gone = next(t, events)
		if len(states) != 1 || len(gone) != 1 || w.told != 4 {
			t.Errorf("%v, gone %v, asked for %d times", states, gone, w.told)
		}
	})
}

// A client that asks elsewhere is told that something has changed, and costs no look at the rows.
func TestWatchWithoutRows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWatched(t)
		w.set(claimRow("a", "web"))
		_, events := openAt(t, w.listener, "/watch?rows=none")
		before := w.watch.Version()
		for range 3 { // the first, and after changes of other things than rows
			if states, gone := next(t, events); len(states) != 0 || len(gone) != 0 {
				t.Errorf("%v, gone %v", states, gone)
			}
			for range 100 {
				w.watch.Notify() // which is one event
			}
		}
		if w.watch.Version() == before || w.told != 0 {
			t.Errorf("version %d, the rows were asked for %d times", w.watch.Version(), w.told)
		}
	})
}

func TestWatchersLeaveRoomForOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWatched(t)
		for range maxWatchers {
			if answer, _ := w.open(t); answer.StatusCode != http.StatusOK {
				t.Fatal(answer.Status)
			}
		}
		answer, _ := w.open(t)
		if text, err := io.ReadAll(answer.Body); answer.StatusCode != http.StatusServiceUnavailable || !strings.Contains(string(text), "too many") || err != nil {
			t.Errorf("one more: %s, %q, %v", answer.Status, text, err)
		}
		if answer, _ := openAt(t, w.other, "/watch"); answer.StatusCode != http.StatusOK {
			t.Errorf("at the other server: %s", answer.Status)
		}
	})
}

// A client that reads slowly is told of the next change as soon as others once it reads again.
func TestWatchersThatReadSlowly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWatched(t)
		long := claimRow("a", "web")
		long.Source = strings.Repeat("x", 64<<10) // more than is buffered
		w.set(long)
		_, events := w.open(t)
		time.Sleep(writeTimeout / 2) // the first event is on its way
		if states, _ := next(t, events); len(states) != 1 {
			t.Fatalf("at first: %v", states)
		}
		w.set()
		began := time.Now()
		if _, gone := next(t, events); len(gone) != 1 || time.Since(began) > watchPause {
			t.Errorf("%v after %v", gone, time.Since(began))
		}
	})
}

// A client that leaves makes room at once, also while nothing changes.
func TestWatchersThatLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWatched(t)
		conn := w.listener.dial()
		go func() { _, _ = io.WriteString(conn, "GET /watch HTTP/1.1\r\nHost: x\r\n\r\n") }()
		answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		conn.Close()
		answer.Body.Close()
		synctest.Wait()
		if len(w.watch.clients) != 0 {
			t.Errorf("%d clients are left", len(w.watch.clients))
		}
	})
}
