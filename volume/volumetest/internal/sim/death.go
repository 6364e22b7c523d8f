package sim

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing/synctest"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/eintr"
)

// errDead is the error of calls of a dead process when the check is over.
var errDead = errors.New("the process is dead")

// Die runs something until it has reached the point, and leaves it hanging
// there. The call that hangs then, and whatever the dead would call after it,
// never takes effect; bury lets its goroutines end. Its descriptors below the
// node's root are closed, but what it has mapped into memory stays.
func (n *Node) Die(p Point, run func(context.Context) error) (bury func()) {
	release := make(chan struct{})
	reached, remove := n.Disturb(p, Disturbance{Err: errDead, Release: release, Onward: true})
	done := n.t.Async(func() error { return run(context.Background()) })
	// Wait alone also returns while a plugin sleeps on its way to the point.
	ended := false
	select {
	case <-reached:
	case <-done:
		ended = true
	}
	// The effect, where the process dies after it.
	synctest.Wait()
	n.closeDescriptors()
	remove()
	return func() {
		n.Disturb(Point{N: 1}, Disturbance{Err: errDead, Onward: true})
		n.Disturb(Point{Role: true, N: 1}, Disturbance{Err: errDead, Onward: true})
		close(release)
		if !ended {
			// Nobody is left to hear of an error.
			<-done
		}
	}
}

// closeDescriptors takes the descriptors below the node's root from this
// process, as a death does: they would keep mounts busy. Their numbers stay in
// use until the dead close them, so that they close nobody else's.
func (n *Node) closeDescriptors() {
	n.t.Helper()
	const dir = "/proc/self/fd"
	null, err := eintr.Get(func() (int, error) { return unix.Open("/dev/null", unix.O_PATH|unix.O_CLOEXEC, 0) })
	if err != nil {
		n.t.Fatalf("open /dev/null: %v", err)
	}
	defer unix.Close(null)
	entries, err := os.ReadDir(dir)
	if err != nil {
		n.t.Fatal(err)
	}
	for _, e := range entries {
		// That of ReadDir itself is gone.
		target, err := os.Readlink(filepath.Join(dir, e.Name()))
		if err != nil || target != n.RootDir && !strings.HasPrefix(target, n.RootDir+"/") {
			continue
		}
		fd, err := strconv.Atoi(e.Name())
		if err == nil {
			err = unix.Dup3(null, fd, unix.O_CLOEXEC)
		}
		if err != nil {
			n.t.Errorf("closing what a dead process has open at %s: %v", target, err)
		}
	}
}
