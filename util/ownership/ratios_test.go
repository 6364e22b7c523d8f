package ownership

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/podvol/podvol/util/testenv/figures"
)

// plainWalk is what the kubelet does.
func plainWalk(root string, gid int) error {
	return filepath.Walk(root, func(path string, info fs.FileInfo, err error) error {
		if err != nil {
			return err
		}
		if err := os.Lchown(path, -1, gid); err != nil {
			return err
		}
		if info.Mode()&fs.ModeSymlink != 0 {
			return nil
		}
		mode := info.Mode() | 0o660
		if info.IsDir() {
			mode |= fs.ModeSetgid | 0o110
		}
		return os.Chmod(path, mode)
	})
}

// makeTree makes so many files in directories of a thousand.
func makeTree(tb testing.TB, root string, files int) {
	tb.Helper()
	for n := range files {
		dir := filepath.Join(root, fmt.Sprint(n/10_000), fmt.Sprint(n/1000))
		if n%1000 == 0 {
			if err := os.MkdirAll(dir, 0o755); err != nil {
				tb.Fatal(err)
			}
		}
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("file-%06d", n)), nil, 0o644); err != nil {
			tb.Fatal(err)
		}
	}
}

// unmake makes a tree as makeTree did. Nothing is deleted between the rounds:
// ext4 is slow for minutes in using freed inodes again.
func unmake(tb testing.TB, root string) {
	tb.Helper()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		mode := fs.FileMode(0o644)
		if d.IsDir() {
			mode = 0o755
		}
		if err := os.Lchown(path, -1, os.Getegid()); err != nil {
			return err
		}
		return os.Chmod(path, mode)
	})
	if err != nil {
		tb.Fatal(err)
	}
}

// measured are the cases, each after what comes before it.
var measured = []struct {
	name  string
	fresh bool // begins with a tree that was never given to the group
	run   func(testing.TB, string, int) error
}{
	{"plain walk", true, func(_ testing.TB, root string, gid int) error { return plainWalk(root, gid) }},
	{"plain walk again", false, func(_ testing.TB, root string, gid int) error { return plainWalk(root, gid) }},
	{"first", true, setTo(Options{})},
	{"again", false, setTo(Options{})},
	{"root mismatch", false, setTo(Options{OnRootMismatch: true})},
}

func setTo(o Options) func(testing.TB, string, int) error {
	return func(tb testing.TB, root string, gid int) error {
		return Set(tb.Context(), root, Group{ID: uint32(gid)}, o)
	}
}

// TestRatios measures the cases in turn, so that all meet the same weather,
// and prints ratios of medians and of the fastest rounds:
//
//	go test ./util/ownership -run Ratios -v
//
// The limits are for the fastest rounds, since what disturbs a round only ever
// makes it slower.
func TestRatios(t *testing.T) {
	slack, asserted := figures.Slack(t)
	rounds, files := 1, 2000
	if asserted || testing.Verbose() {
		rounds, files = 4, 100_000
	}
	root := t.TempDir()
	gid := int(ownGroup(t))
	makeTree(t, root, files)
	times := make(map[string][]time.Duration)
	for range rounds {
		for _, c := range measured {
			if c.fresh {
				unmake(t, root)
			}
			start := time.Now()
			if err := c.run(t, root, gid); err != nil {
				t.Fatal(err)
			}
			times[c.name] = append(times[c.name], time.Since(start))
		}
	}
	for _, c := range measured {
		slices.Sort(times[c.name])
		t.Logf("%d files, %-18s median %-12v fastest %v", files, c.name, times[c.name][rounds/2], times[c.name][0])
	}
	for _, r := range []struct {
		name, to string
		limit    float64
	}{
		{"first", "plain walk", 1.0 / 2},
		{"again", "plain walk again", 1.0 / 6},
	} {
		ratioOf := func(round int) float64 { return float64(times[r.name][round]) / float64(times[r.to][round]) }
		t.Logf("%-18s median %-12.3f fastest %.3f of %s (limit %.3f)", r.name, ratioOf(rounds/2), ratioOf(0), r.to, r.limit)
		if asserted && ratioOf(0) > r.limit*slack {
			t.Errorf("%s takes %.3f of %s, more than %v times %.3f", r.name, ratioOf(0), r.to, slack, r.limit)
		}
	}
	const limit = 50 * time.Microsecond
	if got := times["root mismatch"][0]; asserted && got > time.Duration(float64(limit)*slack) {
		t.Errorf("with a right root %v, more than %v times %v", got, slack, limit)
	}
}

func BenchmarkSet(b *testing.B) {
	root := b.TempDir()
	makeTree(b, root, 20_000)
	for _, c := range measured {
		b.Run(c.name, func(b *testing.B) {
			for range b.N {
				b.StopTimer()
				if c.fresh {
					unmake(b, root)
				}
				b.StartTimer()
				if err := c.run(b, root, 4711); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
