//go:build !amd64

package calltrace

import "errors"

func callsHere() map[uint64]place { return nil }

func skipCall(int) error            { return errors.ErrUnsupported }
func shortenCall(int, uint64) error { return errors.ErrUnsupported }
func answerCall(int, int64) error   { return errors.ErrUnsupported }
