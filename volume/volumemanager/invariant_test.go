package volumemanager_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/util/testenv/invariant"
	"github.com/podvol/podvol/volume/volumemanager"
)

// TestInvariantsAreLookedForWhereTheManagerWrites, lest a renamed directory be one
// in which nothing is ever wrong.
func TestInvariantsAreLookedForWhereTheManagerWrites(t *testing.T) {
	fake := fakemount.New()
	defer fake.Close()
	for what, prepare := range map[string]func(root string) error{
		"a pod without a record": func(root string) error {
			return os.MkdirAll(filepath.Join(volumemanager.PodsDir(root), "uid"), 0o750)
		},
		"damaged records": func(root string) error {
			path := volumemanager.RecordsPath(root)
			must(t, os.MkdirAll(filepath.Dir(path), 0o700))
			return os.WriteFile(path, []byte("no journal\n"), 0o600)
		},
	} {
		root := t.TempDir()
		must(t, prepare(root))
		if err := invariant.Violations(root, fake.Table(), nil); err == nil {
			t.Errorf("%s is not seen", what)
		}
	}
}
