package clockjump

import (
	"testing"
	"time"
)

// The two clocks of a time part by as much as was asked for, ahead or back.
func TestAhead(t *testing.T) {
	now := time.Now()
	for _, d := range []time.Duration{2 * time.Hour, -time.Hour} {
		jumped := Ahead(now, d)
		if by := now.Sub(jumped); by != 0 {
			t.Errorf("%v: by the monotonic clock it moved by %v", d, by)
		}
		if by := now.Round(0).Sub(jumped.Round(0)); by != d {
			t.Errorf("%v: by the wall clock it moved by %v", d, by)
		}
		if by := now.Round(0).Sub(Ahead(now.Round(0), d)); by != d {
			t.Errorf("%v: without a monotonic reading it moved by %v", d, by)
		}
	}
}
