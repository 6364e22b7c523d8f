package registry

import (
	"context"
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"
)

// dripping sends a byte after each pause, until its context ends.
type dripping struct {
	ctx   context.Context
	pause time.Duration
	left  int
}

func (d *dripping) Read(p []byte) (int, error) {
	if d.left == 0 {
		return 0, io.EOF
	}
	d.left--
	select {
	case <-time.After(d.pause):
		return copy(p, "x"), nil
	case <-d.ctx.Done():
		return 0, d.ctx.Err()
	}
}

func (d *dripping) Close() error { return nil }

// A body that drips is given up; one that brings enough, or whose reader is slow, is not.
func TestSlowBodies(t *testing.T) {
	for name, tc := range map[string]struct {
		pause, works time.Duration
		bytes        int
		least        int64
		after        time.Duration // zero: never
	}{
		"drips":           {pause: 59 * time.Second, bytes: 1000, least: 10, after: time.Minute},
		"any byte":        {pause: 59 * time.Second, bytes: 1000, least: 0},
		"enough":          {pause: 5 * time.Second, bytes: 1000, least: 10},
		"ends in time":    {pause: 5 * time.Second, bytes: 9, least: 10},
		"a slow reader":   {pause: 5 * time.Second, works: time.Hour, bytes: 100, least: 10},
		"a little slower": {pause: 7 * time.Second, bytes: 1000, least: 10, after: time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancelCause(t.Context())
				body := newWatched(ctx, &dripping{ctx: ctx, pause: tc.pause, left: tc.bytes}, time.Minute, tc.least, cancel)
				defer body.Close()
				begun, got := time.Now(), 0
				var err error
				for buffer := make([]byte, 10); err == nil; got++ {
					_, err = body.Read(buffer)
					time.Sleep(tc.works)
				}
				switch {
				case tc.after == 0 && (err != io.EOF || got != tc.bytes+1):
					t.Errorf("%d reads, %v", got, err)
				case tc.after > 0 && (!errors.Is(err, ErrStalled) || time.Since(begun) != tc.after):
					t.Errorf("after %v: %v", time.Since(begun), err)
				}
			})
		})
	}
}

// torn breaks after some bytes, each time.
type torn struct{ left int }

func (t *torn) Read(p []byte) (int, error) {
	if t.left == 0 {
		return 0, io.ErrUnexpectedEOF
	}
	n := copy(p, make([]byte, t.left))
	t.left -= n
	return n, nil
}

func (t *torn) Close() error { return nil }

// A registry that breaks off after a few bytes each time is not asked for ever.
func TestBodiesThatBreakForEver(t *testing.T) {
	for bytes, whole := range map[int]bool{1: false, 100: true} {
		asked := 0
		r := &resumed{body: &torn{bytes}, size: 10_000, least: 100, open: func(int64) (io.ReadCloser, error) {
			asked++
			return &torn{bytes}, nil
		}}
		got, err := io.Copy(io.Discard, io.LimitReader(r, 10_000))
		if (err == nil && got == 10_000) != whole || !whole && asked > maxResumes {
			t.Errorf("%d bytes each time: %d, %v after %d", bytes, got, err, asked)
		}
	}
}
