package embedded_test

import (
	"testing"

	"github.com/podvol/podvol/util/noleak"
)

func TestMain(m *testing.M) { noleak.Main(m) }
