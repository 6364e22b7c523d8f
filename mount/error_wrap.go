package mount

import (
	"context"
	"errors"
	"syscall"

	"github.com/podvol/podvol/mount/internal/failure"
	"github.com/podvol/podvol/mount/internal/fstypes"
	"github.com/podvol/podvol/util/blockingcall"
)

// Failed makes the *Error of a failed mount of the request, masked. An *Error is
// left as it is: a mounter may give the same one to several callers.
func (r Request) Failed(err error) error {
	if given, ok := errors.AsType[*Error](err); ok {
		return given
	}
	e := Error{Op: OpMount, Source: r.Source, Target: r.Target, FSType: r.FSType, Options: r.MaskedOptions()}
	if said, ok := errors.AsType[*failure.Kernel](err); ok {
		e.Kernel = r.Mask(message(said.Lines))
		e.Cause, e.Option = causeOfKernel(r, said.Err, said.Lines)
		e.Option = r.Mask(e.Option)
		return Explain(err, e)
	}
	failure := Explain(err, e)
	if own, ok := errors.AsType[*Error](failure); ok && own.Cause == ErrBadOption && own.Option == "" && KnownCause(err) == "" {
		own.Option = r.MaskOption(OptionIn(err.Error())) // a mounter that runs mount(8)
	}
	return failure
}

// NotBegun is [Request.Failed] for errors that say that nothing was begun: the result
// is not Uncertain.
func (r Request) NotBegun(err error) error { return Certain(r.Failed(err)) }

// UnmountFailed makes the *[Error] of a failed unmount of target. nil stays nil, and an
// *Error is left as it is.
func UnmountFailed(target string, err error) error {
	return Explain(err, Error{Op: OpUnmount, Target: target})
}

// Explain makes an *[Error] of err: known, with err, and with the cause that err tells if
// known has none. nil stays nil, and an *Error is left as it is. Authors of mounters use
// it where [Request.Failed] and [UnmountFailed] do not say enough.
func Explain(err error, known Error) error {
	e := known
	if err == nil {
		return nil
	}
	if own, ok := errors.AsType[*Error](err); ok {
		return own
	}
	e.Err = err
	if cause := KnownCause(err); cause != "" {
		e.Cause, e.Option = cause, ""
	} else if e.Cause == "" {
		e.Cause = CauseOf(err)
	}
	if e.Op == OpUnmount {
		var also []Cause
		e.Cause, also = causeOfUnmount(err, e.Cause)
		e.Also = append(e.Also, also...)
	}
	if e.Cause == ErrHelperMissing && !fstypes.WantsHelper(e.FSType) {
		e.Cause = WithoutHelper(Request{Source: e.Source, FSType: e.FSType})
	}
	e.Uncertain = leavesDoubt(err)
	return &e
}

// leavesDoubt tells errors after which the call may yet take effect.
func leavesDoubt(err error) bool {
	if _, ok := errors.AsType[*blockingcall.AbandonedError](err); ok {
		return !nothingBegun(err)
	}
	if _, ok := errors.AsType[*failure.HalfDone](err); ok {
		return true
	}
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// nothingBegun tells a call for which its context had ended too early.
func nothingBegun(err error) bool {
	abandoned, ok := errors.AsType[*blockingcall.AbandonedError](err)
	return ok && !abandoned.Started && !abandoned.Earlier
}

// causeOfUnmount corrects a cause for what errnos mean to umount2(2): a missing
// target is not mounted either.
func causeOfUnmount(err error, cause Cause) (Cause, []Cause) {
	if failure.HasCause(err) {
		return cause, nil
	}
	switch {
	case errors.Is(err, syscall.EINVAL):
		return ErrNotMounted, nil
	case errors.Is(err, syscall.ENOENT), errors.Is(err, syscall.ENOTDIR):
		return ErrNoTarget, []Cause{ErrNotMounted}
	}
	return cause, nil
}

// Certain takes Uncertain back in an *[Error], and returns it. Any other error it returns
// as it is.
func Certain(err error) error {
	if e, ok := errors.AsType[*Error](err); ok {
		e.Uncertain = false
	}
	return err
}
