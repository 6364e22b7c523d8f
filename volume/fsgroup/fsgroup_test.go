package fsgroup_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/fsgroup"
)

func TestSetOwnership(t *testing.T) {
	gid, notAGroup, policy := int64(os.Getegid()), int64(1<<32), v1.FSGroupChangeOnRootMismatch
	managed := volume.Attributes{Managed: true}
	for name, test := range map[string]struct {
		attributes volume.Attributes
		args       volume.MounterArgs
		root       fs.FileMode
		changed    bool
		fails      bool
	}{
		"managed":              {managed, volume.MounterArgs{FsGroup: &gid}, 0o700, true, false},
		"no group":             {managed, volume.MounterArgs{}, 0o700, false, false},
		"not managed":          {volume.Attributes{}, volume.MounterArgs{FsGroup: &gid}, 0o700, false, false},
		"read-only":            {volume.Attributes{Managed: true, ReadOnly: true}, volume.MounterArgs{FsGroup: &gid}, 0o700, false, false},
		"root mismatch":        {managed, volume.MounterArgs{FsGroup: &gid, FSGroupChangePolicy: &policy}, 0o700, true, false},
		"root as it should be": {managed, volume.MounterArgs{FsGroup: &gid, FSGroupChangePolicy: &policy}, fs.ModeSetgid | 0o770, false, false},
		"no group id":          {managed, volume.MounterArgs{FsGroup: &notAGroup}, 0o700, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			file := filepath.Join(dir, "file")
			if err := errors.Join(os.WriteFile(file, nil, 0o600), os.Chmod(dir, test.root)); err != nil {
				t.Fatal(err)
			}
			var last volume.Progress
			test.args.Progress = func(p volume.Progress) { last = p }
			var owner fsgroup.Setter
			err := owner.Set(t.Context(), dir, test.attributes, test.args)
			if _, invalid := errors.AsType[*volume.InvalidSpecError](err); invalid != test.fails || (err != nil) != test.fails {
				t.Fatalf("err = %v", err)
			}
			info, err := os.Stat(file)
			if err != nil {
				t.Fatal(err)
			}
			if changed := info.Mode() == 0o660; changed != test.changed || !changed && info.Mode() != 0o600 {
				t.Errorf("the file is %v now", info.Mode())
			}
			if want := (volume.Progress{Doing: fsgroup.Doing, Done: 2}); (last == want) != test.changed {
				t.Errorf("the last progress is %v", last)
			}
		})
	}
}

// Whoever has given up is told nothing more, and the directory is free for the
// next attempt once the walk has noticed.
func TestOwnershipThatIsGivenUp(t *testing.T) {
	dir := t.TempDir()
	gid := int64(os.Getegid())
	cause := errors.New("no patience")
	ctx, cancel := context.WithCancelCause(t.Context())
	var owner fsgroup.Setter
	args := volume.MounterArgs{FsGroup: &gid, Progress: func(volume.Progress) { cancel(cause) }}
	managed := volume.Attributes{Managed: true}
	if err := owner.Set(ctx, dir, managed, args); !errors.Is(err, cause) {
		t.Errorf("err = %v, want the cause", err)
	}
	args.Progress = nil
	if err := owner.Set(t.Context(), dir, managed, args); err != nil {
		t.Error(err)
	}
}

func TestProgressAsText(t *testing.T) {
	for want, p := range map[string]volume.Progress{
		"unpacking":           {Doing: "unpacking"},
		"unpacking: 3":        {Doing: "unpacking", Done: 3},
		"unpacking: 0 of 300": {Doing: "unpacking", Total: 300},
		"unpacking: 3 of 300": {Doing: "unpacking", Done: 3, Total: 300},
	} {
		if got := p.String(); got != want {
			t.Errorf("%#v is %q, want %q", p, got, want)
		}
	}
}
