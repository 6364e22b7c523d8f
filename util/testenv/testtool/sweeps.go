package testtool

import (
	"os"
	"testing"
)

// Shortened reports whether the longest sweeps are to take fewer steps, so that
// go test ./... takes minutes: it does unless PODVOL_WHOLE_SWEEPS is set, and under
// -short always.
func Shortened() bool { return testing.Short() || os.Getenv("PODVOL_WHOLE_SWEEPS") == "" }
