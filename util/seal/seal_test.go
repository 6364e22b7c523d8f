package seal_test

import (
	"errors"
	"testing"

	"github.com/podvol/podvol/util/seal"
)

func TestOpenGivesBackWhatWasSealed(t *testing.T) {
	for _, line := range []string{"\n", "{}\n", `{"a":"sha256:"}` + "\n"} {
		if got, err := seal.Open(seal.Add([]byte(line))); string(got) != line || err != nil {
			t.Errorf("%q: %q, %v", line, got, err)
		}
		if got, err := seal.Open([]byte(line)); got != nil || !errors.Is(err, seal.ErrNone) {
			t.Errorf("%q without a checksum: %q, %v", line, got, err)
		}
	}
}

func TestEveryFlippedBitIsFound(t *testing.T) {
	sound := seal.Add([]byte(`{"a":1}` + "\n"))
	for i := range sound {
		for bit := range 8 {
			flipped := append([]byte(nil), sound...)
			flipped[i] ^= 1 << bit
			if line, err := seal.Open(flipped); line != nil || !errors.Is(err, seal.ErrBroken) && !errors.Is(err, seal.ErrNone) {
				t.Errorf("bit %d of byte %d is flipped: %q, %v", bit, i, line, err)
			}
		}
	}
}
