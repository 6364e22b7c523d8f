package fileset

import (
	"errors"
	"strings"
	"testing"
)

func TestCheckPathAccepts(t *testing.T) {
	for _, path := range []string{
		"a", "ca.crt", ".hidden", "a/b/c", "a/..b", "a/...", "./a", "a//b", "a/./b", "a/", "-rf", "~", "a b\n",
		"ü", "\xff", `a\..\b`, strings.Repeat("n", 255), strings.Repeat("n/", 100) + "n",
	} {
		if err := CheckPath(path); err != nil {
			t.Errorf("CheckPath(%q) = %v", path, err)
		}
	}
}

func TestPathErrorIsShort(t *testing.T) {
	err := CheckPath(strings.Repeat("x", 1<<20))
	if failure, ok := errors.AsType[*PathError](err); !ok || len(err.Error()) > 1000 || failure.Reason == "" {
		t.Errorf("%d bytes of text: %.100s", len(err.Error()), err)
	}
}
