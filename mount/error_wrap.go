package mount

import (
	"context"
	"errors"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/blockingcall"
)

// wrap makes the *Error of a failed mount of the request, masked. One that is an
// *Error already is left as it is: a mounter may give the same to everybody.
func (r Request) wrap(err error) error {
	if given, ok := errors.AsType[*Error](err); ok {
		return given
	}
	e := Error{Op: OpMount, Source: r.Source, Target: r.Target, FSType: r.FSType, Options: r.maskedOptions()}
	if said, ok := errors.AsType[*kernelError](err); ok {
		e.Kernel = r.mask(message(said.lines))
		e.Cause, e.Option = causeOfKernel(r, said.err, said.lines)
		e.Option = r.mask(e.Option)
		return wrapCall(err, e)
	}
	failure := wrapCall(err, e)
	if own, ok := errors.AsType[*Error](failure); ok && own.Cause == ErrBadOption && own.Option == "" && causeCarried(err) == "" {
		own.Option = r.maskOption(optionIn(err.Error())) // a mounter that runs mount(8)
	}
	return failure
}

// fail is wrap for errors that say that nothing was begun.
func (r Request) fail(err error) error { return certain(r.wrap(err)) }

func wrapUnmount(target string, err error) error {
	return wrapCall(err, Error{Op: OpUnmount, Target: target})
}

// wrapCall makes an *Error of err, unless it is one already.
func wrapCall(err error, e Error) error {
	if err == nil {
		return nil
	}
	if own, ok := errors.AsType[*Error](err); ok {
		return own
	}
	e.Err = err
	if known := causeCarried(err); known != "" {
		e.Cause, e.Option = known, ""
	} else if e.Cause == "" {
		e.Cause = causeOf(err)
	}
	if e.Op == OpUnmount {
		var also []Cause
		e.Cause, also = causeOfUnmount(err, e.Cause)
		e.Also = append(e.Also, also...)
	}
	if e.Cause == ErrHelperMissing && !wantsHelper(e.FSType) {
		e.Cause = withoutHelper(Request{Source: e.Source, FSType: e.FSType})
	}
	e.Uncertain = leavesDoubt(err)
	return &e
}

// leavesDoubt tells errors after which the call may yet take effect.
func leavesDoubt(err error) bool {
	if _, ok := errors.AsType[*blockingcall.AbandonedError](err); ok {
		return !nothingBegun(err)
	}
	if _, ok := errors.AsType[*halfDoneError](err); ok {
		return true
	}
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// nothingBegun tells a call for which its context had ended too early.
func nothingBegun(err error) bool {
	abandoned, ok := errors.AsType[*blockingcall.AbandonedError](err)
	return ok && !abandoned.Started && !abandoned.Earlier
}

// causeOfUnmount corrects a cause for what errnos mean to umount2(2): what does
// not exist is not mounted either.
func causeOfUnmount(err error, cause Cause) (Cause, []Cause) {
	if _, ok := errors.AsType[*causedError](err); ok {
		return cause, nil
	}
	switch {
	case errors.Is(err, unix.EINVAL):
		return ErrNotMounted, nil
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR):
		return ErrNoTarget, []Cause{ErrNotMounted}
	}
	return cause, nil
}
