package flexvolume_test

import (
	"os"
	"testing"

	"github.com/podvol/podvol/util/testenv/testtool"
)

func TestMain(m *testing.M) {
	testtool.Shorten()
	os.Exit(m.Run())
}
