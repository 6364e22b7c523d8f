package eintr_test

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/eintr"
)

func TestRepeatsOnlyInterruptedCalls(t *testing.T) {
	for _, last := range []error{nil, unix.ENOENT} {
		calls := 0
		answer := func() error {
			calls++
			if calls < 4 {
				return unix.EINTR
			}
			return last
		}
		if err := eintr.Do(answer); err != last || calls != 4 {
			t.Errorf("Do: %v after %d calls, want %v after 4", err, calls, last)
		}
		calls = 0
		got, err := eintr.Get(func() (int, error) { err := answer(); return calls, err })
		if err != last || got != 4 {
			t.Errorf("Get: %d, %v, want 4, %v", got, err, last)
		}
	}
}
