package host

import (
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/mount/internal/ladder"
	"github.com/podvol/podvol/mount/internal/mounttable"
)

// Forcing makes the requests of every mount of a file system fail.
func TestLadderSparesOtherMountsOfTheFileSystem(t *testing.T) {
	other := nfsEntry
	other.ID, other.Target = 8, "/other"
	foreign := other
	foreign.Device++
	all := mount.UnmountOptions{ForceAfter: 10 * time.Second, LazyAfter: 30 * time.Second}
	for name, tc := range map[string]struct {
		others  []mount.Entry
		leaves  time.Duration // when the others go; 0 is never
		options mount.UnmountOptions
		rung    mount.Rung
		forced  bool
		want    time.Duration
	}{
		"a further mount stays":            {others: []mount.Entry{other}, options: all, rung: mount.RungLazy, want: 30 * time.Second},
		"a further mount of another share": {others: []mount.Entry{foreign}, options: all, rung: mount.RungLazy, forced: true, want: 30 * time.Second},
		"a further mount goes meanwhile":   {others: []mount.Entry{other}, leaves: 20 * time.Second, options: all, rung: mount.RungLazy, forced: true, want: 30 * time.Second},
		"without lazy":                     {others: []mount.Entry{other}, options: mount.UnmountOptions{ForceAfter: time.Second}, rung: mount.RungNormal, want: time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := &scripted{entries: []mount.Entry{nfsEntry}, others: tc.others, silent: func() error { return unix.EIO }}
				k.umount = func(flags int) error {
					if flags == lazy {
						return nil
					}
					return unix.EBUSY
				}
				if tc.leaves > 0 {
					time.AfterFunc(tc.leaves, func() {
						k.mu.Lock()
						defer k.mu.Unlock()
						if slices.Contains(k.flags, force) {
							t.Error("it was forced before the other mount was gone")
						}
						k.others = nil
					})
				}
				start := time.Now()
				rung, err := k.mounter().UnmountContext(t.Context(), "/t", tc.options)
				if took := time.Since(start); rung != tc.rung || took != tc.want || (err == nil) != (tc.rung == mount.RungLazy) {
					t.Errorf("rung %v, err = %v after %v", rung, err, took)
				}
				if forced := slices.Contains(k.tried(), force); forced != tc.forced {
					t.Errorf("forced: %v", forced)
				}
			})
		})
	}
}

// What a late force did is told, though the mount then goes by itself.
func TestLadderTellsOfALateForce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		other := nfsEntry
		other.ID, other.Target = 8, "/other"
		k := &scripted{entries: []mount.Entry{nfsEntry}, others: []mount.Entry{other}, silent: func() error { return unix.EIO }}
		forced := false
		k.umount = func(flags int) error {
			k.mu.Lock()
			defer k.mu.Unlock()
			if flags == force {
				forced = true
			}
			if forced {
				return nil
			}
			return unix.EBUSY
		}
		time.AfterFunc(15*time.Second, func() {
			k.mu.Lock()
			defer k.mu.Unlock()
			k.others = nil
		})
		rung, err := k.mounter().UnmountContext(t.Context(), "/t", mount.UnmountOptions{ForceAfter: 10 * time.Second, LazyAfter: time.Minute})
		if rung != mount.RungForce || err != nil {
			t.Errorf("rung %v, err = %v", rung, err)
		}
	})
}

// The pods of an export that are deleted together are not spared for each
// other's sake, while one that stays is, on the fake as on the host.
func TestFakeLaddersOfOneFileSystem(t *testing.T) {
	for name, stays := range map[string]bool{"all go": false, "one stays": true} {
		t.Run(name, func(t *testing.T) {
			f := fakemount.New()
			t.Cleanup(func() { f.Close() })
			var targets []string
			for range 3 {
				target := t.TempDir()
				targets = append(targets, target)
				if err := f.Mount("server:/x", target, "nfs", nil); err != nil {
					t.Fatal(err)
				}
			}
			going := targets
			if stays {
				going = targets[:2]
			}
			synctest.Test(t, func(t *testing.T) {
				silence := make(chan struct{})
				defer f.Inject(fakemount.Fault{Match: func(c fakemount.Call) bool { return c.Op == fakemount.OpStatfs }, Release: silence})()
				rungs := make(chan mount.Rung)
				for _, target := range going {
					if _, err := f.Use(target); err != nil {
						t.Fatal(err)
					}
					go func() {
						rung, err := f.UnmountContext(t.Context(), target, mount.UnmountOptions{ForceAfter: time.Minute, LazyAfter: 2 * time.Minute})
						if err != nil {
							t.Errorf("%s: %v", filepath.Base(target), err)
						}
						rungs <- rung
					}()
				}
				for range going {
					if rung := <-rungs; rung != mount.RungLazy {
						t.Errorf("rung %v", rung)
					}
				}
			})
			forced := slices.ContainsFunc(f.Calls(), func(c fakemount.Call) bool { return c.Op == fakemount.OpUnmountForce })
			if forced == stays {
				t.Errorf("forced: %v", forced)
			}
			if _, mounted, err := f.Table().At(targets[2]); mounted != stays || err != nil {
				t.Errorf("the third is mounted: %v, %v", mounted, err)
			}
		})
	}
}

func TestHostLaddersOfOneFileSystem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// Two mounts, one of which another ladder of the same mounter is at.
		other := nfsEntry
		other.ID, other.Target = 8, "/other"
		k := &scripted{entries: []mount.Entry{nfsEntry}, others: []mount.Entry{other}, silent: func() error { return unix.EIO }}
		k.umount = func(flags int) error {
			if flags == lazy {
				return nil
			}
			return unix.EBUSY
		}
		m := k.mounter()
		beside := &hostUnmount{m: m, target: "/other"}
		beside.found.Store(&mounttable.Sighting{Entry: other})
		done := beside.Enter(ladder.MayBeForced)
		if _, err := m.UnmountContext(t.Context(), "/t", mount.UnmountOptions{ForceAfter: time.Second, LazyAfter: time.Minute}); err != nil {
			t.Error(err)
		}
		if !slices.Contains(k.tried(), force) {
			t.Error("it was not forced, for the sake of one that may be forced itself")
		}
		done()
		if n := m.force.Len(); n != 0 {
			t.Errorf("%d mounts may be forced for good", n)
		}
	})
}

// Where nothing is detached lazily, mounts that go together wait for each other
// to be allowed to be forced.
func TestFakeLaddersOfOneFileSystemWithoutLazy(t *testing.T) {
	const (
		after  = 10 * time.Second
		spared = "forcing would make"
	)
	for name, tc := range map[string]struct {
		later  time.Duration // the second after the first
		stays  bool          // a third mount
		answer bool
		want   string // in the errors
	}{
		"at once":              {},
		"a second apart":       {later: time.Second},
		"half of the time":     {later: after/2 - time.Second},
		"a third stays":        {stays: true, want: spared},
		"their server answers": {answer: true, want: spared},
	} {
		t.Run(name, func(t *testing.T) {
			f := fakemount.New()
			t.Cleanup(func() { f.Close() })
			targets := []string{t.TempDir(), t.TempDir(), t.TempDir()}
			if !tc.stays {
				targets = targets[:2]
			}
			for _, target := range targets {
				if err := f.Mount("server:/x", target, "nfs", nil); err != nil {
					t.Fatal(err)
				}
			}
			synctest.Test(t, func(t *testing.T) {
				silence := make(chan struct{})
				if !tc.answer {
					defer f.Inject(fakemount.Fault{Match: func(c fakemount.Call) bool { return c.Op == fakemount.OpStatfs }, Release: silence})()
				}
				defer synctest.Wait()
				defer close(silence)
				var done sync.WaitGroup
				for i, target := range targets[:2] {
					if _, err := f.Use(target); err != nil {
						t.Fatal(err)
					}
					done.Go(func() {
						time.Sleep(time.Duration(i) * tc.later)
						start := time.Now()
						rung, err := f.UnmountContext(t.Context(), target, mount.UnmountOptions{ForceAfter: after})
						took := time.Since(start)
						if !errors.Is(err, mount.ErrBusy) || !strings.Contains(err.Error(), tc.want) {
							t.Errorf("%d: err = %v, want %q in it", i, err, tc.want)
						}
						if forced := tc.want == ""; (rung == mount.RungForce) != forced {
							t.Errorf("%d: rung %v", i, rung)
						}
						if tc.stays && took != after || took > 2*after+time.Second {
							t.Errorf("%d took %v", i, took)
						}
					})
				}
				done.Wait()
			})
		})
	}
}

// A server that was not asked, for the sake of a mount that has gone since, is
// not said to answer.
func TestLadderTellsThatNobodyWasAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		other := nfsEntry
		other.ID, other.Target = 8, "/other"
		k := &scripted{entries: []mount.Entry{nfsEntry}, others: []mount.Entry{other}, silent: func() error { return unix.EIO }}
		k.umount = func(int) error { return unix.EBUSY }
		time.AfterFunc(8*time.Second, func() {
			k.mu.Lock()
			defer k.mu.Unlock()
			k.others = nil
		})
		rung, err := k.mounter().UnmountContext(t.Context(), "/t", mount.UnmountOptions{ForceAfter: 10 * time.Second})
		if rung != mount.RungNormal || !errors.Is(err, mount.ErrBusy) || !strings.Contains(err.Error(), ladder.ErrUnasked.Error()) {
			t.Errorf("rung %v, err = %v", rung, err)
		}
	})
}
