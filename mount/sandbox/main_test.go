package sandbox_test

import (
	"os"
	"testing"

	"github.com/podvol/podvol/mount/sandbox"
	"github.com/podvol/podvol/util/testenv/noleak"
)

func TestMain(m *testing.M) {
	if os.Getenv(forgetfulVar) != "" {
		os.Exit(forgetful())
	}
	sandbox.Main()
	switch os.Args[0] {
	case probeName:
		os.Exit(probe(os.Args[1:]))
	case parentName:
		os.Exit(parent())
	}
	noleak.Main(m)
}
