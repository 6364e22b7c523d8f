package mount

import (
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

// A busy mount is forced only while its server is silent.
func TestLadderForcesWhileTheServerIsSilent(t *testing.T) {
	for name, tc := range map[string]struct {
		silentFrom, silentTo time.Duration
		answering            time.Duration // how long an answer takes otherwise
		first, last          time.Duration // when it is forced; 0 is never
	}{
		"answers":                {},
		"answers slowly":         {answering: 4900 * time.Millisecond},
		"answers too slowly":     {answering: 6 * time.Second, first: 10 * time.Second, last: time.Minute},
		"silent":                 {silentTo: time.Hour, first: 10 * time.Second, last: time.Minute},
		"silent for a moment":    {silentTo: 8 * time.Second},
		"silent until it is not": {silentTo: 30 * time.Second, first: 10 * time.Second, last: 30 * time.Second},
		"silent later":           {silentFrom: 20 * time.Second, silentTo: time.Hour, first: 25 * time.Second, last: time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				var forced atomic.Pointer[chan struct{}] // frees what is asked
				fresh := make(chan struct{})
				forced.Store(&fresh)
				var times []time.Duration
				k := &scripted{entries: []Entry{nfsEntry}}
				k.silent = func() error {
					answer := time.After(tc.answering)
					if at := time.Since(start); at >= tc.silentFrom && at < tc.silentTo {
						answer = time.After(tc.silentTo - at)
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
					time.Sleep(400 * time.Millisecond) // as the host repeats a busy one
					return unix.EBUSY
				}
				rung, err := k.mounter().UnmountContext(t.Context(), "/t", UnmountOptions{ForceAfter: 10 * time.Second, LazyAfter: time.Minute})
				if took := time.Since(start); err != nil || rung != RungLazy || took < time.Minute || took > time.Minute+2*turnLimit {
					t.Errorf("rung %v, err = %v after %v", rung, err, took)
				}
				time.Sleep(time.Hour) // until all has ended
				if tc.first == 0 {
					if len(times) > 0 {
						t.Errorf("forced after %v", times)
					}
					return
				}
				const slack = 3 * time.Second // a pause and a turn
				if len(times) < 3 || times[0] < tc.first || times[0] > tc.first+slack || slices.Max(times) > tc.last || slices.Max(times) < tc.last-slack {
					t.Errorf("forced after %v, want from %v to %v", times, tc.first, tc.last)
				}
			})
		})
	}
}
