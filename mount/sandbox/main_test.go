package sandbox_test

import (
	"os"
	"testing"

	"github.com/podvol/podvol/mount/sandbox"
)

func TestMain(m *testing.M) {
	sandbox.Main()
	if os.Args[0] == probeName {
		os.Exit(probe(os.Args[1:]))
	}
	os.Exit(m.Run())
}
