package atomicdir

import (
	"go/build"
	"slices"
	"testing"
)

// Each system has one Publisher: the real one where golang.org/x/sys/unix has the system
// calls for it, else the one that only fails.
func TestEachSystemHasOnePublisher(t *testing.T) {
	for system, works := range map[string]bool{
		"linux": true, "android": true, "darwin": true, "ios": true, "freebsd": true, "netbsd": true, "openbsd": true,
		"solaris": false, "illumos": false, "aix": false, "dragonfly": false, "windows": false, "plan9": false, "js": false, "wasip1": false,
	} {
		there := build.Default
		there.GOOS, there.CgoEnabled = system, false
		files, err := there.ImportDir(".", 0)
		if err != nil {
			t.Fatal(err)
		}
		for file, want := range map[string]bool{"publisher.go": works, "syscalls.go": works, "other.go": !works} {
			if got := slices.Contains(files.GoFiles, file); got != want {
				t.Errorf("%s: %s is built: %v, want %v", system, file, got, want)
			}
		}
	}
}
