package persistentvolume_test

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
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/persistentvolume"
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
	if _, err := persistentvolume.OpenRecords(endsUnseen{t.Context()}, objects.NewStore(), dir); err == nil {
		t.Fatal("the lock was not waited for")
	}
	other.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for left := 1; left > 0; left = descriptorsOf(t, dir) { // who gave up may still be on the way to it
		r, err := persistentvolume.OpenRecords(ctx, objects.NewStore(), dir)
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
	for name, isLedger := range map[string]bool{"records": false, "ledger": true} {
		t.Run(name, func(t *testing.T) {
			dir, ledger := t.TempDir(), t.TempDir()
			open := func(ctx context.Context) (*persistentvolume.RecordedObjects, error) {
				records, opening := dir, ctx
				if isLedger { // which alone is to be waited for
					records, opening = t.TempDir(), t.Context()
				}
				r, err := persistentvolume.OpenRecords(opening, objects.NewStore(), records)
				if err != nil {
					return nil, err
				}
				if err := r.ImportLedger(ctx, ledger); err != nil {
					return nil, errors.Join(err, r.Close())
				}
				return r, nil
			}
			first, err := open(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
			defer cancel()
			if _, err := open(ctx); !errors.Is(err, context.DeadlineExceeded) || !isLedger && !strings.Contains(err.Error(), dir) || isLedger && !strings.Contains(err.Error(), ledger) {
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
		})
	}
}

// What the next process does not find is not confirmed, and nothing of it is shown;
// once the directory is back, all is as it was.
func TestNothingIsWrittenOnceTheRecordsAreReplaced(t *testing.T) {
	for name, anew := range map[string]bool{"moved away": false, "made anew": true} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "claims")
			r, err := persistentvolume.OpenRecords(t.Context(), objects.NewStore(), dir)
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			if _, err := r.Create(t.Context(), newClaim("data", "1Gi")); err != nil {
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
			if _, err := r.Create(t.Context(), newClaim("other", "1Gi")); !errors.Is(err, persistentvolume.ErrRecordsReplaced) {
				t.Errorf("create: %v", err)
			}
			if err := r.Delete(t.Context(), claimRef("data"), objects.Preconditions{}); !errors.Is(err, persistentvolume.ErrRecordsReplaced) {
				t.Errorf("delete: %v", err)
			}
			getClaim(t, r, "data")
			if anew {
				if err := os.Remove(dir); err != nil { // nothing was written there
					t.Fatal(err)
				}
			}
			if err := os.Rename(dir+"-away", dir); err != nil {
				t.Fatal(err)
			}
			if _, err := r.Create(t.Context(), newClaim("other", "1Gi")); err != nil {
				t.Error(err)
			}
			if claims, _, err := persistentvolume.ReadRecords(dir); err != nil || len(claims) != 2 {
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
