package testtool_test

import (
	"testing"

	"github.com/podvol/podvol/util/testenv/testtool"
)

func TestShortened(t *testing.T) {
	for value, want := range map[string]bool{"": true, "1": testing.Short()} {
		t.Setenv("PODVOL_WHOLE_SWEEPS", value)
		if got := testtool.Shortened(); got != want {
			t.Errorf("with %q: %v", value, got)
		}
	}
}

func TestPart(t *testing.T) {
	t.Setenv("PODVOL_WHOLE_SWEEPS", "")
	for number, want := range map[string]int{"": 1, "0": 1, "5": 6, "16": 1, "1234": 3} {
		t.Setenv(testtool.PartVar, number)
		if first, step := testtool.Part(16); first != want || step != 16 {
			t.Errorf("number %q: each %d from %d on, want from %d on", number, step, first, want)
		}
	}
	t.Setenv("PODVOL_WHOLE_SWEEPS", "1")
	if first, step := testtool.Part(16); !testing.Short() && (first != 1 || step != 1) {
		t.Errorf("a whole sweep: each %d from %d on", step, first)
	}
}
