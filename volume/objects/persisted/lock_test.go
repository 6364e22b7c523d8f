package persisted_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/eintr"
	"github.com/podvol/podvol/util/testenv/pvbuild"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/objects/persisted"
)

// endsUnseen is a context that has ended for who waits for its end, and not for
// who asks: one who asked a moment too early.
type endsUnseen struct{ context.Context }

func (endsUnseen) Done() <-chan struct{} {
	ended := make(chan struct{})
	close(ended)
	return ended
}

func TestALockIsNeverLeftBehind(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // which would close what was left
	dir := t.TempDir()
	other := lockedByOther(t, dir)
	if _, err := persisted.Open(endsUnseen{t.Context()}, objects.NewStore(), dir); err == nil {
		t.Fatal("the lock was not waited for")
	}
	other.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for left := 1; left > 0; left = descriptorsOf(t, dir) { // who gave up may still be on the way to it
		r, err := persisted.Open(ctx, objects.NewStore(), dir)
		if err != nil {
			t.Fatalf("who gave up holds the lock: %v; %d descriptors are left", err, left)
		}
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// lockedByOther locks a directory until the file is closed.
func lockedByOther(t *testing.T, dir string) *os.File {
	t.Helper()
	f, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	if err := eintr.Do(func() error { return unix.Flock(int(f.Fd()), unix.LOCK_EX) }); err != nil {
		t.Fatal(err)
	}
	return f
}

func TestOneProcessHasTheRecords(t *testing.T) {
	dir := t.TempDir()
	open := func(ctx context.Context) (*persisted.Store, error) {
		return persisted.Open(ctx, objects.NewStore(), dir)
	}
	first, err := open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := open(ctx); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), dir) {
		t.Errorf("err = %v", err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	second, err := open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := second.Close(); err != nil {
		t.Fatal(err)
	}
}

// What the next process does not find is not confirmed, and nothing of it is shown;
// once the directory is back, all is as it was.
func TestNothingIsWrittenOnceTheRecordsAreReplaced(t *testing.T) {
	for name, anew := range map[string]bool{"moved away": false, "made anew": true} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "claims")
			r, err := persisted.Open(t.Context(), objects.NewStore(), dir)
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			if _, err := r.Create(t.Context(), pvbuild.NewClaim("data", "1Gi")); err != nil {
				t.Fatal(err)
			}
			if err := os.Rename(dir, dir+"-away"); err != nil {
				t.Fatal(err)
			}
			if anew {
				if err := os.Mkdir(dir, 0o700); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := r.Create(t.Context(), pvbuild.NewClaim("other", "1Gi")); !errors.Is(err, persisted.ErrReplaced) {
				t.Errorf("create: %v", err)
			}
			if err := r.Delete(t.Context(), pvbuild.ClaimRef("data"), objects.Preconditions{}); !errors.Is(err, persisted.ErrReplaced) {
				t.Errorf("delete: %v", err)
			}
			pvbuild.GetClaim(t, r, "data")
			if anew {
				if err := os.Remove(dir); err != nil { // nothing was written there
					t.Fatal(err)
				}
			}
			if err := os.Rename(dir+"-away", dir); err != nil {
				t.Fatal(err)
			}
			if _, err := r.Create(t.Context(), pvbuild.NewClaim("other", "1Gi")); err != nil {
				t.Error(err)
			}
			if claims, _, err := persisted.Read(dir); err != nil || len(claims) != 2 {
				t.Errorf("%d claims, %v", len(claims), err)
			}
		})
	}
}

func descriptorsOf(t *testing.T, dir string) (n int) {
	t.Helper()
	want, err := os.Stat(dir)
	if err != nil {
		t.Fatal(err)
	}
	descriptors, err := filepath.Glob("/proc/self/fd/*")
	if err != nil || len(descriptors) == 0 {
		t.Fatalf("no descriptors: %v", err)
	}
	for _, d := range descriptors {
		if info, err := os.Stat(d); err == nil && os.SameFile(info, want) {
			n++
		}
	}
	return n
}
