package registry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
	"unicode"
)

// watched is a body that must go on: while it is waited for, least bytes have to come in
// each time of stall.
type watched struct {
	io.ReadCloser
	ctx    context.Context
	cancel context.CancelCauseFunc
	timer  *time.Timer
	stall  time.Duration
	least  int64
	// left is the rest of the time, and got what has come in it.
	left time.Duration
	got  int64
}

func newWatched(ctx context.Context, body io.ReadCloser, stall time.Duration, least int64, cancel context.CancelCauseFunc) *watched {
	timer := time.AfterFunc(stall, func() { cancel(fmt.Errorf("%w: less than %d bytes in %v", ErrStalled, least, stall)) })
	timer.Stop()
	return &watched{ReadCloser: body, ctx: ctx, cancel: cancel, timer: timer, stall: stall, least: least, left: stall}
}

func (w *watched) Read(p []byte) (int, error) {
	begun := time.Now()
	w.timer.Reset(w.left)
	n, err := w.ReadCloser.Read(p)
	w.timer.Stop() // while the reader works, nothing is waited for
	w.left -= time.Since(begun)
	if w.got += int64(n); w.got >= w.least {
		w.left, w.got = w.stall, 0
	}
	if err != nil && !errors.Is(err, io.EOF) && w.ctx.Err() != nil {
		err = context.Cause(w.ctx)
	}
	return n, err
}

func (w *watched) Close() error {
	w.timer.Stop()
	err := w.ReadCloser.Close()
	w.cancel(nil)
	return err
}

// maxResumes is how often a blob is asked for again without the least that a registry has
// to send in between.
const maxResumes = 3

// resumed reads a blob over several answers.
type resumed struct {
	open   func(offset int64) (io.ReadCloser, error)
	body   io.ReadCloser
	offset int64
	size   int64
	least  int64
	vain   int
	since  int64 // bytes since vain was zero
}

func (r *resumed) Read(p []byte) (int, error) {
	for {
		n, err := r.body.Read(p)
		r.offset += int64(n)
		if n > 0 {
			if r.since += int64(n); r.since >= r.least {
				r.vain, r.since = 0, 0
			}
			return n, nil // an error comes again
		}
		if err == nil || errors.Is(err, ErrStalled) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
			return 0, err
		}
		if r.offset >= r.size || r.vain == maxResumes {
			return 0, err
		}
		if again := r.again(); again != nil {
			return 0, fmt.Errorf("after %d of %d bytes: %w", r.offset, r.size, errors.Join(err, again))
		}
	}
}

// again asks for the rest.
func (r *resumed) again() (err error) {
	for r.vain < maxResumes {
		r.vain++
		var body io.ReadCloser
		if body, err = r.open(r.offset); err == nil {
			r.body.Close()
			r.body = body
			return nil
		}
	}
	return err
}

func (r *resumed) Close() error { return r.body.Close() }

// words returns what a registry says about its refusal, as it says it; empty, or ": …".
func words(r *http.Response) string {
	body, err := io.ReadAll(io.LimitReader(r.Body, 8<<10))
	var said struct {
		Errors []struct{ Code, Message string } `json:"errors"`
	}
	if err != nil || json.Unmarshal(body, &said) != nil || len(said.Errors) == 0 {
		return ""
	}
	text := said.Errors[0].Message
	if text == "" {
		text = said.Errors[0].Code
	}
	return ": " + text
}

const maxWords = 200

func printable(s string) string {
	s = strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, s)
	if len(s) > maxWords {
		s = strings.ToValidUTF8(s[:maxWords], "") + "…"
	}
	return s
}
