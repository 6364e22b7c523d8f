package machinedir_test

import (
	"testing"

	"github.com/podvol/podvol/util/testenv/noleak"
)

func TestMain(m *testing.M) { noleak.Main(m) }
