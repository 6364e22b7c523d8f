package sandbox

import (
	"encoding/json"
	"errors"
	"os"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount/internal/mountapi"
)

// Main must be called at the start of main, before flags are read or anything
// is begun, by every program that uses this package (a test binary: in
// TestMain). It returns at once, unless this process was started by [Start] to
// become a sandbox; then it builds it, executes the program and never returns.
//
// It is a second run of the same program because Go can run no code of its own
// between fork(2) and execve(2).
func Main() {
	if !isChild() {
		return
	}
	// Capabilities belong to the thread that has them, and execve(2) takes over the
	// calling thread's.
	runtime.LockOSThread()
	os.Exit(child())
}

func isChild() bool { return len(os.Args) == 1 && os.Args[0] == childName }

// child is the child's whole life, if it does not become the program.
func child() int {
	orders, answers := os.NewFile(orderFD, "order"), json.NewEncoder(os.NewFile(answerFD, "answer"))
	o, err := receiveOrder(orders)
	if err != nil {
		return 125 // the parent has died, or knows by itself
	}
	failure := closeOnExec()
	if failure == nil {
		failure = o.build(mountapi.Kernel{}, unix.PivotRoot)
	}
	if failure != nil && failure.Cause == ErrNotPermitted && failure.Advice == "" && o.NewUser {
		failure.Advice = adviceUserNS
	}
	if failure == nil {
		failure = o.execute(orders, answers)
	}
	_ = answers.Encode(answer{Failed: send(failure)})
	return failure.ExitCode()
}

// closeOnExec keeps from the program all descriptors that it was not given: our
// own, and those that the caller has inherited.
func closeOnExec() *Error {
	if err := unix.CloseRange(3, ^uint(0), unix.CLOSE_RANGE_CLOEXEC); err != nil { // Linux 5.11
		return failed("let go of open descriptors", "", err)
	}
	return nil
}

// build makes what the program sees.
func (o *order) build(api mountapi.Calls, pivot func(newRoot, putOld string) error) *Error {
	mask := unix.Umask(0)
	defer unix.Umask(mask)
	b := &builder{api: api, pivot: pivot, pidNamespace: o.PIDNamespace}
	defer b.close()
	// Paths on the host are looked up with the caller's own ids, before the
	// namespace is cut off: a Bidirectional mount is a peer of the host's.
	if err := b.open(o); err != nil {
		return err
	}
	if o.NewUser {
		if err := becomeIDs(o.Builder.UID, o.Builder.GID); err != nil {
			return err
		}
	}
	err := api.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, "")
	if errors.Is(err, unix.EINVAL) {
		e := as(ErrRoot, "cut the namespace off from the host", "/", err)
		e.Advice = "run it from a root that is a mount of its own, not in a chroot of a plain directory"
		return e
	}
	if err != nil {
		return failed("cut the namespace off from the host", "/", err)
	}
	return b.assemble()
}
