package volumemanager_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	k8smount "k8s.io/mount-utils"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/host"
)

// mountersVar is set in the process that BenchmarkMounters starts.
const mountersVar = "PODVOL_MOUNTERS_BENCHMARK"

// BenchmarkMounters sets up n pods with a volume in memory each, mounted for real, with
// the host's mounter and with mount-utils' own. Beside them, mount-utils makes the same
// mounts alone, as a kubelet calls it. The figures are this process's time, in which the
// mount table is read, and that of the programs it runs. It needs root, and makes a mount
// namespace in a process of its own.
func BenchmarkMounters(b *testing.B) {
	if os.Getenv(mountersVar) == "" {
		child := exec.CommandContext(b.Context(), "/proc/self/exe", "-test.run=^$", "-test.bench=^BenchmarkMounters$", "-test.benchtime=1x")
		child.Env = append(os.Environ(), mountersVar+"=1")
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
	for _, n := range []int{110, 1000} {
		b.Run(fmt.Sprintf("volumes=%d/host", n), func(b *testing.B) { benchmarkMounter(b, n, host.New(host.Config{})) })
		b.Run(fmt.Sprintf("volumes=%d/mount-utils", n), func(b *testing.B) { benchmarkMounter(b, n, k8smount.New("")) })
		b.Run(fmt.Sprintf("volumes=%d/mount-utils alone", n), func(b *testing.B) { benchmarkAlone(b, n, k8smount.New("")) })
	}
}

// reportTime reports the time of this process, and of its children, for each of n volumes.
func reportTime(b *testing.B, n int, mountAll func()) {
	children := func() time.Duration {
		var u unix.Rusage
		if err := unix.Getrusage(unix.RUSAGE_CHILDREN, &u); err != nil {
			b.Fatal(err)
		}
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	own, programs := usage().cpu, children()
	mountAll()
	b.ReportMetric(float64((usage().cpu-own).Microseconds())/float64(n), "own-µs/volume")
	b.ReportMetric(float64((children()-programs).Microseconds())/float64(n), "programs-µs/volume")
}

func benchmarkMounter(b *testing.B, n int, m mount.Interface) {
	w := newWorldIn(b, b.TempDir())
	w.mounter = m
	pods := make([]*v1.Pod, n)
	for i := range pods {
		pods[i] = newPod(fmt.Sprintf("p%d", i), emptyDirVolume("v", v1.StorageMediumMemory))
	}
	manager, _ := w.start()
	for b.Loop() {
		reportTime(b, n, func() { setUpAll(b, manager, pods) })
	}
	b.StopTimer()
	for _, p := range pods {
		if err := manager.TearDownPod(b.Context(), p.UID); err != nil {
			b.Fatal(err)
		}
	}
}

func benchmarkAlone(b *testing.B, n int, m mount.Interface) {
	dir := b.TempDir()
	target := func(i int) string { return filepath.Join(dir, fmt.Sprint(i)) }
	for b.Loop() {
		reportTime(b, n, func() {
			for i := range n {
				if err := os.Mkdir(target(i), 0o755); err != nil {
					b.Fatal(err)
				}
				if _, err := m.IsLikelyNotMountPoint(target(i)); err != nil {
					b.Fatal(err)
				}
				if err := m.MountSensitiveWithoutSystemd("tmpfs", target(i), "tmpfs", nil, nil); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	b.StopTimer()
	for i := range n {
		if err := unix.Unmount(target(i), 0); err != nil {
			b.Fatal(err)
		}
	}
}
