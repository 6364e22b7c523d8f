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
	lost    error // of an answer: the runtime does what it is told
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

func (r *reopener) ReopenContainerLog(ctx context.Context, request *cri.ReopenContainerLogRequest, _ ...grpc.CallOption) (*cri.ReopenContainerLogResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.fails != nil || ctx.Err() != nil {
		return nil, errors.Join(r.fails, ctx.Err())
	}
	r.reopens++
	return &cri.ReopenContainerLogResponse{}, errors.Join(os.WriteFile(r.log, []byte("new"), 0o600), r.lost)
}

// A log keeps its size, and so many files; the newest part has its name.
func TestLogsAreRotated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &Runtime{Config: Config{Dir: t.TempDir(), LogMaxSize: 10, LogMaxFiles: 3, Log: slog.New(slog.NewTextHandler(t.Output(), nil))}}
		c := &run{runtime: r, pod: "uid", id: "id", spec: &v1.Container{Name: "main"}}
		if err := r.prepareFiles("uid", "main", 0); err != nil {
			t.Fatal(err)
		}
		service := &reopener{log: filepath.Join(r.LogFile("uid", "main", 0))}
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

// rotating is a run with a log of some text, whose directory has a name that is a pattern.
func rotating(t *testing.T, text string) (*run, *reopener) {
	t.Helper()
	r := &Runtime{Config: Config{Dir: filepath.Join(t.TempDir(), "node[1]"), LogMaxSize: 10, LogMaxFiles: 2, Log: slog.New(slog.NewTextHandler(t.Output(), nil))}}
	if err := r.prepareFiles("uid", "main", 0); err != nil {
		t.Fatal(err)
	}
	service := &reopener{log: filepath.Join(r.LogFile("uid", "main", 0))}
	r.service = service
	if err := os.WriteFile(service.log, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return &run{runtime: r, pod: "uid", id: "id", spec: &v1.Container{Name: "main"}}, service
}

// An agent that was killed has given the log another name, and the runtime was not told.
func TestALogIsBegunAfterAKill(t *testing.T) {
	c, service := rotating(t, "a long line")
	if err := os.Rename(service.log, service.log+".20260101-000000.000000000"); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(service.log+".20250101-000000.000000000", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := c.rotateLog(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if service.count() != 1 {
		t.Errorf("the runtime was told %d times", service.count())
	}
	if left, err := rotatedLogs(service.log); err != nil || len(left) != 1 || left[0] != service.log+".20260101-000000.000000000" {
		t.Errorf("left are %q, %v", left, err)
	}
}

// The runtime has begun a new log, and its answer is lost: the new log keeps its name, and
// the old one is kept too.
func TestANewLogIsKeptWhereTheAnswerIsLost(t *testing.T) {
	c, service := rotating(t, "a long line")
	service.lost = errors.New("the connection is closed")
	if err := c.rotateLog(t.Context()); err != nil {
		t.Fatal(err)
	}
	rotated, err := rotatedLogs(service.log)
	if err != nil || len(rotated) != 1 {
		t.Fatalf("rotated are %q, %v", rotated, err)
	}
	for file, want := range map[string]string{service.log: "new", rotated[0]: "a long line"} {
		if got, err := os.ReadFile(file); err != nil || string(got) != want {
			t.Errorf("%s has %q, %v; want %q", file, got, err, want)
		}
	}
}

// The runtime is told of a log with another name also where the agent ends just then.
func TestTheRuntimeIsToldWhereTheAgentEnds(t *testing.T) {
	c, service := rotating(t, "a long line")
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if err := c.rotateLog(ctx); err != nil || service.count() != 1 {
		t.Errorf("told %d times, %v", service.count(), err)
	}
}

// The files of a run are found also where the name of the directory is a pattern.
func TestFilesInADirectoryNamedLikeAPattern(t *testing.T) {
	c, service := rotating(t, "a long line")
	if err := c.rotateLog(t.Context()); err != nil {
		t.Fatal(err)
	}
	if rotated, err := rotatedLogs(service.log); err != nil || len(rotated) != 1 {
		t.Errorf("rotated are %q, %v", rotated, err)
	}
	if err := c.runtime.removeFiles("uid"); err != nil {
		t.Fatal(err)
	}
	if pods, err := c.runtime.podsWithFiles(); err != nil || len(pods) != 0 {
		t.Errorf("files are left of %v, %v", pods, err)
	}
}
