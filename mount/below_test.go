package mount_test

import (
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/util/testenv/nstest"
)

// foreignTable hides what a table can do beyond the interface.
type foreignTable struct{ mount.Table }

func TestBelow(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		dir, err := filepath.EvalSymlinks(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		a, beside := makeDir(t, dir, "a"), makeDir(t, dir, "ab")
		doMount(t, tmpfsAt(a))
		inner := makeDir(t, a, "inner")
		table, err := mount.KernelTable()
		if err != nil {
			t.Fatal(err)
		}
		targets := func(table mount.Table, below string) (targets []string) {
			t.Helper()
			entries, err := mount.Below(table, below)
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range entries {
				targets = append(targets, e.Target)
			}
			return targets
		}
		for step, tc := range []struct {
			at   string
			want []string
		}{{inner, []string{inner}}, {beside, []string{inner}}, {inner, []string{inner, inner}}} {
			doMount(t, tmpfsAt(tc.at))
			if diff := cmp.Diff(tc.want, targets(table, a)); diff != "" {
				t.Errorf("step %d:\n%s", step, diff)
			}
			if diff := cmp.Diff(targets(foreignTable{table}, dir), targets(table, dir)); diff != "" {
				t.Errorf("step %d: another table's answer and ours:\n%s", step, diff)
			}
		}
	})
}
