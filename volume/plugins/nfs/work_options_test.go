package nfs

import (
	"slices"
	"testing"
)

// The last of contradicting options counts, and a class or a PersistentVolume may
// name several.
func TestOptionsOfTheAgentsOwnMountsCount(t *testing.T) {
	for _, given := range [][]string{nil, {"actimeo=0", "actimeo=600"}, {"ro", "lookupcache=none", "lookupcache=all", "hard"}, {"nosuid", "suid", "dev"}} {
		before := slices.Clone(given)
		options, err := workOptions(given)
		if err != nil {
			t.Fatal(err)
		}
		want := []string{"lookupcache=none", "actimeo=0", "nosuid", "nodev", "noexec"}
		if got := withoutRights(options); len(got) < len(want) || !slices.Equal(got[len(got)-len(want):], want) || slices.Contains(got, "ro") {
			t.Errorf("%q became %q", given, got)
		}
		if !slices.Equal(given, before) {
			t.Errorf("the caller's %q became %q", before, given)
		}
	}
}
