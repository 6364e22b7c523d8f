package criruntime

import (
	"os"
	"path/filepath"
	"testing"
)

// A container can give its hosts file any size: none of it is read but as much as is
// expected.
func TestHostsFilesOfAnySize(t *testing.T) {
	file := filepath.Join(t.TempDir(), "etc_hosts")
	for name, test := range map[string]struct {
		size int64
		want bool
	}{"the same": {5, true}, "longer": {6, false}, "shorter": {4, false}, "a terabyte": {1 << 40, false}} {
		if err := os.WriteFile(file, []byte("hosts"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(file, test.size); err != nil {
			t.Fatal(err)
		}
		if got := holds(file, "hosts"); got != test.want {
			t.Errorf("%s: %v", name, got)
		}
	}
	if holds(file+"-none", "") {
		t.Error("a file that is not there holds something")
	}
}
