package testtool_test

import (
	"os"
	"testing"

	"github.com/podvol/podvol/util/testenv/testtool"
)

func TestShorten(t *testing.T) {
	for _, tc := range []struct{ whole, set, want string }{
		{"1", "/elsewhere", "/elsewhere"},
		{"", "/elsewhere", "/elsewhere"},
		{"1", "", ""},
	} {
		if tc.set == "" && testing.Short() {
			continue // which shortens everything
		}
		t.Setenv("PODVOL_WHOLE_SWEEPS", tc.whole)
		t.Setenv("TMPDIR", tc.set)
		if testtool.Shorten(); os.Getenv("TMPDIR") != tc.want {
			t.Errorf("%+v: %s", tc, os.Getenv("TMPDIR"))
		}
	}
	t.Setenv("PODVOL_WHOLE_SWEEPS", "")
	t.Setenv("TMPDIR", "")
	testtool.Shorten()
	if err := os.WriteFile(t.TempDir()+"/file", []byte("#!/bin/sh\n"), 0o700); err != nil {
		t.Error(err)
	}
}
