package testtool

import (
	"os"
	"strconv"
	"testing"
)

// Shortened reports whether the longest sweeps are to take fewer steps, so that
// go test ./... takes minutes: it does unless PODVOL_WHOLE_SWEEPS is set, and under
// -short always.
func Shortened() bool { return testing.Short() || os.Getenv("PODVOL_WHOLE_SWEEPS") == "" }

// PartVar names the variable with the number that [Part] goes by.
const PartVar = "PODVOL_SWEEP_PART"

// Part says which steps of a long sweep to take: from the first on, which is counted from 1,
// each one that is step further. A sweep that is [Shortened] takes one of several parts, by
// the number in PODVOL_SWEEP_PART: the gate's is that of commits, so that those that follow
// one another take all parts.
func Part(parts int) (first, step int) {
	if !Shortened() {
		return 1, 1
	}
	number, _ := strconv.Atoi(os.Getenv(PartVar)) // 0 where there is none
	return number%parts + 1, parts
}
