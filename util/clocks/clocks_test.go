package clocks_test

import (
	"testing"
	"time"

	"github.com/podvol/podvol/util/clocks"
	"github.com/podvol/podvol/util/testenv/clockjump"
)

// A time has come as soon as one clock says so.
func TestIsDue(t *testing.T) {
	now := time.Now()
	tests := map[string]struct {
		at   time.Time
		want bool
	}{
		"later":                           {now.Add(time.Second), false},
		"now":                             {now, true},
		"earlier":                         {now.Add(-time.Second), true},
		"later, after a sleep":            {clockjump.Ahead(now.Add(time.Hour), 2*time.Hour), true},
		"later, after a short sleep":      {clockjump.Ahead(now.Add(time.Hour), time.Minute), false},
		"earlier, and the clock set back": {clockjump.Ahead(now.Add(-time.Second), -time.Hour), true},
		"later, of the wall clock alone":  {now.Add(time.Second).Round(0), false},
		"now, of the wall clock alone":    {now.Round(0), true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := clocks.IsDue(tc.at, now); got != tc.want {
				t.Errorf("IsDue is %v, %v before", got, tc.at.Sub(now))
			}
		})
	}
}
