package figures

import (
	"encoding/json"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
)

// reporter is a test that may fail.
type reporter struct {
	testing.TB
	failed []string
}

func (r *reporter) Helper()                      {}
func (r *reporter) Log(...any)                   {}
func (r *reporter) Errorf(f string, args ...any) { r.failed = append(r.failed, f) }

func TestALimitIsAssertedOnlyWhereAsked(t *testing.T) {
	for name, c := range map[string]struct {
		assert string
		row    Row
		fails  bool
	}{
		"not asked":                {"", Row{What: "x", Ours: 9, Limit: 1}, false},
		"beyond":                   {"1", Row{What: "x", Ours: 9, Limit: 1}, true},
		"loosened":                 {"10", Row{What: "x", Ours: 9, Limit: 1}, false},
		"without a limit":          {"1", Row{What: "x", Ours: 9}, false},
		"beside a peer":            {"1", Row{What: "x", Ours: 9, Peer: "p", Theirs: 10, Limit: 1}, false},
		"slower than a peer":       {"1", Row{What: "x", Ours: 11, Peer: "p", Theirs: 10, Limit: 1}, true},
		"by the fastest rounds":    {"1", Row{What: "x", Ours: 11, Peer: "p", Theirs: 10, Limit: 1, Fastest: 0.9}, false},
		"a peer that did nothing":  {"1", Row{What: "x", Peer: "p", Limit: 1}, true},
		"faster in the median too": {"1", Row{What: "x", Ours: 9, Peer: "p", Theirs: 10, Limit: 1, Fastest: 2}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(AssertVar, c.assert)
			t.Setenv(RecordVar, "")
			r := &reporter{TB: t}
			Report(r, c.row)
			if failed := len(r.failed) > 0; failed != c.fails {
				t.Errorf("failed: %v", r.failed)
			}
		})
	}
}

// The page goes by the medians, whatever the fastest rounds say.
func TestARowIsBehindByItsMedian(t *testing.T) {
	for want, row := range map[bool]Row{
		true:  {Ours: 11, Peer: "p", Theirs: 10, Limit: 1, Fastest: 0.9},
		false: {Ours: 9, Peer: "p", Theirs: 10, Limit: 1, Fastest: 2},
	} {
		if row.Behind() != want {
			t.Errorf("%+v is behind: %v", row, !want)
		}
	}
}

func TestRecordsAreAppended(t *testing.T) {
	name := filepath.Join(t.TempDir(), "records")
	t.Setenv(RecordVar, name)
	t.Setenv(AssertVar, "1")
	r := &reporter{TB: t}
	Report(r, Times("x", Wall, time.Second, "p", 2*time.Second, 0.1))
	ReportCurve(r, Curve{What: "y", Of: "pods", Unit: CPU, Points: []Point{{X: 1, Y: 2}, {X: 10, Y: 5}}, Limit: 1.2})
	if len(r.failed) > 0 {
		t.Errorf("limits are asserted while figures are recorded: %v", r.failed)
	}
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	var row, curve Record
	if len(lines) != 2 || json.Unmarshal([]byte(lines[0]), &row) != nil || json.Unmarshal([]byte(lines[1]), &curve) != nil {
		t.Fatalf("records: %s", text)
	}
	if row.Test != t.Name() || row.FileSystem == "" || row.Row == nil || row.Row.Ratio() != 0.5 || !row.Row.Behind() {
		t.Errorf("row %+v", row)
	}
	if curve.Curve == nil || curve.Curve.Growth() != 2.5 || !curve.Curve.Behind() {
		t.Errorf("curve %+v", curve)
	}
}

func TestFormat(t *testing.T) {
	for _, c := range []struct {
		unit  Unit
		value float64
		want  string
	}{
		{Wall, 1.5, "1.5 s"}, {Wall, 0.0123, "12.3 ms"}, {CPU, 480e-6, "480 µs CPU"}, {Wall, 3e-8, "30 ns"}, {Wall, 0, "0 ns"},
		{Bytes, 512, "512 B"}, {Bytes, 1 << 20, "1024 KiB"}, {Count, 1.05, "1.05"}, {Count, 20000, "20000"},
	} {
		if got := c.unit.Format(c.value); got != c.want {
			t.Errorf("%v as %q is %q, want %q", c.value, c.unit, got, c.want)
		}
	}
}

func TestTheCollectorsPartIsToldApart(t *testing.T) {
	var keep [][]byte
	taken := Take(t, func() {
		for range 1 << 14 {
			keep = append(keep, make([]byte, 64))
		}
		runtime.GC()
	})
	runtime.KeepAlive(keep)
	if taken.Collector <= 0 {
		t.Errorf("a collection took %v", taken.Collector)
	}
	c := Curve{What: "x", Unit: CPU, Limit: 1.2, Points: []Point{Each(1, Taken{CPU: 2 * time.Second}), Each(10, Taken{CPU: 50 * time.Second, Collector: 28 * time.Second})}}
	want := "x, each: 2 s CPU at 1, 5 s CPU at 10, ratio 2.5 (limit 1.2); of it the garbage collector's: 0 ns CPU at 1, 2.8 s CPU at 10; without it the ratio is 1.1"
	if c.String() != want || !c.Behind() {
		t.Errorf("behind: %v, %s", c.Behind(), c)
	}
	if other := (Curve{Points: []Point{{X: 1, Y: 2}}}).Collector(); other != "" {
		t.Errorf("a curve that does not tell has %q", other)
	}
}

func TestWaysTakeTurns(t *testing.T) {
	var calls []string
	way := func(name string) Way {
		return Way{Name: name, Prepare: func() { calls = append(calls, "before "+name) }, Run: func() { calls = append(calls, name) }}
	}
	measured := InTurn(t, 2, way("a"), way("b"))
	if got, want := strings.Join(calls, ", "), "before a, a, before b, b, before a, a, before b, b"; got != want {
		t.Errorf("calls: %s", got)
	}
	for _, name := range []string{"a", "b"} {
		if m, ok := measured[name]; !ok || m.Fastest.Wall > m.Median.Wall {
			t.Errorf("%s: %+v", name, m)
		}
	}
}

func TestEachFileSystemIsItself(t *testing.T) {
	EachFileSystem(t, func(t *testing.T) {
		want := path.Base(t.Name())
		if got := fileSystem(t.TempDir()); got != want {
			t.Errorf("the file system is %s", got)
		}
	})
}
