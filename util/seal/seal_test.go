package seal_test

import (
	"encoding/json"
	"errors"
	"testing"

	"github.com/podvol/podvol/util/seal"
)

func TestOpenGivesBackWhatWasSealed(t *testing.T) {
	for _, line := range []string{"\n", "{}\n", `{"a":"sha256:"}` + "\n"} {
		if got, sealed, err := seal.Open(seal.Add([]byte(line))); string(got) != line || !sealed || err != nil {
			t.Errorf("%q: %q, sealed %t, %v", line, got, sealed, err)
		}
		if got, sealed, err := seal.Open([]byte(line)); string(got) != line || sealed || err != nil {
			t.Errorf("%q without a checksum: %q, sealed %t, %v", line, got, sealed, err)
		}
	}
}

// Where Open takes a changed file for one that has no checksum, it is no JSON.
func TestEveryFlippedBitIsFound(t *testing.T) {
	sound := seal.Add([]byte(`{"a":1}` + "\n"))
	for i := range sound {
		for bit := range 8 {
			flipped := append([]byte(nil), sound...)
			flipped[i] ^= 1 << bit
			if line, sealed, err := seal.Open(flipped); sealed != errors.Is(err, seal.ErrBroken) || !sealed && json.Valid(line) {
				t.Errorf("bit %d of byte %d is flipped: %q, sealed %t, %v", bit, i, line, sealed, err)
			}
		}
	}
}
