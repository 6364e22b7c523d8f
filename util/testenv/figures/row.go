package figures

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Unit says what a figure counts.
type Unit string

const (
	// Wall is seconds by the clock.
	Wall Unit = "s"
	// CPU is seconds of a processor, which is what something costs whatever else runs.
	CPU Unit = "s CPU"
	// Bytes is memory.
	Bytes Unit = "B"
	// Count is a number without a unit, such as of requests.
	Count Unit = ""
)

// Format writes a value in the unit, such as "12.3 µs".
func (u Unit) Format(value float64) string {
	switch u {
	case Wall, CPU:
		for _, scale := range []struct {
			name string
			of   float64
		}{{"s", 1}, {"ms", 1e-3}, {"µs", 1e-6}, {"ns", 1e-9}} {
			if math.Abs(value) >= scale.of || scale.name == "ns" {
				return short(value/scale.of) + " " + scale.name + string(u[1:])
			}
		}
	case Bytes:
		if value >= 10_000 {
			return short(value/1024) + " KiB"
		}
		return short(value) + " B"
	}
	return short(value) + string(u)
}

// short writes three digits.
func short(value float64) string {
	if value == 0 || math.Abs(value) >= 100 {
		return fmt.Sprintf("%.0f", value)
	}
	return fmt.Sprintf("%.3g", value)
}

// Row is a figure, beside that of a peer where there is one.
type Row struct {
	// What was measured, such as "bind mount and unmount, of 2,000 mounts".
	What string
	Unit Unit
	// Ours is podvol's figure, the median of all rounds if it is a time.
	Ours float64
	// Peer names who else did the same in the same run, such as "mount-utils" or
	// "bare calls", and Theirs is its figure. Without a peer both are empty.
	Peer   string
	Theirs float64
	// Limit is the most that Ours may be: as a part of Theirs, or by itself where
	// there is no peer. 0: it is only reported.
	Limit float64
	// Fastest is what Ratio is by the fastest rounds, where the test knows. A test
	// fails only if both are beyond the limit, since what disturbs a round makes it
	// slower.
	Fastest float64
}

// Times makes a row of two times.
func Times(what string, unit Unit, ours time.Duration, peer string, theirs time.Duration, limit float64) Row {
	return Row{What: what, Unit: unit, Ours: ours.Seconds(), Peer: peer, Theirs: theirs.Seconds(), Limit: limit}
}

// Ratio is Ours as a part of Theirs, or Ours where there is no peer.
func (r Row) Ratio() float64 {
	if r.Peer == "" {
		return r.Ours
	}
	return r.Ours / r.Theirs
}

// Behind says whether the row is beyond its limit, by the median.
func (r Row) Behind() bool { return r.beyond(r.Ratio(), 1) }

func (r Row) beyond(ratio, slack float64) bool {
	return r.Limit > 0 && !(ratio <= r.Limit*slack) // what is no number is beyond it too
}

// fails says whether the row is beyond its limit by whatever was measured.
func (r Row) fails(slack float64) bool {
	return r.beyond(r.Ratio(), slack) && (r.Fastest == 0 || r.beyond(r.Fastest, slack))
}

// String tells of the row on one line.
func (r Row) String() string {
	text := fmt.Sprintf("%s: %s", r.What, r.Unit.Format(r.Ours))
	if r.Peer != "" {
		text += fmt.Sprintf(", %s %s, ratio %.3g", r.Peer, r.Unit.Format(r.Theirs), r.Ratio())
	}
	if r.Fastest > 0 {
		text += fmt.Sprintf(", by the fastest rounds %.3g", r.Fastest)
	}
	if r.Limit > 0 {
		limit := fmt.Sprintf("%.3g", r.Limit)
		if r.Peer == "" {
			limit = r.Unit.Format(r.Limit)
		}
		text += fmt.Sprintf(" (limit %s)", limit)
	}
	return text
}

// Report logs rows, records them, and fails the test where figures are asserted and
// one is beyond its limit.
func Report(t testing.TB, rows ...Row) {
	t.Helper()
	slack, asserted := Slack(t)
	for _, r := range rows {
		t.Log(r)
		record(t, Record{Row: &r})
		if asserted && r.fails(slack) {
			t.Errorf("%s: %v times the limit is exceeded", r, slack)
		}
	}
}

// Point is a place on a curve: the cost of one of X.
type Point struct {
	X, Y float64
	// Collector is the garbage collector's part of Y, where the test tells: few are too
	// small for a collection, so that a curve of CPU grows by it although each does the
	// same.
	Collector float64 `json:",omitempty"`
}

// Each is the point of n who took so much CPU together.
func Each(n int, together Taken) Point {
	return Point{X: float64(n), Y: together.CPU.Seconds() / float64(n), Collector: together.Collector.Seconds() / float64(n)}
}

// Curve is what one of something costs, by how many there are.
type Curve struct {
	// What was measured, such as "set-up of a pod".
	What string
	// Of names what there are so many of, such as "pods at once".
	Of string
	// Unit is of the points' Y, for one.
	Unit Unit
	// Points are in the order of X.
	Points []Point
	// Limit is the most that one may cost at the last point, as a part of what it
	// costs at the first. 0: it is only reported.
	Limit float64
}

// Growth is the cost at the last point as a part of that at the first.
func (c Curve) Growth() float64 {
	if len(c.Points) == 0 {
		return math.NaN()
	}
	return c.Points[len(c.Points)-1].Y / c.Points[0].Y
}

// Behind says whether the curve is steeper than its limit.
func (c Curve) Behind() bool { return c.beyond(1) }

func (c Curve) beyond(slack float64) bool { return c.Limit > 0 && !(c.Growth() <= c.Limit*slack) }

// String tells of the curve on one line.
func (c Curve) String() string {
	text := c.What + ", each:"
	for _, p := range c.Points {
		text += fmt.Sprintf(" %s at %g,", c.Unit.Format(p.Y), p.X)
	}
	text += fmt.Sprintf(" ratio %.3g", c.Growth())
	if c.Limit > 0 {
		text += fmt.Sprintf(" (limit %.3g)", c.Limit)
	}
	if collector := c.Collector(); collector != "" {
		text += "; " + collector
	}
	return text
}

// Collector tells the garbage collector's part of each point, and how the rest grows. It is
// empty where the points do not tell.
func (c Curve) Collector() string {
	rest := Curve{}
	var parts []string
	for _, p := range c.Points {
		rest.Points = append(rest.Points, Point{X: p.X, Y: p.Y - p.Collector})
		parts = append(parts, fmt.Sprintf("%s at %g", c.Unit.Format(p.Collector), p.X))
	}
	if !slices.ContainsFunc(c.Points, func(p Point) bool { return p.Collector > 0 }) {
		return ""
	}
	return fmt.Sprintf("of it the garbage collector's: %s; without it the ratio is %.3g", strings.Join(parts, ", "), rest.Growth())
}

// ReportCurve does with a curve what [Report] does with a row.
func ReportCurve(t testing.TB, c Curve) {
	t.Helper()
	slack, asserted := Slack(t)
	t.Log(c)
	record(t, Record{Curve: &c})
	if asserted && c.beyond(slack) {
		t.Errorf("%s: %v times the limit is exceeded", c, slack)
	}
}

// Record is a line of the file that [RecordVar] names, in JSON: a row or a curve.
type Record struct {
	Test       string // its full name
	FileSystem string // that of its temporary directories
	Row        *Row   `json:",omitempty"`
	Curve      *Curve `json:",omitempty"`
}

func record(t testing.TB, r Record) {
	t.Helper()
	name := os.Getenv(RecordVar)
	if name == "" {
		return
	}
	r.Test, r.FileSystem = t.Name(), fileSystem(os.TempDir())
	line, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err) // such as NaN
	}
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o666)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.Write(append(line, '\n')); err != nil {
		t.Fatal(err)
	}
}

// fileSystem names the file system of a directory.
func fileSystem(dir string) string {
	var stat unix.Statfs_t
	if err := unix.Statfs(dir, &stat); err != nil {
		return "unknown"
	}
	switch stat.Type {
	case unix.TMPFS_MAGIC:
		return "tmpfs"
	case unix.EXT4_SUPER_MAGIC:
		return "ext4"
	case unix.XFS_SUPER_MAGIC:
		return "xfs"
	case unix.BTRFS_SUPER_MAGIC:
		return "btrfs"
	case unix.OVERLAYFS_SUPER_MAGIC:
		return "overlay"
	}
	return fmt.Sprintf("%#x", stat.Type)
}
