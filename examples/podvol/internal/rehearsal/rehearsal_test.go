package rehearsal

import (
	"slices"
	"testing"

	"github.com/podvol/podvol/examples/podvol/internal/rows"
	"github.com/podvol/podvol/mount/fakemount"
)

func TestMountsAreInTheOrderOfTheVolumes(t *testing.T) {
	want := []string{"/r/plugins/nfs/a", "/r/plugins/nfs/b", "/r/pods/p2/volumes/nfs/z", "/r/pods/p2/volumes/nfs/b", "/r/pods/p1/volumes/nfs/a"}
	var calls []fakemount.Call
	for _, target := range []string{want[4], want[3], want[1], want[2], want[0]} {
		calls = append(calls, fakemount.Call{Op: "mount", Source: "first", Target: target}, fakemount.Call{Op: "mount", Source: "second", Target: target})
	}
	SortMounts(calls, []rows.Key{{Pod: "p2", Volume: "z"}, {Pod: "p2", Volume: "b"}, {Pod: "p1", Volume: "a"}})
	for i, c := range calls {
		if source := []string{"first", "second"}[i%2]; c.Target != want[i/2] || c.Source != source {
			t.Errorf("call %d is %s of %s, want %s of %s", i, c.Target, c.Source, want[i/2], source)
		}
	}
}

func TestDirectoriesAreMadeBeforeWhatIsInThem(t *testing.T) {
	commands := []string{"mkdir -p /b", "install /dev/null /a/x", "chgrp -R 5 /b", "mkdir -p /a"}
	SortFiles(commands)
	if want := []string{"mkdir -p /a", "install /dev/null /a/x", "mkdir -p /b", "chgrp -R 5 /b"}; !slices.Equal(commands, want) {
		t.Errorf("%q, want %q", commands, want)
	}
}
