package pathin_test

import (
	"testing"

	"github.com/podvol/podvol/util/pathin"
)

func TestCut(t *testing.T) {
	for _, test := range []struct {
		dir, p, rest string
		ok, strictly bool
	}{
		{"/a", "/a", "", true, false},
		{"/a", "/a/b/c", "b/c", true, true},
		{"/a", "/ab", "", false, false},
		{"/a/b", "/a", "", false, false},
		{"/", "/", "", true, false},
		{"/", "/a", "a", true, true},
		{"a", "a/b", "b", true, true},
		{"/a", "a/b", "", false, false},
	} {
		rest, ok := pathin.Cut(test.dir, test.p)
		if ok != test.ok || ok && rest != test.rest {
			t.Errorf("Cut(%q, %q) = %q, %v", test.dir, test.p, rest, ok)
		}
		if got := pathin.Strictly(test.dir, test.p); got != test.strictly {
			t.Errorf("Strictly(%q, %q) = %v", test.dir, test.p, got)
		}
	}
}
