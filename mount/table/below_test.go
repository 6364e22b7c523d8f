package table_test

import (
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/util/testenv/mounttest"
	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/util/testenv/testtool"
)

// foreignTable hides what a table can do beyond the interface.
type foreignTable struct{ mount.Table }

func TestBelow(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		dir, err := filepath.EvalSymlinks(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		a, beside := testtool.MkdirAll(t, dir, "a"), testtool.MkdirAll(t, dir, "ab")
		mounttest.Mount(t, mounttest.Tmpfs(a))
		inner := testtool.MkdirAll(t, a, "inner")
		mounts := table.Kernel()
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
			mounttest.Mount(t, mounttest.Tmpfs(tc.at))
			if diff := cmp.Diff(tc.want, targets(mounts, a)); diff != "" {
				t.Errorf("step %d:\n%s", step, diff)
			}
			for _, dir := range []string{dir, filepath.Dir(dir), "/", inner} {
				if diff := cmp.Diff(targets(foreignTable{mounts}, dir), targets(mounts, dir)); diff != "" {
					t.Errorf("step %d: another table's answer of %s and ours:\n%s", step, dir, diff)
				}
			}
		}
	})
}
