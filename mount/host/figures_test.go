package host_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	k8smount "k8s.io/mount-utils"

	"github.com/podvol/podvol/mount/host"
	"github.com/podvol/podvol/util/testenv/figures"
	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/util/testenv/testtool"
)

// mountWay is one way to mount and to unmount again.
type mountWay struct {
	name    string
	mount   func(source, target, fstype string, options []string) error
	unmount func(target string) error
}

func mountWays() []mountWay {
	ours, theirs := host.New(host.Config{Via: host.ViaSystemCalls}), k8smount.New("")
	bare := func(source, target, fstype string, options []string) error {
		var flags uintptr
		if fstype == "" {
			flags = unix.MS_BIND
		}
		return unix.Mount(source, target, fstype, flags, "")
	}
	return []mountWay{
		{"podvol", ours.Mount, ours.Unmount},
		{"mount-utils", theirs.Mount, theirs.Unmount},
		{"bare calls", bare, func(target string) error { return unix.Unmount(target, 0) }},
	}
}

// mountKind is a kind of mount.
type mountKind struct {
	name, source, fstype string
	options              []string
}

func mountKinds(source string) []mountKind {
	return []mountKind{{"tmpfs", "tmpfs", "tmpfs", nil}, {"bind", source, "", []string{"bind"}}}
}

func (k mountKind) once(tb testing.TB, w mountWay, target string) {
	tb.Helper()
	if err := w.mount(k.source, target, k.fstype, k.options); err != nil {
		tb.Fatal(err)
	}
	if err := w.unmount(target); err != nil {
		tb.Fatal(err)
	}
}

// fillTable mounts until the table has this many mounts of a private tmpfs.
func fillTable(tb testing.TB, dir string, count int) {
	tb.Helper()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, ""); err != nil {
		tb.Fatal(err)
	}
	for i := range count - 1 {
		target := filepath.Join(dir, strconv.Itoa(i))
		if err := os.Mkdir(target, 0o755); err != nil {
			tb.Fatal(err)
		}
		if err := unix.Mount("tmpfs", target, "tmpfs", 0, "size=4k"); err != nil {
			tb.Fatal(err)
		}
	}
}

// TestMountFigures measures mounting and unmounting side by side, in CPU time and in turn:
//
//	PODVOL_ASSERT_FIGURES=1 go test ./mount/host -run MountFigures -v
//
// Mount-utils runs programs, whose time is theirs and the clock's.
func TestMountFigures(t *testing.T) {
	_, asserted := figures.Slack(t)
	testtool.Need(t, "mount") // which mount-utils runs
	nstest.RunAs(t, []nstest.Mode{nstest.Root}, func(t *testing.T) {
		counts, rounds := []int{10, 200}, 3
		if asserted || testing.Verbose() {
			counts, rounds = []int{10, 2000, 20_000, 50_000}, 41
		}
		curves := map[string][]figures.Point{}
		for _, count := range counts {
			t.Run(fmt.Sprintf("%d mounts", count), func(t *testing.T) { measureMounts(t, count, rounds, curves) })
		}
		for _, kind := range mountKinds("") {
			figures.ReportCurve(t, figures.Curve{What: kind.name + " mount and unmount, as a part of the bare calls", Of: "mounts", Points: curves[kind.name], Limit: 1.2})
		}
	})
}

func measureMounts(t *testing.T, count, rounds int, curves map[string][]figures.Point) {
	top := t.TempDir()
	fillTable(t, top, count)
	defer unix.Unmount(top, unix.MNT_DETACH)
	source, target := testtool.MkdirAll(t, top, "source"), testtool.MkdirAll(t, top, "target")
	for _, kind := range mountKinds(source) {
		repeats := map[string]int{"podvol": 50, "bare calls": 50, "mount-utils": 1}
		if count > 2000 {
			repeats["podvol"], repeats["bare calls"], rounds = 5, 5, min(rounds, 11)
		}
		var ways []figures.Way
		for _, way := range mountWays() {
			n := repeats[way.name]
			ways = append(ways, figures.Way{
				Name:    way.name,
				Prepare: func() { kind.once(t, way, target) }, // whatever the first one costs is no property of the second
				Run: func() {
					for range n {
						kind.once(t, way, target)
					}
				},
			})
		}
		took := figures.InTurn(t, rounds, ways...)
		each := func(name string, of func(figures.Measured) time.Duration) time.Duration {
			return of(took[name]) / time.Duration(repeats[name])
		}
		cpu := func(m figures.Measured) time.Duration { return m.Median.CPU }
		wall := func(m figures.Measured) time.Duration { return m.Median.Wall }
		what := fmt.Sprintf("%s mount and unmount, of %d mounts", kind.name, count)
		row := figures.Times(what, figures.CPU, each("podvol", cpu), "bare calls", each("bare calls", cpu), 1.8)
		row.Fastest = float64(took["podvol"].Fastest.CPU) / float64(took["bare calls"].Fastest.CPU)
		figures.Report(t, row)
		if count <= 2000 { // of more, the kernel itself takes longer than programs take to start
			figures.Report(t, figures.Times(what, figures.Wall, each("podvol", wall), "mount-utils", each("mount-utils", wall), 1./20))
		}
		curves[kind.name] = append(curves[kind.name], figures.Point{X: float64(count), Y: row.Ratio()})
	}
}

// benchVar is set in the process that BenchmarkMount starts.
const benchVar = "PODVOL_MOUNT_BENCHMARK"

// BenchmarkMount mounts and unmounts in each way, in a mount namespace of its
// own, which takes a process of its own; that one's figures are the ones
// printed. It needs root.
func BenchmarkMount(b *testing.B) {
	if os.Getenv(benchVar) == "" {
		child := exec.CommandContext(b.Context(), "/proc/self/exe", "-test.run=^$", "-test.bench=^BenchmarkMount$", "-test.benchmem", "-test.benchtime=300ms")
		child.Env = append(os.Environ(), benchVar+"=1")
		child.Stdout, child.Stderr = os.Stdout, os.Stderr
		child.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS}
		if err := child.Run(); err != nil {
			b.Fatal(err)
		}
		return
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		b.Fatal(err)
	}
	for _, count := range []int{10, 2000} {
		b.Run(fmt.Sprintf("mounts=%d", count), func(b *testing.B) { benchmarkWays(b, count) })
	}
}

func benchmarkWays(b *testing.B, count int) {
	top := b.TempDir()
	fillTable(b, top, count)
	defer unix.Unmount(top, unix.MNT_DETACH)
	source, target := filepath.Join(top, "source"), filepath.Join(top, "target")
	for _, dir := range []string{source, target} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			b.Fatal(err)
		}
	}
	for _, kind := range mountKinds(source) {
		for _, way := range mountWays() {
			b.Run(kind.name+"/"+way.name, func(b *testing.B) {
				for b.Loop() {
					kind.once(b, way, target)
				}
			})
		}
	}
}
