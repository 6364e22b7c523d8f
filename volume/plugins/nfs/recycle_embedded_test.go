package nfs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/sharedirs"
	"github.com/podvol/podvol/volume/reclaim"
)

func deleting() Config {
	return Config{Recycle: RecycleConfig{Embedded: EmbeddedRecycling{Enabled: true, Action: RecycleDelete}}}
}

func write(t *testing.T, dir string, names ...string) {
	t.Helper()
	for _, name := range names {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte("data"), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
}

// wantFiles fails unless these are the files and links below dir.
func wantFiles(t *testing.T, dir string, want ...string) {
	t.Helper()
	found := []string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			rel, _ := filepath.Rel(dir, path)
			found = append(found, rel)
		}
		return err
	})
	if diff := cmp.Diff(append([]string{}, want...), found); err != nil || diff != "" {
		t.Errorf("below %s (-want +got), %v:\n%s", dir, err, diff)
	}
}

// newEmbedded is newWorker with a verifier that lets everything go.
func newEmbedded(t *testing.T, config Config) (*plugin, *fakemount.Mounter, string, *verdicts) {
	t.Helper()
	p, fake, served := newWorker(t, config)
	asked := &verdicts{}
	p.Host.(*volume.Host).Releases = asked
	return p, fake, served, asked
}

func TestEmbeddedRecyclerDeletes(t *testing.T) {
	// In real time a slow disk has it ask again: an answer is good for a second.
	synctest.Test(t, func(t *testing.T) {
		p, fake, served, asked := newEmbedded(t, deleting())
		outside := t.TempDir()
		write(t, outside, "kept")
		write(t, served, "a", ".hidden", "d/e/f")
		if err := errors.Join(os.Symlink(outside, filepath.Join(served, "link")), os.Chmod(served, 0o2770)); err != nil {
			t.Fatal(err)
		}
		before, err := os.Stat(served)
		if err != nil {
			t.Fatal(err)
		}
		heard, err := recycle(t, p, releasedSpec())
		if err != nil || !heard.contain("is empty: 6 entries deleted") {
			t.Errorf("%q, %v", heard, err)
		}
		wantFiles(t, served)
		wantFiles(t, outside, "kept")
		if after, err := os.Stat(served); err != nil || !os.SameFile(before, after) || before.Mode() != after.Mode() {
			t.Errorf("the root was %v and is %v, %v", before.Mode(), after.Mode(), err)
		}
		if n := asked.asked.Load(); n != 2 {
			t.Errorf("VerifyReleased was asked %d times, want before the mount and right before deleting", n)
		}
		call := fake.Calls()[0]
		if options := strings.Join(call.Options, ","); call.Source != "10.0.0.1:/export" || options != "vers=4.1,nosuid,nodev,noexec" {
			t.Errorf("mounted %v", call)
		}
		workIsGone(t, p, fake)
		if _, err := recycle(t, p, releasedSpec()); err != nil {
			t.Errorf("of an empty volume: %v", err)
		}
	})
}

func TestEmbeddedRecyclerOnlySaysWhatItWouldDelete(t *testing.T) {
	p, fake, served, _ := newEmbedded(t, Config{Recycle: RecycleConfig{Embedded: EmbeddedRecycling{Enabled: true}}})
	write(t, served, "a", "d/b")
	for range 2 {
		heard, err := recycle(t, p, releasedSpec())
		e, ok := errors.AsType[*reclaim.DryRunError](err)
		if !ok || !errors.Is(err, reclaim.ErrDryRun) || e.Entries != 3 || len(e.First) != 2 || e.Source != "10.0.0.1:/export" || volume.IsUncertain(err) {
			t.Errorf("Recycle = %v", err)
		}
		if !heard.contain("3 entries") {
			t.Errorf("heard %q", heard)
		}
		wantFiles(t, served, "a", "d/b")
	}
	workIsGone(t, p, fake)
	if err := errors.Join(os.Remove(filepath.Join(served, "a")), os.RemoveAll(filepath.Join(served, "d"))); err != nil {
		t.Fatal(err)
	}
	if _, err := recycle(t, p, releasedSpec()); !errors.Is(err, reclaim.ErrDryRun) {
		t.Errorf("of an empty volume: %v", err)
	}
}

// What is used is kept, also if that shows only once the export is mounted.
func TestUsedVolumeIsNotEmptied(t *testing.T) {
	used := errors.New("pod ops/p uses it")
	for name, config := range map[string]Config{"delete": deleting(), "archive": archiving()} {
		for moment, errs := range map[string][]error{"before the mount": {used}, "right before": {nil, used}} {
			t.Run(name+" "+moment, func(t *testing.T) {
				p, fake, served, asked := newEmbedded(t, config)
				share := t.TempDir()
				if name == "archive" {
					served = filepath.Join(share, "pv1")
					fake.Serve("10.0.0.1:/exports", share)
				}
				asked.errs = errs
				write(t, served, "kept")
				_, err := recycle(t, p, releasedSpec(func(pv *v1.PersistentVolume) {
					if name == "archive" {
						pv.Spec.NFS.Path = "/exports/pv1"
					}
				}))
				if !errors.Is(err, used) {
					t.Errorf("Recycle = %v", err)
				}
				wantFiles(t, served, "kept")
				workIsGone(t, p, fake)
			})
		}
	}
}

func TestVolumeThatIsMountedForAPodIsNotEmptied(t *testing.T) {
	p, fake, served, _ := newEmbedded(t, deleting())
	write(t, served, "d/kept")
	dir := p.Host.GetPodVolumeDir("u1", PluginName, "other")
	if err := errors.Join(os.MkdirAll(dir, 0o750), fake.Mount("10.0.0.1:/export/d", dir, "nfs", nil)); err != nil {
		t.Fatal(err)
	}
	_, err := recycle(t, p, releasedSpec())
	if e, ok := errors.AsType[*volume.Failure](err); !ok || e.Cause != volume.ErrInUse || e.Subject != dir || volume.IsUncertain(err) {
		t.Errorf("Recycle = %v", err)
	}
	wantFiles(t, served, "d/kept")
	if err := fake.Unmount(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := recycle(t, p, releasedSpec()); err != nil {
		t.Error(err)
	}
	wantFiles(t, served)
}

func TestInterruptedRecyclingSaysHowFarItCameAndIsResumed(t *testing.T) {
	for name, config := range map[string]Config{"delete": deleting(), "archive": archiving()} {
		t.Run(name, func(t *testing.T) {
			config.Recycle.Embedded.ProgressEvery = time.Nanosecond
			p, fake, _, _ := newEmbedded(t, config)
			share := t.TempDir()
			fake.Serve("10.0.0.1:/exports", share)
			served := filepath.Join(share, "pv1")
			const files = 300
			for n := range files {
				write(t, served, fmt.Sprint(n))
			}
			spec := releasedSpec(func(pv *v1.PersistentVolume) { pv.Spec.NFS.Path = "/exports/pv1" })
			ctx, cancel := context.WithCancelCause(t.Context())
			cause := errors.New("the agent stops")
			err := p.Recycle(ctx, "pv1", spec, func(_, message string) {
				if strings.Contains(message, "100 entries") {
					cancel(cause)
				}
			})
			if e, ok := errors.AsType[*reclaim.IncompleteError](err); !ok || e.Done != 100 || !errors.Is(err, cause) {
				t.Errorf("Recycle = %v", err)
			}
			if left, err := os.ReadDir(served); err != nil || len(left) != files-100 {
				t.Errorf("%d left, %v", len(left), err)
			}
			workIsGone(t, p, fake)
			if heard, err := recycle(t, p, spec); err != nil || !heard.contain("200 entries") {
				t.Errorf("%q, %v", heard, err)
			}
			wantFiles(t, served)
			workIsGone(t, p, fake)
		})
	}
}

// The release ends while the volume is being emptied: what a new claim puts there
// stays.
func TestRecyclingEndsWithTheRelease(t *testing.T) {
	for name, config := range map[string]Config{"delete": deleting(), "archive": archiving()} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { testReleaseEnds(t, config) })
		})
	}
}

func testReleaseEnds(t *testing.T, config Config) {
	config.Recycle.Embedded.ProgressEvery = -1 // no time passes by itself here
	p, fake, _, asked := newEmbedded(t, config)
	bound := errors.New("bound to a new claim")
	asked.errs = []error{nil, nil, nil, volume.NothingDone(bound)}
	share := t.TempDir()
	fake.Serve("10.0.0.1:/exports", share)
	served := filepath.Join(share, "pv1")
	const files = 100
	for n := range files {
		write(t, served, fmt.Sprint(n))
	}
	spec := releasedSpec(func(pv *v1.PersistentVolume) { pv.Spec.NFS.Path = "/exports/pv1" })
	err := p.Recycle(t.Context(), "pv1", spec, func(_, message string) {
		if strings.Contains(message, "gone after") {
			time.Sleep(400 * time.Millisecond) // so slow is the server
		}
	})
	// Asked before the fourth and the seventh.
	incomplete, ok := errors.AsType[*reclaim.IncompleteError](err)
	if !ok || incomplete.Done != 6 || !errors.Is(err, bound) || !errors.Is(err, ErrNoLonger) || !volume.IsUncertain(err) {
		t.Errorf("Recycle = %v", err)
	}
	if left, err := os.ReadDir(served); err != nil || len(left) != files-6 {
		t.Errorf("%d left, %v", len(left), err)
	}
	workIsGone(t, p, fake)
}

func TestRecyclingHasItsTime(t *testing.T) {
	config := deleting()
	config.Recycle.MinimumTimeout = time.Nanosecond
	p, fake, served, _ := newEmbedded(t, config)
	write(t, served, "kept")
	_, err := recycle(t, p, releasedSpec())
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "of this size") {
		t.Errorf("Recycle = %v", err)
	}
	wantFiles(t, served, "kept")
	workIsGone(t, p, fake)
}

func TestWhatTheServerRefusesIsExplained(t *testing.T) {
	for _, tc := range []struct {
		err  error
		want string
	}{
		{unix.EACCES, "no_root_squash"},
		{unix.EPERM, "no_root_squash"},
		{unix.EROFS, "read-write"},
		{unix.ESTALE, "try again"},
		{unix.EIO, unix.EIO.Error()},
	} {
		given := &reclaim.IncompleteError{Done: 7, Err: &fs.PathError{Op: "unlinkat", Path: "10.0.0.1:/export/a", Err: tc.err}}
		err := withAdvice(workExport, given)
		if !errors.Is(err, tc.err) || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), "7 entries") {
			t.Errorf("%v: %v", tc.err, err)
		}
	}
	if err := withAdvice(workExport, nil); err != nil {
		t.Error(err)
	}
}

// Marks, retained and archived directories of others are no claim's to empty.
func TestShareOfProvisionedVolumesIsNotEmptied(t *testing.T) {
	for name, config := range map[string]Config{
		"delete": deleting(), "archive": archiving(), "dry run": {Recycle: RecycleConfig{Embedded: EmbeddedRecycling{Enabled: true}}},
	} {
		for _, share := range []string{"", "d/k8s"} {
			t.Run(name+" "+share, func(t *testing.T) {
				p, fake, _, _ := newEmbedded(t, config)
				served := t.TempDir()
				fake.Serve("10.0.0.1:/exports", served)
				share := filepath.Join(served, "pv1", share)
				provisionAndRetain(t, share)
				write(t, served, "pv1/a", "pv1/z")
				spec := releasedSpec(func(pv *v1.PersistentVolume) { pv.Spec.NFS.Path = "/exports/pv1" })
				_, err := recycle(t, p, spec)
				rel, _ := filepath.Rel(served, share)
				book := "10.0.0.1:/exports/" + rel + "/.podvol"
				e, ok := errors.AsType[*volume.Failure](err)
				if !ok || e.Cause != ErrHoldsVolumes || !strings.HasPrefix(e.What, "10.0.0.1:/exports/pv1 has") || e.Subject != book || !strings.Contains(err.Error(), book) || volume.IsUncertain(err) {
					t.Errorf("Recycle = %v", err)
				}
				for _, kept := range []string{filepath.Join(share, "data/precious"), filepath.Join(served, "pv1/a"), filepath.Join(served, "pv1/z")} {
					if _, err := os.Stat(kept); err != nil {
						t.Error(err)
					}
				}
				workIsGone(t, p, fake)
			})
		}
	}
}

// provisionAndRetain leaves data/precious in a share, whose claim is gone.
func provisionAndRetain(t *testing.T, share string) {
	t.Helper()
	if err := os.MkdirAll(share, 0o755); err != nil {
		t.Fatal(err)
	}
	root, err := os.Open(share)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	owner := sharedirs.Owner{Volume: "pv9", ClaimUID: "u9"}
	wish := sharedirs.Request{Path: "data", Owner: owner, Mode: 0o770, OnDelete: sharedirs.Retain}
	if err := sharedirs.Make(t.Context(), root, wish); err != nil {
		t.Fatal(err)
	}
	write(t, share, "data/precious")
	if err := sharedirs.Remove(t.Context(), root, sharedirs.Removal{Path: "data", Owner: owner, AtLeast: sharedirs.Delete}); err != nil {
		t.Fatal(err)
	}
}
