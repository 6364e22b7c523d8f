package criruntime

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	v1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// reopener is a runtime that begins a new log when it is told.
type reopener struct {
	cri.RuntimeServiceClient
	log string

	mu      sync.Mutex
	fails   error
	reopens int
}

// fail lets it refuse from now on; nil: it does not.
func (r *reopener) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fails = err
}

func (r *reopener) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.reopens
}

func (r *reopener) ReopenContainerLog(_ context.Context, request *cri.ReopenContainerLogRequest, _ ...grpc.CallOption) (*cri.ReopenContainerLogResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.fails != nil {
		return nil, r.fails
	}
	r.reopens++
	return &cri.ReopenContainerLogResponse{}, os.WriteFile(r.log, nil, 0o600)
}

// A log keeps its size, and so many files; the newest part has its name.
func TestLogsAreRotated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &Runtime{Config: Config{Dir: t.TempDir(), LogMaxSize: 10, LogMaxFiles: 3, Log: slog.New(slog.NewTextHandler(t.Output(), nil))}}
		c := &run{runtime: r, pod: "uid", id: "id", spec: &v1.Container{Name: "main"}}
		if err := r.prepareFiles("uid", "main", 0); err != nil {
			t.Fatal(err)
		}
		service := &reopener{log: r.LogFile("uid", "main", 0)}
		r.service = service
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		go c.keepLogSmall(ctx)
		write := func(text string) {
			t.Helper()
			if err := os.WriteFile(service.log, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			time.Sleep(logEvery)
			synctest.Wait()
		}
		write("short")
		if service.count() != 0 {
			t.Error("a short log is rotated")
		}
		service.fail(errors.New("busy"))
		write("the first part")
		if kept, err := os.ReadFile(service.log); err != nil || string(kept) != "the first part" {
			t.Errorf("while the runtime refuses: %q, %v", kept, err)
		}
		service.fail(nil)
		time.Sleep(logEvery)
		synctest.Wait()
		for _, text := range []string{"the second part", "the third part", "the last part"} {
			write(text)
		}
		rotated, err := rotatedLogs(service.log)
		if err != nil || len(rotated) != 2 || service.count() != 4 {
			t.Fatalf("%d reopens, and left are %v, %v", service.count(), rotated, err)
		}
		for i, want := range []string{"the third part", "the last part"} {
			if got, err := os.ReadFile(rotated[i]); err != nil || string(got) != want {
				t.Errorf("%s has %q, %v", rotated[i], got, err)
			}
		}
		if err := r.removeRun("uid", "main", 0); err != nil {
			t.Fatal(err)
		}
		if left, _ := filepath.Glob(filepath.Dir(service.log) + "/*"); len(left) > 0 {
			t.Errorf("left of the run: %s", strings.Join(left, " "))
		}
	})
}
