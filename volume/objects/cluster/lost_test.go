package cluster_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/objects/cluster"
	"github.com/podvol/podvol/volume/objects/cluster/clustertest"
)

// verbs are the writes that an answer can be lost of.
func verbs(c objects.Writer) map[string]func(context.Context) error {
	return map[string]func(context.Context) error{
		"create": func(ctx context.Context) error {
			_, err := c.Create(ctx, configMap("new"))
			return err
		},
		"update": func(ctx context.Context) error {
			_, err := c.Update(ctx, configMap("app"))
			return err
		},
		"update of the status": func(ctx context.Context) error {
			_, err := c.UpdateStatus(ctx, &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node"}})
			return err
		},
		"delete": func(ctx context.Context) error {
			return c.Delete(ctx, ref("app"), objects.Preconditions{})
		},
	}
}

// answering is a transport whose answer to all writes is the same.
type answering func(*http.Request) (*http.Response, error)

func (a answering) RoundTrip(r *http.Request) (*http.Response, error) { return a(r) }

func answered(code int, body string) answering {
	return func(r *http.Request) (*http.Response, error) {
		recorder := httptest.NewRecorder()
		recorder.Header().Set("Content-Type", "application/json")
		recorder.WriteHeader(code)
		_, _ = recorder.WriteString(body)
		response := recorder.Result()
		response.Request = r
		return response, nil
	}
}

func withError(err error) answering {
	return func(*http.Request) (*http.Response, error) { return nil, err }
}

func TestALostAnswerIsUncertain(t *testing.T) {
	for name, tc := range map[string]struct {
		transport answering
		uncertain bool
	}{
		"a connection that broke":        {withError(syscall.ECONNRESET), true},
		"an end where the answer begins": {withError(io.ErrUnexpectedEOF), true},
		"a timeout":                      {withError(context.DeadlineExceeded), true},
		"no answer that can be read":     {answered(http.StatusOK, "{"), true},
		"500":                            {answered(http.StatusInternalServerError, "{}"), true},
		"503":                            {answered(http.StatusServiceUnavailable, "{}"), true},
		"504":                            {answered(http.StatusGatewayTimeout, "{}"), true},
		"408":                            {answered(http.StatusRequestTimeout, "{}"), true},
		"no route":                       {withError(&net.OpError{Op: "dial", Net: "tcp", Err: syscall.EHOSTUNREACH}), false},
		"nobody listening":               {withError(syscall.ECONNREFUSED), false},
		"400":                            {answered(http.StatusBadRequest, "{}"), false},
		"403":                            {answered(http.StatusForbidden, "{}"), false},
		"404 of a proxy":                 {answered(http.StatusNotFound, "404 page not found"), false},
		"409":                            {answered(http.StatusConflict, "{}"), false},
		"429":                            {answered(http.StatusTooManyRequests, "{}"), false},
	} {
		c, err := cluster.FromInformers(nil, clustertest.Clientset(t, "http://api", tc.transport), cluster.Config{Shared: []string{}})
		if err != nil {
			t.Fatal(err)
		}
		for verb, write := range verbs(c) {
			if verb == "delete" && name == "no answer that can be read" {
				continue // nobody reads it
			}
			if err := write(t.Context()); err == nil || errors.Is(err, objects.ErrUncertain) != tc.uncertain || tc.uncertain && !volume.IsUncertain(err) {
				t.Errorf("%s, %s: %v; want it uncertain: %v", name, verb, err, tc.uncertain)
			}
		}
		c.Close()
	}
}

func TestWhatTheAPIHasRefusedIsNotUncertain(t *testing.T) {
	inWorld(t, cluster.Config{Shared: []string{}}, func(t *testing.T, w *world) {
		app := configMap("app")
		w.create(app)
		_, exists := w.Create(t.Context(), app)
		another := configMap("app")
		another.UID = "another"
		_, conflict := w.Update(t.Context(), another)
		_, missing := w.Update(t.Context(), configMap("missing"))
		invalid := configMap("versioned")
		invalid.ResourceVersion = "1"
		_, refused := w.Create(t.Context(), invalid)
		ended, end := context.WithCancel(t.Context())
		end()
		_, late := w.Update(ended, app)
		for err, want := range map[error]error{
			exists: objects.ErrExists, conflict: objects.ErrConflict, missing: volume.ErrNotFound, refused: nil, late: context.Canceled,
			w.Delete(t.Context(), ref("missing"), objects.Preconditions{}): volume.ErrNotFound,
		} {
			if want != nil && !errors.Is(err, want) || err == nil || errors.Is(err, objects.ErrUncertain) {
				t.Errorf("got %v, want %v, which is certain", err, want)
			}
		}
	})
}

// Whoever gives up while the API works does not know what it will do.
func TestAnEndedWriteIsUncertain(t *testing.T) {
	inWorld(t, cluster.Config{Shared: []string{}}, func(t *testing.T, w *world) {
		w.memory.SetHandler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			w.api.ServeHTTP(httptest.NewRecorder(), r)
			<-r.Context().Done()
		}))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := w.Create(ctx, configMap("app"))
		if !errors.Is(err, objects.ErrUncertain) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		w.memory.SetHandler(w.api)
		w.wantValue("app", "value") // it came to pass
	})
}

// What Go's own transport tells: that a write was not sent at all, and that it was
// sent more than once.
func TestHowFarAWriteHasComeIsKnownOverTheNetwork(t *testing.T) {
	api := clustertest.NewServer()
	var answers atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost || answers.Add(1) > 1 {
			api.ServeHTTP(w, r)
			return
		}
		api.ServeHTTP(httptest.NewRecorder(), r) // takes effect, and nobody is told
		w.Header().Set("Retry-After", "0")
		http.Error(w, "later", http.StatusServiceUnavailable)
	}))
	defer server.Close()
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	c := connect(t, clustertest.Clientset(t, server.URL, transport), cluster.Config{Shared: []string{}})
	_, err := c.Create(t.Context(), configMap("app"))
	if !errors.Is(err, objects.ErrExists) || !errors.Is(err, objects.ErrUncertain) {
		t.Errorf("a repeated write that has met itself: %v", err)
	}
	_, err = c.Create(t.Context(), configMap("app"))
	if !errors.Is(err, objects.ErrExists) || errors.Is(err, objects.ErrUncertain) {
		t.Errorf("a write that exists: %v", err)
	}
	unreachable := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return nil, clustertest.ErrUnreachable }}
	c = connect(t, clustertest.Clientset(t, server.URL, unreachable), cluster.Config{Shared: []string{}})
	if _, err = c.Create(t.Context(), configMap("new")); !errors.Is(err, clustertest.ErrUnreachable) || errors.Is(err, objects.ErrUncertain) {
		t.Errorf("a server that cannot be reached: %v", err)
	}
}
