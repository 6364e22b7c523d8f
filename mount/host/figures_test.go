package host_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
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

// TestMountFigures measures mounting and unmounting side by side and prints the
// ratios of medians and of the fastest rounds:
//
//	go test ./mount -run MountFigures -v
//
// The rounds are short and take turns, so that all meet the same weather. The
// limits are for the fastest, since what disturbs a round only ever makes it
// slower.
func TestMountFigures(t *testing.T) {
	slack, asserted := figures.Slack(t)
	testtool.Need(t, "mount") // which mount-utils runs
	nstest.Run(t, func(t *testing.T) {
		for _, count := range []int{10, 2000} {
			t.Run(fmt.Sprintf("%d mounts", count), func(t *testing.T) { measureMounts(t, count, slack, asserted) })
		}
	})
}

func measureMounts(t *testing.T, count int, slack float64, asserted bool) {
	top := t.TempDir()
	fillTable(t, top, count)
	defer unix.Unmount(top, unix.MNT_DETACH)
	source, target := testtool.MkdirAll(t, top, "source"), testtool.MkdirAll(t, top, "target")
	rounds := 3
	if asserted || testing.Verbose() {
		rounds = 41
	}
	for _, kind := range mountKinds(source) {
		times := map[string][]time.Duration{}
		for range rounds {
			for _, way := range mountWays() {
				kind.once(t, way, target) // whatever the first one costs is no property of the second
				repeats := 50
				if way.name == "mount-utils" {
					repeats = 1
				}
				start := time.Now()
				for range repeats {
					kind.once(t, way, target)
				}
				times[way.name] = append(times[way.name], time.Since(start)/time.Duration(repeats))
			}
		}
		for _, all := range times {
			slices.Sort(all)
		}
		ratios := func(round int) (faster, slower float64) {
			ours, theirs, bare := times["podvol"][round], times["mount-utils"][round], times["bare calls"][round]
			faster, slower = float64(theirs)/float64(ours), float64(ours)/float64(bare)
			t.Logf("%-5s at %4d mounts, round %2d of %d by speed: %v; mount-utils %v, %.0f times that (limit 50); bare calls %v, it takes %.2f times those (limit 2)",
				kind.name, count, round+1, rounds, ours, theirs, faster, bare, slower)
			return faster, slower
		}
		// The bare calls take one of several times, as the kernel's grace periods
		// fall: either the median rounds or the fastest show how we compare.
		faster, slower := ratios(rounds / 2)
		fastestFaster, fastestSlower := ratios(0)
		faster, slower = max(faster, fastestFaster), min(slower, fastestSlower)
		if asserted && faster < 50/slack {
			t.Errorf("%s is only %.0f times faster than mount-utils, not 50 by %v", kind.name, faster, slack)
		}
		if asserted && slower > 2*slack {
			t.Errorf("%s takes %.2f of the bare calls, more than 2 times %v", kind.name, slower, slack)
		}
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
