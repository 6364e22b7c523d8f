package host

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount"
)

// scripted is a kernel whose umount2(2) does as a test says.
type scripted struct {
	mu      sync.Mutex
	entries []mount.Entry
	others  []mount.Entry // what is mounted elsewhere
	flags   []int         // of each umount2 call, UMOUNT_NOFOLLOW taken off
	// look comes before each look at the table, and may block; nil does nothing.
	look func() error
	// umount answers a call; it may block. A nil error unmounts the topmost.
	umount func(flags int) error
	// silent keeps the file system's answers back; nil gives them.
	silent func() error
}

func (s *scripted) ask(string) error {
	if s.silent == nil {
		return nil
	}
	return s.silent()
}

func (c *scripted) unmountOnce(target string, flags int) error { return c.unmount(target, flags) }

func (s *scripted) unmount(_ string, flags int) error {
	if flags&unix.UMOUNT_NOFOLLOW == 0 {
		return errors.New("a link would have been followed")
	}
	flags &^= unix.UMOUNT_NOFOLLOW
	s.mu.Lock()
	s.flags = append(s.flags, flags)
	s.mu.Unlock()
	if err := s.umount(flags); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.entries) == 0 {
		return unix.EINVAL
	}
	s.entries = s.entries[:len(s.entries)-1]
	return nil
}

func (s *scripted) tried() []int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.flags)
}

func (s *scripted) At(string) (mount.Entry, bool, error) {
	if s.look != nil {
		if err := s.look(); err != nil {
			return mount.Entry{}, false, err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.entries) == 0 {
		return mount.Entry{}, false, nil
	}
	return s.entries[len(s.entries)-1], true, nil
}

func (s *scripted) BySource(string) ([]mount.Entry, error)    { return nil, nil }
func (s *scripted) All() ([]mount.Entry, error)               { return nil, nil }
func (s *scripted) Subscribe(context.Context) <-chan struct{} { return nil }

func (s *scripted) ByDevice(device uint64) ([]mount.Entry, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.DeleteFunc(slices.Concat(s.entries, s.others), func(e mount.Entry) bool { return e.Device != device }), nil
}

func (s *scripted) mounter() *Mounter {
	m := New(Config{})
	m.sys, m.table = s, s
	return m
}

var nfsEntry = mount.Entry{ID: 7, Device: unix.Mkdev(0, 50), Source: "10.0.0.1:/e", FSType: "nfs4", Target: "/t"}

var tmpfsEntry = mount.Entry{ID: 7, Device: unix.Mkdev(0, 52), Source: "tmpfs", FSType: "tmpfs", Target: "/t"}

const (
	force = unix.MNT_FORCE
	lazy  = unix.MNT_DETACH
)

func TestLadder(t *testing.T) {
	block := mount.Entry{ID: 7, Device: unix.Mkdev(8, 1), Source: "/dev/sda1", FSType: "ext4", Target: "/t"}
	btrfs := mount.Entry{ID: 7, Device: unix.Mkdev(0, 51), Source: "/dev/sda2", FSType: "btrfs", Target: "/t"}
	all := mount.UnmountOptions{ForceAfter: 10 * time.Second, LazyAfter: 30 * time.Second}
	tests := map[string]struct {
		entries []mount.Entry // nil: nfsEntry
		options mount.UnmountOptions
		// answers are by rung: "hang", "busy", "gone", "denied", "down" or "" for
		// success; ask is the file system's.
		normal, force, lazy, ask string
		// freed lets what hangs return with success after force was tried.
		freed  bool
		forced bool // also if a further rung was taken
		rung   mount.Rung
		want   error
		calls  []int // nil: not looked at
		took   time.Duration
	}{
		"normal works":                  {options: all, rung: mount.RungNormal, calls: []int{0}},
		"busy without rungs":            {normal: "busy", rung: mount.RungNormal, want: mount.ErrBusy, calls: []int{0}},
		"not mounted ends the ladder":   {options: all, normal: "gone", entries: []mount.Entry{}, rung: mount.RungNormal, want: mount.ErrNotMounted, calls: []int{0}},
		"not permitted ends the ladder": {options: all, normal: "denied", rung: mount.RungNormal, want: mount.ErrNotPermitted, calls: []int{0}},
		"hung, force unmounts":          {options: all, normal: "hang", rung: mount.RungForce, calls: []int{0, force}, freed: true, took: 10 * time.Second},
		"hung, force fails but frees the normal unmount": {
			options: all, normal: "hang", force: "busy", freed: true, rung: mount.RungForce, calls: []int{0, force}, took: 10 * time.Second,
		},
		"hung, force hangs too, lazy": {options: all, normal: "hang", force: "hang", rung: mount.RungLazy, calls: []int{0, force, lazy}, took: 30 * time.Second},
		"busy to the end":             {options: all, normal: "busy", lazy: "", rung: mount.RungLazy, took: 30 * time.Second},
		"lazy without force":          {options: mount.UnmountOptions{LazyAfter: time.Second}, normal: "hang", rung: mount.RungLazy, calls: []int{0, lazy}, took: time.Second},
		"lazy before force":           {options: mount.UnmountOptions{LazyAfter: time.Second, ForceAfter: time.Minute}, normal: "hang", rung: mount.RungLazy, calls: []int{0, lazy}, took: time.Second},
		"busy and silent to the end":  {options: all, normal: "busy", force: "busy", ask: "hang", rung: mount.RungLazy, forced: true, took: 30 * time.Second},
		"busy, its client gave up":    {options: all, normal: "busy", force: "busy", ask: "down", rung: mount.RungLazy, forced: true, took: 30 * time.Second},
		"busy, its server refuses":    {options: all, normal: "busy", ask: "denied", rung: mount.RungLazy, took: 30 * time.Second},
		"force without lazy, busy":    {options: mount.UnmountOptions{ForceAfter: time.Second}, normal: "busy", rung: mount.RungNormal, want: mount.ErrBusy, took: time.Second},
		"force without lazy, silent":  {options: mount.UnmountOptions{ForceAfter: time.Second}, normal: "busy", force: "busy", ask: "hang", forced: true, rung: mount.RungForce, want: mount.ErrBusy, took: time.Second},
		"a block device is not detached": {
			entries: []mount.Entry{block}, options: all, normal: "busy", rung: mount.RungNormal, want: mount.ErrBusy, took: 30 * time.Second,
		},
		"nor is it forced when lazy would be due": {
			entries: []mount.Entry{block}, options: mount.UnmountOptions{ForceAfter: time.Second, LazyAfter: time.Second}, normal: "busy", rung: mount.RungNormal, want: mount.ErrBusy, took: time.Second,
		},
		"force is for types that have it": {
			entries: []mount.Entry{tmpfsEntry}, options: all, normal: "busy", rung: mount.RungLazy, took: 30 * time.Second,
		},
		"without force and lazy a busy one is tried until force would be due": {
			entries: []mount.Entry{tmpfsEntry}, options: mount.UnmountOptions{ForceAfter: time.Second}, normal: "busy", rung: mount.RungNormal, want: mount.ErrBusy, took: time.Second,
		},
		"nor is btrfs": {
			entries: []mount.Entry{btrfs}, options: mount.UnmountOptions{LazyAfter: time.Second}, normal: "busy", rung: mount.RungNormal, want: mount.ErrBusy, took: time.Second,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				forced, end := make(chan struct{}), make(chan struct{})
				defer synctest.Wait()
				defer close(end)
				answer := func(how string) error {
					switch how {
					case "busy":
						return unix.EBUSY
					case "gone":
						return unix.EINVAL
					case "denied":
						return unix.EPERM
					case "down":
						return unix.EIO
					case "hang":
						if tc.freed {
							<-forced
							return nil
						}
						<-end
						return unix.EIO
					}
					return nil
				}
				k := &scripted{entries: tc.entries}
				if tc.entries == nil {
					k.entries = []mount.Entry{nfsEntry}
				}
				k.umount = func(flags int) error {
					switch flags {
					case force:
						if tc.freed {
							defer close(forced)
						}
						if tc.freed && tc.force == "" {
							return unix.EBUSY // the normal one gets it
						}
						return answer(tc.force)
					case lazy:
						return answer(tc.lazy)
					}
					return answer(tc.normal)
				}
				k.silent = func() error { return answer(tc.ask) }
				start := time.Now()
				rung, err := k.mounter().UnmountContext(t.Context(), "/t", tc.options)
				if rung != tc.rung || !errors.Is(err, tc.want) || (err == nil) != (tc.want == nil) {
					t.Errorf("rung %v, err = %v; want %v, %v", rung, err, tc.rung, tc.want)
				}
				if got := slices.Compact(k.tried()); tc.calls != nil && !slices.Equal(got, tc.calls) {
					t.Errorf("umount2 flags %v, want %v", got, tc.calls)
				}
				if forced, may := slices.Contains(k.tried(), force), tc.forced || tc.normal == "hang"; forced && !may || !forced && tc.forced {
					t.Errorf("forced: %v", forced)
				}
				if slices.Contains(k.tried(), lazy) && tc.rung != mount.RungLazy {
					t.Error("it was detached lazily")
				}
				if took := time.Since(start); took != tc.took {
					t.Errorf("took %v, want %v", took, tc.took)
				}
			})
		})
	}
}

// What a forced unmount frees is what waits for the server at that moment.
func TestLadderForcesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		waves := 5 // of what was not yet written
		k := &scripted{entries: []mount.Entry{nfsEntry}, silent: func() error { return unix.EIO }}
		k.umount = func(flags int) error {
			if flags == force {
				waves--
			}
			if waves > 0 || flags == force {
				return unix.EBUSY
			}
			return nil
		}
		start := time.Now()
		rung, err := k.mounter().UnmountContext(t.Context(), "/t", mount.UnmountOptions{ForceAfter: 10 * time.Second, LazyAfter: time.Minute})
		if took := time.Since(start); err != nil || rung != mount.RungForce || took > 15*time.Second {
			t.Errorf("rung %v, err = %v after %v", rung, err, took)
		}
	})
}

// A normal unmount takes the mount out of sight before it writes what is to be
// written: what hangs then is as if it had been detached.
func TestLadderTellsOfWhatHangsOutOfSight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		end := make(chan struct{})
		living := nfsEntry
		living.FSType = "ceph" // whose life cannot be looked up
		k := &scripted{entries: []mount.Entry{living}}
		k.umount = func(int) error {
			k.mu.Lock()
			k.entries = nil
			k.mu.Unlock()
			<-end
			return unix.EIO
		}
		rung, err := k.mounter().UnmountContext(t.Context(), "/t", mount.UnmountOptions{ForceAfter: time.Second, LazyAfter: 2 * time.Second})
		if err != nil || rung != mount.RungLazy {
			t.Errorf("rung %v, err = %v", rung, err)
		}
		if got := k.tried(); !slices.Equal(got, []int{0}) {
			t.Errorf("umount2 flags %v for what is gone", got)
		}
		close(end)
	})
}

// NFSv4 says good-bye to its server when all is done, and waits for the answer.
func TestLadderDoesNotWaitForAGoodBye(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		end := make(chan struct{})
		gone := nfsEntry
		gone.Device = unix.Mkdev(0, 1<<20-1) // the last of all, which no file system has
		k := &scripted{entries: []mount.Entry{gone}}
		k.umount = func(int) error {
			k.mu.Lock()
			k.entries = nil
			k.mu.Unlock()
			<-end
			return unix.EIO
		}
		start := time.Now()
		rung, err := k.mounter().UnmountContext(t.Context(), "/t", mount.UnmountOptions{ForceAfter: time.Minute, LazyAfter: time.Hour})
		if took := time.Since(start); err != nil || rung != mount.RungNormal || took != time.Second {
			t.Errorf("rung %v, err = %v after %v", rung, err, took)
		}
		close(end)
	})
}

func TestLadderNeverUnmountsWhatIsBeneath(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		beneath := nfsEntry
		beneath.ID, beneath.Device = 3, beneath.Device+1
		forced := make(chan struct{})
		k := &scripted{entries: []mount.Entry{beneath, nfsEntry}}
		k.umount = func(flags int) error {
			if flags == force {
				close(forced) // lets the hung normal unmount succeed
				return unix.EBUSY
			}
			<-forced
			return nil
		}
		rung, err := k.mounter().UnmountContext(t.Context(), "/t", mount.UnmountOptions{ForceAfter: time.Second, LazyAfter: time.Minute})
		if err != nil || rung != mount.RungForce {
			t.Errorf("rung %v, err = %v", rung, err)
		}
		if e, ok, _ := k.At("/t"); !ok || e.ID != 3 {
			t.Errorf("what lay beneath is gone: %+v, %v", e, ok)
		}
	})
}

func TestLadderDetachesOnlyWhatItKnows(t *testing.T) {
	block := mount.Entry{ID: 7, Device: unix.Mkdev(8, 1), Source: "/dev/sda1", FSType: "ext4", Target: "/t"}
	for name, tc := range map[string]struct {
		entry   mount.Entry
		unknown time.Duration // how long the table cannot be read
		rung    mount.Rung
		want    error
	}{
		"known too late to be a share":        {entry: nfsEntry, unknown: time.Second, rung: mount.RungLazy},
		"known too late to be a block device": {entry: block, unknown: time.Second, rung: mount.RungNormal, want: mount.ErrBusy},
		"never known":                         {entry: nfsEntry, unknown: time.Hour, rung: mount.RungNormal, want: mount.ErrBusy},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				k := &scripted{entries: []mount.Entry{tc.entry}}
				k.look = func() error {
					if time.Since(start) < tc.unknown {
						return unix.ENOMEM
					}
					return nil
				}
				k.umount = func(flags int) error {
					if flags == lazy {
						return nil
					}
					return unix.EBUSY
				}
				rung, err := k.mounter().UnmountContext(t.Context(), "/t", mount.UnmountOptions{LazyAfter: 2 * time.Second})
				if rung != tc.rung || !errors.Is(err, tc.want) || (err == nil) != (tc.want == nil) {
					t.Errorf("rung %v, err = %v; want %v, %v", rung, err, tc.rung, tc.want)
				}
				if detached := slices.Contains(k.tried(), lazy); detached != (tc.rung == mount.RungLazy) {
					t.Errorf("detached: %v", detached)
				}
			})
		})
	}
}

func TestLadderReportsOnlyRungsThatReachedTheKernel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		end := make(chan struct{})
		k := &scripted{entries: []mount.Entry{nfsEntry}}
		k.umount = func(int) error { <-end; return unix.EIO }
		k.look = func() error {
			if len(k.tried()) > 0 {
				<-end // the table hangs as soon as the first call does
			}
			return nil
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		rung, err := k.mounter().UnmountContext(ctx, "/t", mount.UnmountOptions{ForceAfter: time.Second, LazyAfter: 2 * time.Second})
		if e, ok := errors.AsType[*mount.Error](err); !ok || !e.Uncertain || !errors.Is(err, mount.ErrTimedOut) || rung != mount.RungNormal {
			t.Errorf("rung %v, err = %v", rung, err)
		}
		close(end)
		synctest.Wait()
		if got := k.tried(); !slices.Equal(got, []int{0}) {
			t.Errorf("umount2 flags %v; those after the first came when nobody waited any more", got)
		}
	})
}

func TestUnmountGivesUpWithItsContextAndCostsOneCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		end := make(chan struct{})
		k := &scripted{entries: []mount.Entry{nfsEntry}, umount: func(int) error { <-end; return nil }}
		m := k.mounter()
		for range 20 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			rung, err := m.UnmountContext(ctx, "/t", mount.UnmountOptions{})
			cancel()
			e, ok := errors.AsType[*mount.Error](err)
			if !ok || !e.Uncertain || rung != mount.RungNormal || !errors.Is(err, mount.ErrTimedOut) || !errors.Is(err, context.DeadlineExceeded) {
				t.Fatalf("rung %v, err = %v", rung, err)
			}
			if e.Source != nfsEntry.Source || e.FSType != "nfs4" {
				t.Errorf("the error does not say what was mounted: %+v", e)
			}
		}
		if n := len(k.tried()); n != 1 {
			t.Errorf("%d calls hang", n)
		}
		// Another target is not held up.
		other := &scripted{entries: []mount.Entry{nfsEntry}, umount: func(int) error { return nil }}
		m.sys = other
		if _, err := m.UnmountContext(t.Context(), "/other", mount.UnmountOptions{}); err != nil {
			t.Error(err)
		}
		close(end)
		synctest.Wait()
	})
}

func TestUnmountWithAnEndedContextTouchesNothing(t *testing.T) {
	k := &scripted{entries: []mount.Entry{nfsEntry}, umount: func(int) error { return nil }}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("a cause of the caller's own"))
	rung, err := k.mounter().UnmountContext(ctx, "/t", mount.UnmountOptions{})
	e, ok := errors.AsType[*mount.Error](err)
	if !ok || rung != mount.RungNone || e.Uncertain || !errors.Is(err, mount.ErrCanceled) || len(k.tried()) != 0 {
		t.Errorf("rung %v, err = %v, calls %v", rung, err, k.tried())
	}
	if _, err := k.mounter().UnmountContext(t.Context(), "t", mount.UnmountOptions{}); !errors.Is(err, mount.ErrNoTarget) {
		t.Errorf("a relative target: %v", err)
	}
}
