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
