package selfattach_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/podvol/podvol/volume/selfattach"
)

// What is attached is told with its driver and its time, and a record that cannot be read as one.
func TestInspect(t *testing.T) {
	inBubble(t, 1, func(t *testing.T, c *cabinet, nodes []*machineNode) {
		n := nodes[0]
		if found, err := selfattach.Inspect(filepath.Join(n.dir, "missing")); len(found) > 0 || err != nil {
			t.Errorf("a directory that is missing has %+v, %v", found, err)
		}
		n.want("a")
		n.want("b")
		synctest.Wait()
		damaged := selfattach.RecordPath(n.dir, unique("b"))
		data, err := os.ReadFile(damaged)
		if err != nil {
			t.Fatal(err)
		}
		data[10] ^= 1
		if err := os.WriteFile(damaged, data, 0o600); err != nil {
			t.Fatal(err)
		}
		found, err := selfattach.Inspect(n.dir)
		slices.SortFunc(found, func(a, b selfattach.Attachment) int { return strings.Compare(a.Driver, b.Driver) })
		if err != nil || len(found) != 2 || found[0].Path != damaged || found[0].Err == nil || found[0].Spec != nil {
			t.Fatalf("%+v, %v", found, err)
		}
		if a := found[1]; a.Err != nil || !a.Attached || a.Driver != pluginName || a.Spec.Name() != "a" || a.Since.IsZero() {
			t.Errorf("%+v", a)
		}
		n.unwant("a")
		n.unwant("b")
		synctest.Wait()
	})
}
