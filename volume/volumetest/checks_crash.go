package volumetest

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
	"github.com/podvol/podvol/volume/volumetest/internal/tree"
)

// errDead is what calls of a dead process get when the check is over.
var errDead = errors.New("the process is dead")

// crashChecks let the process die at every call of the mounter and the roles,
// before its effect and after it, and start another on the same root and
// mounts.
func crashChecks() []check {
	setUp := func(v *podVolume) {
		v.mustSetUp()
		v.assertShown()
		v.mustTearDown()
	}
	return []check{
		{
			name:   "crash/setup-set-up",
			proves: "At whichever call the process dies during SetUp, SetUp of a new process succeeds.",
			each:   crash(setUpOperation, setUp),
		},
		{
			name:   "crash/setup-torn-down",
			proves: "At whichever call the process dies during SetUp, TearDown of a new process leaves nothing.",
			each:   crash(setUpOperation, (*podVolume).mustTearDown),
		},
		{
			name:   "crash/teardown-set-up",
			proves: "At whichever call the process dies during TearDown, SetUp of a new process succeeds.",
			each:   crash(tearDownOperation, setUp),
		},
		{
			name:   "crash/teardown-torn-down",
			proves: "At whichever call the process dies during TearDown, TearDown of a new process leaves nothing.",
			each:   crash(tearDownOperation, (*podVolume).mustTearDown),
		},
	}
}

func crash(operation func() operation, recover func(*podVolume)) func(*kit, Case) {
	return func(k *kit, c Case) {
		op := operation()
		for _, p := range k.points(c, op) {
			k.bubble(func(k *kit) {
				defer k.Explain("%s, where the process died in %s", op.name, p)
				n := k.node(c)
				v := n.volume("a")
				op.prepare(v)
				source := tree.Snapshot(k, n.Dir)
				bury := n.die(p, func(ctx context.Context) error { return op.run(ctx, v) })
				// Also where a check below ends the test.
				defer bury()
				again := n.restart()
				recover(v.same(again))
				v.assertGone()
				again.AssertTornDown(k)
				tree.AssertKept(k, "the source", source, tree.Snapshot(k, n.Dir))
			})
		}
	}
}

// die runs something until it has reached the point, and leaves it hanging
// there. The call that hangs then, and whatever the dead would call after it,
// never takes effect; bury lets its goroutines end. Its descriptors below the
// node's root are closed, but what it has mapped into memory stays.
func (n *Node) die(p point, run func(context.Context) error) (bury func()) {
	release := make(chan struct{})
	reached, remove := n.disturb(p, disturbance{err: errDead, release: release, onward: true})
	done := n.kit.Async(func() error { return run(context.Background()) })
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
		n.disturb(point{n: 1}, disturbance{err: errDead, onward: true})
		n.disturb(point{role: true, n: 1}, disturbance{err: errDead, onward: true})
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
	n.T().Helper()
	const dir = "/proc/self/fd"
	null, err := eintr.Get(func() (int, error) { return unix.Open("/dev/null", unix.O_PATH|unix.O_CLOEXEC, 0) })
	if err != nil {
		n.T().Fatalf("open /dev/null: %v", err)
	}
	defer unix.Close(null)
	entries, err := os.ReadDir(dir)
	if err != nil {
		n.T().Fatal(err)
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
			n.T().Errorf("closing what a dead process has open at %s: %v", target, err)
		}
	}
}
