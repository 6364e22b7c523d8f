package validation_test

import (
	"errors"
	"testing"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/validation"
)

func TestCheckAbsolutePath(t *testing.T) {
	for _, good := range []string{"/", "/a", "/a/..b/c..", "/a//b/./"} {
		if err := validation.CheckAbsolutePath("hostPath.path", good); err != nil {
			t.Errorf("CheckAbsolutePath(%q) = %v", good, err)
		}
	}
	for _, bad := range []string{"", "a", "./a", "/..", "/a/../b", "../a", "/a\x00b"} {
		err := validation.CheckAbsolutePath("hostPath.path", bad)
		if e, ok := errors.AsType[*volume.InvalidSpecError](err); !ok || e.Field != "hostPath.path" {
			t.Errorf("CheckAbsolutePath(%q) = %v", bad, err)
		}
	}
}
