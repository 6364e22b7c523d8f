//go:build linux

package atomicdir

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/podvol/podvol/util/testenv/figures"
	"github.com/podvol/podvol/volume/fileset"
)

// stopwatch is what a measured case and a testing.B have in common.
type stopwatch interface {
	StartTimer()
	StopTimer()
}

// workload is one thing to measure: it makes what it needs in an empty
// directory of its own and runs the watch just while it does it. Nothing is
// deleted before the end of all measuring, since ext4 is slow for minutes in
// using freed inodes again.
type workload struct {
	name string
	run  func(tb testing.TB, dir string, files map[string]fileset.File, watch stopwatch)
}

func publishTimed(tb testing.TB, watch stopwatch, p *Publisher, dir string, files map[string]fileset.File, want bool) {
	tb.Helper()
	watch.StartTimer()
	changed, err := p.Publish(tb.Context(), dir, files)
	watch.StopTimer()
	if err != nil || changed != want {
		tb.Fatalf("Publish = %v, %v, want %v", changed, err, want)
	}
}

var workloads = []workload{
	{"os.WriteFile", func(tb testing.TB, dir string, files map[string]fileset.File, watch stopwatch) {
		names := slices.Sorted(maps.Keys(files))
		watch.StartTimer()
		for _, name := range names {
			if err := os.WriteFile(filepath.Join(dir, name), files[name].Data, files[name].Mode); err != nil {
				tb.Fatal(err)
			}
		}
		watch.StopTimer()
	}},
	{"os.ReadFile", func(tb testing.TB, dir string, files map[string]fileset.File, watch stopwatch) {
		mustPublish(tb, new(Publisher), dir, files)
		names := slices.Sorted(maps.Keys(files))
		watch.StartTimer()
		for _, name := range names {
			if data, err := os.ReadFile(filepath.Join(dir, name)); err != nil || !bytes.Equal(data, files[name].Data) {
				tb.Fatal(name, err)
			}
		}
		watch.StopTimer()
	}},
	{"first", func(tb testing.TB, dir string, files map[string]fileset.File, watch stopwatch) {
		publishTimed(tb, watch, new(Publisher), dir, files, true)
	}},
	{"unchanged by digest", func(tb testing.TB, dir string, files map[string]fileset.File, watch stopwatch) {
		var p Publisher
		mustPublish(tb, &p, dir, files)
		publishTimed(tb, watch, &p, dir, files, false)
	}},
	{"unchanged by reading back", func(tb testing.TB, dir string, files map[string]fileset.File, watch stopwatch) {
		mustPublish(tb, new(Publisher), dir, files)
		publishTimed(tb, watch, new(Publisher), dir, files, false)
	}},
	{"one changed", func(tb testing.TB, dir string, files map[string]fileset.File, watch stopwatch) {
		// The third version, so that the first is removed within the time.
		var p Publisher
		mustPublish(tb, &p, dir, files)
		mustPublish(tb, &p, dir, oneChanged(files, "second"))
		publishTimed(tb, watch, &p, dir, oneChanged(files, "third"), true)
	}},
	{kubeletOneChanged, func(tb testing.TB, dir string, files map[string]fileset.File, watch stopwatch) {
		write := func(files map[string]fileset.File) {
			if err := kubeletWrite(dir, files); err != nil {
				tb.Fatal(err)
			}
		}
		write(files)
		write(oneChanged(files, "second"))
		watch.StartTimer()
		write(oneChanged(files, "third"))
		watch.StopTimer()
	}},
}

// kubeletOneChanged is "one changed" by the kubelet's writer.
const kubeletOneChanged = "kubelet's writer"

func thousandFiles() map[string]fileset.File {
	files := make(map[string]fileset.File, 1000)
	for n := range 1000 {
		files[fmt.Sprintf("file-%04d", n)] = fileset.File{Data: []byte(strings.Repeat("x", 96) + fmt.Sprintf("%04d", n)), Mode: 0o644}
	}
	return files
}

func oneChanged(files map[string]fileset.File, data string) map[string]fileset.File {
	files = maps.Clone(files)
	files["file-0500"] = fileset.File{Data: []byte(data), Mode: 0o644}
	return files
}

// TestRatios measures the cases in turn, so that all meet the same weather,
// and prints ratios of medians and of the fastest rounds:
//
//	go test ./volume/atomicdir -run Ratios -v
//
// The limits are for the fastest rounds, since what disturbs a round only ever
// makes it slower: other processes, and on ext4 inodes that were freed within
// the last minutes, which make a round several times slower at random.
func TestRatios(t *testing.T) { figures.EachFileSystem(t, measurePublishing) }

func measurePublishing(t *testing.T) {
	_, asserted := figures.Slack(t)
	rounds := 3
	if asserted || testing.Verbose() {
		rounds = 15
	}
	files, base := thousandFiles(), t.TempDir()
	times := make(map[string][]time.Duration)
	for range rounds {
		for _, w := range workloads {
			var watch clock
			w.run(t, freshDir(t, base), files, &watch)
			times[w.name] = append(times[w.name], watch.total)
		}
	}
	for _, w := range workloads {
		slices.Sort(times[w.name])
	}
	for _, r := range []struct {
		name, to string
		limit    float64
	}{
		{"first", "os.WriteFile", 1.5},
		// Most of this is listing the names and hashing the contents, however fast a write is.
		{"unchanged by digest", "os.ReadFile", 0.1},
		{"unchanged by reading back", "os.ReadFile", 0.8},
		// Not of a first write: there each file is made, here each is read back and linked, and
		// one of an older version removed, which costs about as much.
		{"one changed", kubeletOneChanged, 0.7},
	} {
		ours, theirs := times[r.name], times[r.to]
		row := figures.Times("writing 1,000 files, "+r.name, figures.Wall, ours[rounds/2], r.to, theirs[rounds/2], r.limit)
		row.Fastest = ours[0].Seconds() / theirs[0].Seconds()
		figures.Report(t, row)
	}
}

func BenchmarkPublish(b *testing.B) {
	files, base := thousandFiles(), b.TempDir()
	for _, w := range workloads {
		b.Run(w.name, func(b *testing.B) {
			b.StopTimer()
			for range b.N {
				w.run(b, freshDir(b, base), files, b)
			}
		})
	}
}

func freshDir(tb testing.TB, base string) string {
	tb.Helper()
	dir, err := os.MkdirTemp(base, "")
	if err != nil {
		tb.Fatal(err)
	}
	return dir
}

// clock is the stopwatch of a test.
type clock struct {
	started time.Time
	total   time.Duration
}

func (c *clock) StartTimer() { c.started = time.Now() }
func (c *clock) StopTimer()  { c.total += time.Since(c.started) }
