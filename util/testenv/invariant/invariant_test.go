package invariant_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/util/testenv/invariant"
)

// Who looks in the wrong place must not learn that nothing is wrong there.
func TestARootThatIsNotThereIsAViolation(t *testing.T) {
	fake := fakemount.New()
	defer fake.Close()
	root := t.TempDir()
	if err := invariant.Violations(root, fake.Table(), nil); err != nil {
		t.Errorf("nothing has been done there: %v", err)
	}
	if err := invariant.Violations(filepath.Join(root, "missing"), fake.Table(), nil); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing: %v", err)
	}
	file := filepath.Join(root, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := invariant.Violations(file, fake.Table(), nil); err == nil {
		t.Error("a file counts as a root")
	}
}
