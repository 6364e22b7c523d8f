package host

import (
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/util/testenv/testtool"
)

// meeting is a kernel that has each unmount wait for others to come before it is
// made.
type meeting struct {
	hostCalls
	both sync.WaitGroup
}

func (c *meeting) unmountOnce(target string, flags int) error { return c.unmount(target, flags) }

func (m *meeting) unmount(target string, flags int) error {
	m.both.Done()
	met := make(chan struct{})
	go func() { m.both.Wait(); close(met) }()
	select {
	case <-met:
	case <-time.After(turnLimit / 2):
	}
	return m.hostCalls.unmount(target, flags)
}

// Of stacked mounts only that goes which was found, however the rungs' calls
// come together.
func TestRungsAtOnceTakeOneOfAStack(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		for _, flags := range []int{unix.MNT_FORCE, unix.MNT_DETACH} {
			synctest.Test(t, func(t *testing.T) { // in which a turn lasts however slow the machine is
				target := t.TempDir()
				for _, source := range []string{"beneath", "topmost"} {
					testtool.Must(t, unix.Mount(source, target, "tmpfs", 0, ""))
				}
				m := New(Config{})
				kernel := &meeting{}
				kernel.both.Add(2)
				m.sys = kernel
				u := &hostUnmount{m: m, target: target}
				u.known(t.Context())
				var calls sync.WaitGroup
				for _, flags := range []int{0, flags} {
					calls.Go(func() {
						if _, err := u.Attempt(t.Context(), mount.RungNormal, flags); err != nil {
							t.Error(err)
						}
					})
				}
				calls.Wait()
				e, ok, err := m.table.At(target)
				if err != nil || !ok || e.Source != "beneath" {
					t.Fatalf("%#x beside a normal unmount leaves %+v, %v, %v", flags, e, ok, err)
				}
				kernel.both.Done() // for the second, which was not made
				testtool.Must(t, unix.Unmount(target, 0))
				testtool.Must(t, os.Remove(target))
			})
		}
	})
}

// A call that hangs does not keep the higher rungs away.
func TestATurnIsLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var turns turns
		start := time.Now()
		first := turns.take("/t")
		turns.end("/other", turns.take("/other"))
		if took := time.Since(start); took != 0 {
			t.Errorf("another target has waited for %v", took)
		}
		second := turns.take("/t")
		if took := time.Since(start); took != turnLimit {
			t.Errorf("it has waited for %v", took)
		}
		turns.end("/t", first) // late, and not the second's end
		time.AfterFunc(turnLimit/2, func() { turns.end("/t", second) })
		turns.end("/t", turns.take("/t"))
		if took := time.Since(start); took != turnLimit*3/2 {
			t.Errorf("the third has waited for %v", took)
		}
		if len(turns.last) != 0 {
			t.Errorf("%d turns are left", len(turns.last))
		}
	})
}
