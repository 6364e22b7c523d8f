package tracefile

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/podvol/podvol/util/tracing"
)

func plain(text string) string { return text }
func quiet(string)             {}

func opened(t *testing.T, path string, rename func(string) string) *File {
	t.Helper()
	f, err := Open(t.Context(), path, rename, quiet)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func read(t *testing.T, path string) (spans []Span) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		var s Span
		if err := json.Unmarshal([]byte(line), &s); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		spans = append(spans, s)
	}
	return spans
}

func TestAFileOfSpans(t *testing.T) {
	path := filepath.Join(t.TempDir(), "trace")
	f := opened(t, path, func(text string) string { return strings.ReplaceAll(text, "/real", "/shown") })
	about := []slog.Attr{slog.String("k8s.node.name", "node1"), slog.String("k8s.namespace.name", "shop"), slog.String("k8s.pod.name", "web"),
		slog.String("k8s.pod.uid", "uid"), slog.String("k8s.volume.name", "a"), slog.String("k8s.volume.name", "b")}
	began := time.Now()
	_ = tracing.Operation(t.Context(), f, "SetUp", about, func(ctx context.Context) error {
		return tracing.Step(ctx, "plugin", func(context.Context) error { return errors.New("/real is broken") })
	})
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	f = opened(t, path, plain)
	_, end := f.Start(t.Context(), "provision", slog.String("podvol.object", "PersistentVolumeClaim shop/data"), slog.String("podvol.persistentvolume", "pv"))
	end(nil)
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	spans := read(t, path)
	if len(spans) != 3 {
		t.Fatalf("%+v", spans)
	}
	for i, step := range []string{"SetUp/plugin", "SetUp"} {
		s := spans[i]
		if s.Step != step || s.Pod != "shop/web" || s.PodUID != "uid" || s.Node != "node1" || strings.Join(s.Volumes, " ") != "a b" || s.Outcome != "error" || s.Error != "/shown is broken" {
			t.Errorf("%+v", s)
		}
		if s.Start.Before(began.Add(-time.Second)) || s.DurationSeconds <= 0 {
			t.Errorf("at %v, %v s", s.Start, s.DurationSeconds)
		}
	}
	if s := spans[2]; s.Step != "provision" || s.Object != "PersistentVolumeClaim shop/data" || s.PersistentVolume != "pv" || s.Outcome != "ok" || s.Error != "" || s.Pod != "" {
		t.Errorf("%+v", s)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
}

// A run that a full disk or a power cut ended damages no line of the next one.
func TestALineThatWasCutOffBefore(t *testing.T) {
	path := filepath.Join(t.TempDir(), "trace")
	if err := os.WriteFile(path, []byte(`{"step":"Set`), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		f := opened(t, path, plain)
		_, end := f.Start(t.Context(), "SetUp")
		end(nil)
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(path)
	lines := strings.Split(string(text), "\n")
	if err != nil || len(lines) != 4 || !json.Valid([]byte(lines[1])) || !json.Valid([]byte(lines[2])) || lines[3] != "" {
		t.Errorf("%q, %v", lines, err)
	}
}

func TestOnlyRegularFilesAreOpened(t *testing.T) {
	dir := t.TempDir()
	fifo, link := filepath.Join(dir, "fifo"), filepath.Join(dir, "link")
	if err := errors.Join(syscall.Mkfifo(fifo, 0o600), os.Symlink("elsewhere", link)); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{fifo, link, dir, "/dev/null", filepath.Join(dir, "missing", "trace")} {
		if f, err := Open(t.Context(), path, plain, quiet); err == nil {
			t.Errorf("%s is opened", path)
			f.Close()
		} else if !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", path, err)
		}
	}
	if _, err := os.Lstat(filepath.Join(dir, "elsewhere")); err == nil {
		t.Error("a link was followed")
	}
}

// hung is a disk that takes nothing until it is released.
type hung struct{ released chan struct{} }

func (h hung) Write(p []byte) (int, error) { <-h.released; return len(p), nil }
func (h hung) Stat() (fs.FileInfo, error)  { return nil, errors.ErrUnsupported }
func (h hung) Close() error                { return nil }

// The test's time limit tells of an operation that waits.
func TestAHungDiskDelaysNoOperation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := hung{make(chan struct{})}
		f := newFile("trace", plain, quiet, disk)
		go f.run()
		began := time.Now()
		for range maxWaiting + 100 {
			_, end := f.Start(t.Context(), "SetUp")
			end(nil)
			synctest.Wait()
		}
		if took := time.Since(began); took > 0 {
			t.Errorf("the operations waited %v", took)
		}
		err := f.Close()
		if !errors.Is(err, errBehind) || !strings.HasPrefix(err.Error(), "4196 of 4196 spans are missing in trace: ") {
			t.Errorf("%v", err)
		}
		if took := time.Since(began); took != patience {
			t.Errorf("Close waited %v", took)
		}
		close(disk.released)
	})
}

// full is a disk that takes so many bytes until it has room again.
type full struct {
	bytes.Buffer
	room int
}

func (d *full) Write(p []byte) (int, error) {
	n := min(len(p), d.room)
	d.room -= n
	d.Buffer.Write(p[:n])
	if n < len(p) {
		return n, syscall.ENOSPC
	}
	return n, nil
}
func (d *full) Stat() (fs.FileInfo, error) { return nil, errors.ErrUnsupported }
func (d *full) Close() error               { return nil }

func TestAFullDiskDamagesOneLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := &full{room: 1 << 20}
		var said []string
		f := newFile("trace", plain, func(text string) { said = append(said, text) }, disk)
		go f.run()
		tell := func(name string, room int) {
			disk.room = room
			_, end := f.Start(t.Context(), name)
			end(nil)
			synctest.Wait()
		}
		tell("one", 1<<20)
		tell("two", 10)
		tell("three", 0)
		tell("four", 1<<20)
		err := f.Close()
		if !errors.Is(err, syscall.ENOSPC) || !strings.HasPrefix(err.Error(), "2 of 4 spans are missing in trace: ") {
			t.Errorf("%v", err)
		}
		if len(said) != 1 || said[0] != "spans are left out of trace: no space left on device" {
			t.Errorf("people hear %q", said)
		}
		lines := strings.Split(disk.String(), "\n")
		if len(lines) != 4 || !strings.Contains(lines[0], `"one"`) || !strings.Contains(lines[2], `"four"`) || lines[3] != "" || !json.Valid([]byte(lines[2])) {
			t.Errorf("%q", lines)
		}
	})
}

// A file has so many bytes at most, and so has the one before it; no line is cut.
func TestALongFileIsRotated(t *testing.T) {
	path := filepath.Join(t.TempDir(), "trace")
	name := strings.Repeat("-", 1000) // beside which other fields are short
	limit := int64(3 * (len(name) + 200))
	for _, run := range []struct {
		spans, older, newest int
	}{{1, 0, 1}, {2, 0, 3}, {2, 3, 2}, {20, 3, 1}} {
		f := opened(t, path, plain)
		f.limit = limit
		for range run.spans {
			_, end := f.Start(t.Context(), name)
			end(nil)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		for path, want := range map[string]int{path: run.newest, path + ".1": run.older} {
			if want == 0 {
				if _, err := os.Stat(path); err == nil {
					t.Errorf("%+v: there is a %s", run, path)
				}
				continue
			}
			if got := len(read(t, path)); got != want {
				t.Errorf("%+v: %s has %d lines", run, path, got)
			}
			if info, err := os.Stat(path); err != nil || info.Size() > limit || info.Mode().Perm() != 0o600 {
				t.Errorf("%v, %v; at most %d bytes", info, err, limit)
			}
		}
	}
}
