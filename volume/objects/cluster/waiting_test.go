package cluster_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/objects/cluster"
	"github.com/podvol/podvol/volume/objects/cluster/clustertest"
)

// words are what is logged.
type words struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (w *words) Write(line []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.Write(line)
}

func (w *words) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.String()
}

func (w *words) lines() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var waiting []string
	for line := range strings.Lines(w.text.String()) {
		if strings.Contains(line, "still waiting") {
			waiting = append(waiting, line)
		}
	}
	return waiting
}

// Who waits for an API that is not there learns so within seconds, and not again
// and again.
func TestWaitingSaysWhatForAndWhatTheServerAnswers(t *testing.T) {
	hang := func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
	for name, tc := range map[string]struct {
		prepare func(*clustertest.Server, *clustertest.Transport)
		says    string
		first   time.Duration
	}{
		"unreachable": {func(_ *clustertest.Server, m *clustertest.Transport) { m.SetDown(syscall.ECONNREFUSED) }, "connection refused", 5 * time.Second},
		"silent":      {func(_ *clustertest.Server, m *clustertest.Transport) { m.SetHandler(http.HandlerFunc(hang)) }, "deadline", 15 * time.Second},
		"forbidden": {func(_ *clustertest.Server, m *clustertest.Transport) {
			m.SetHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/version" {
					_, _ = w.Write([]byte(`{"gitVersion":"v1.37.2"}`))
					return
				}
				http.Error(w, "no", http.StatusForbidden)
			}))
		}, "answers, and is v1.37.2", 5 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := clustertest.NewServer()
				transport := clustertest.NewTransport(server)
				tc.prepare(server, transport)
				log := new(words)
				c, start := prepare(t, clustertest.Clientset(t, "http://api", transport), cluster.Config{Shared: []string{"ConfigMap", "Node"}, Logger: slog.New(slog.NewTextHandler(log, nil))})
				start()
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan error, 1)
				go func() { done <- c.WaitForSync(ctx) }()
				time.Sleep(tc.first - time.Millisecond)
				synctest.Wait()
				if got := log.lines(); len(got) != 0 {
					t.Errorf("at once: %q", got)
				}
				time.Sleep(time.Second)
				synctest.Wait()
				if got := log.lines(); len(got) != 1 || !strings.Contains(got[0], "[ConfigMap Node]") || !strings.Contains(got[0], tc.says) {
					t.Errorf("after %v: %q", tc.first, got)
				}
				time.Sleep(10 * time.Minute)
				synctest.Wait()
				if n := len(log.lines()); n < 8 || n > 12 {
					t.Errorf("%d lines in ten minutes", n)
				}
				cancel()
				if err := <-done; !errors.Is(err, objects.ErrNotSynced) || !errors.Is(err, context.Canceled) {
					t.Errorf("err = %v", err)
				}
			})
		})
	}
}

// Who need not wait hears nothing, and only what is missing is named.
func TestWaitingNamesOnlyWhatIsMissing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := clustertest.NewServer()
		server.Refuse(func(r *http.Request) *metav1.Status {
			a, ok := clustertest.ParseRequest(r)
			if !ok || a.Ref().Kind != "Node" {
				return nil
			}
			return clustertest.Status(http.StatusForbidden, metav1.StatusReasonForbidden, a, "not for you")
		})
		log := new(words)
		c, start := prepare(t, clustertest.Clientset(t, "http://api", clustertest.NewTransport(server)), cluster.Config{Shared: []string{"ConfigMap", "Node"}, Logger: slog.New(slog.NewTextHandler(log, nil))})
		start()
		done := make(chan error, 1)
		go func() { done <- c.WaitForSync(t.Context()) }()
		time.Sleep(6 * time.Second)
		synctest.Wait()
		if got := log.lines(); len(got) != 1 || !strings.Contains(got[0], "[Node]") {
			t.Errorf("%q", got)
		}
		server.Refuse(nil)
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
