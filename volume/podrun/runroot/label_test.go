package runroot_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/podrun/runroot"
)

// A label that would put the directory elsewhere, or give it a name by which no later process
// knows it, is refused, and leaves nothing.
func TestLabelsThatAreRefused(t *testing.T) {
	for _, label := range []string{"shop/web", "../../web", "web*1", "*", "web\x00"} {
		base := t.TempDir()
		root, err := runroot.Runs{Base: base}.New(label)
		if !errors.As(err, new(*volume.InvalidSpecError)) || root != nil {
			t.Errorf("%q: %v", label, err)
		}
		if left, err := os.ReadDir(base); len(left) != 0 || err != nil {
			t.Errorf("%q: %v is left, %v", label, left, err)
		}
	}
}

// With every other label a killed run leaves a directory that is found, also if it had no
// marker yet.
func TestEveryLabelIsFoundAgain(t *testing.T) {
	for name, label := range map[string]string{"plain": "shop_web", "empty": "", "long": strings.Repeat("a.", 200), "dots": ".."} {
		t.Run(name, func(t *testing.T) {
			runs := runroot.Runs{Base: t.TempDir()}
			root, err := runs.New(label)
			if err != nil {
				t.Fatal(err)
			}
			if dir := filepath.Dir(root.Path()); dir != runs.Dir() {
				t.Errorf("it lies in %s", dir)
			}
			if err := root.RemoveMarker(); err != nil {
				t.Fatal(err)
			}
			root.Unlock()
			root.Close()
			dead, done, err := runs.Dead()
			defer done()
			if len(dead) != 1 || err != nil {
				t.Errorf("%d dead runs are found, %v", len(dead), err)
			}
		})
	}
}
