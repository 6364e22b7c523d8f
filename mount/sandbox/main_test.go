package sandbox_test

import (
	"os"
	"testing"

	"github.com/podvol/podvol/mount/sandbox"
)

func TestMain(m *testing.M) {
	sandbox.Main()
	switch os.Args[0] {
	case probeName:
		os.Exit(probe(os.Args[1:]))
	case parentName:
		os.Exit(parent())
	}
	os.Exit(m.Run())
}
