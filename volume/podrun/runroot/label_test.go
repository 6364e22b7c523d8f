package runroot_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/podvol/podvol/volume/podrun/runroot"
)

// Whatever the label is, a directory is made directly below that of the runs, and a killed run
// leaves one that is found, also if it had no marker yet.
func TestEveryLabelMakesARun(t *testing.T) {
	for name, label := range map[string]string{
		"plain": "shop_web", "empty": "", "slash": "shop/web", "parent": "../../web", "asterisk": "web*1", "zero byte": "web\x00",
		"long": strings.Repeat("*/", 200), "dots": "..",
	} {
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
