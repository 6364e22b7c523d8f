package mount

import (
	"context"
	"errors"

	"github.com/podvol/podvol/util/flight"
)

// plainCalls holds the outstanding calls of mounters that know no context, by
// target. It is the one variable of this package: a call hangs in the kernel
// on behalf of the whole process, so "one goroutine for each target" is a
// property of the process too, whoever the callers are.
var plainCalls flight.Group[string]

func (r Request) wrap(err error) error {
	return wrapCall(err, Error{Op: OpMount, Source: r.Source, Target: r.Target, FSType: r.FSType, Options: r.maskedOptions()})
}

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
	e.Cause = causeOf(err)
	_, e.Uncertain = errors.AsType[*flight.AbandonedError](err)
	e.Uncertain = e.Uncertain || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
	return &e
}
