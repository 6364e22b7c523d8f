package host

import (
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount"
)

// A busy mount is forced only while its server is silent.
func TestLadderForcesWhileTheServerIsSilent(t *testing.T) {
	for name, tc := range map[string]struct {
		silentFrom, silentTo time.Duration
		answering            time.Duration // how long an answer takes otherwise
		hung                 bool          // the normal unmount too, as long
		first, last          time.Duration // when it is forced; 0 is never
	}{
		"answers":                {},
		"answers slowly":         {answering: 4900 * time.Millisecond},
		"answers too slowly":     {answering: 6 * time.Second, first: 10 * time.Second, last: time.Minute},
		"silent":                 {silentTo: time.Hour, first: 10 * time.Second, last: time.Minute},
		"silent for a moment":    {silentTo: 8 * time.Second},
		"silent until it is not": {silentTo: 30 * time.Second, first: 10 * time.Second, last: 30 * time.Second},
		"a call hung until then": {silentTo: 30 * time.Second, hung: true, first: 10 * time.Second, last: 30 * time.Second},
		"slow after a silence":   {silentTo: 12 * time.Second, answering: 600 * time.Millisecond, first: 10 * time.Second, last: 17 * time.Second},
		"slower after a silence": {silentTo: 12 * time.Second, answering: 4 * time.Second, first: 10 * time.Second, last: 30 * time.Second},
		"slow after a long one":  {silentTo: 30 * time.Second, answering: 4 * time.Second, first: 10 * time.Second, last: 35 * time.Second},
		"silent later":           {silentFrom: 20 * time.Second, silentTo: time.Hour, first: 25 * time.Second, last: time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				var forced atomic.Pointer[chan struct{}] // frees what is asked
				fresh := make(chan struct{})
				forced.Store(&fresh)
				var times []time.Duration
				k := &scripted{entries: []mount.Entry{nfsEntry}}
				k.silent = func() error {
					answer := time.After(tc.answering)
					if at := time.Since(start); at >= tc.silentFrom && at < tc.silentTo {
						answer = time.After(tc.silentTo - at + tc.answering)
					}
					select {
					case <-answer:
						return nil
					case <-*forced.Load():
						return unix.EIO
					}
				}
				k.umount = func(flags int) error {
					if flags == force {
						times = append(times, time.Since(start))
						next := make(chan struct{})
						close(*forced.Swap(&next))
					}
					if flags == lazy {
						return nil
					}
					if at := time.Since(start); tc.hung && flags != force && at < tc.silentTo {
						time.Sleep(tc.silentTo - at)
					}
					time.Sleep(400 * time.Millisecond) // as the host repeats a busy one
					return unix.EBUSY
				}
				rung, err := k.mounter().UnmountContext(t.Context(), "/t", mount.UnmountOptions{ForceAfter: 10 * time.Second, LazyAfter: time.Minute})
				if took := time.Since(start); err != nil || rung != mount.RungLazy || took < time.Minute || took > time.Minute+2*turnLimit {
					t.Errorf("rung %v, err = %v after %v", rung, err, took)
				}
				time.Sleep(time.Hour) // until all has ended
				if tc.first == 0 {
					if len(times) > 0 {
						t.Errorf("forced after %v", times)
					}
					return
				}
				const (
					slack = 3 * time.Second          // a pause and a turn
					wait  = slack + 10*time.Second/2 // half of the time before force
				)
				if len(times) < 3 || times[0] < tc.first || times[0] > tc.first+slack || slices.Max(times) > tc.last || slices.Max(times) < tc.last-wait {
					t.Errorf("forced after %v, want from %v to %v", times, tc.first, tc.last)
				}
			})
		})
	}
}

// parent is a scripted kernel with a mount below the one at hand.
type parent struct{ *scripted }

func (p parent) All() ([]mount.Entry, error) {
	return []mount.Entry{{ID: 9, ParentID: nfsEntry.ID, Target: "/t/below"}}, nil
}

// A question that hangs does not hold up the search for who holds the mount.
func TestLadderNamesHoldersWhileItsQuestionHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		end := make(chan struct{})
		k := &scripted{entries: []mount.Entry{nfsEntry}}
		k.silent = func() error { <-end; return nil }
		k.umount = func(int) error { return unix.EBUSY }
		m := k.mounter()
		m.table = parent{k}
		_, err := m.UnmountContext(t.Context(), "/t", mount.UnmountOptions{ForceAfter: 10 * time.Second, Holders: true})
		if e, ok := errors.AsType[*mount.Error](err); !ok || !slices.ContainsFunc(e.Holders, func(h mount.Holder) bool { return h.How == "mount below at /t/below" }) {
			t.Errorf("err = %v names no holders", err)
		}
		close(end)
	})
}
