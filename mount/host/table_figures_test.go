package host

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	k8smount "k8s.io/mount-utils"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/internal/mounttable"
	"github.com/podvol/podvol/mount/internal/statmount"
	"github.com/podvol/podvol/util/testenv/figures"
	"github.com/podvol/podvol/util/testenv/nstest"
)

// manyMounts is a table like a node's: a tmpfs for each volume, below a tmpfs,
// and one directory that is bound three times.
type manyMounts struct {
	// volume is one of the mounts, unmounted a directory beside them, bound the
	// directory with refs.
	volume, unmounted, bound string
	refs                     []string
}

func mountMany(tb testing.TB, count int) manyMounts {
	tb.Helper()
	base := filepath.Join(tb.TempDir(), "kubelet")
	mustDo(tb, os.Mkdir(base, 0o755))
	mustDo(tb, unix.Mount("node", base, "tmpfs", 0, "mode=0755"))
	tb.Cleanup(func() { mustDo(tb, unix.Unmount(base, unix.MNT_DETACH)) })
	m := manyMounts{unmounted: filepath.Join(base, "pods", "none", "volumes", "data"), bound: filepath.Join(base, "bound")}
	dirs := []string{m.unmounted, m.bound}
	for i := range count {
		m.volume = filepath.Join(base, "pods", fmt.Sprintf("8d9c1f3e-%05d", i), "volumes", "kubernetes.io~empty-dir", "data")
		dirs = append(dirs, m.volume)
	}
	for i := range 3 {
		m.refs = append(m.refs, filepath.Join(base, "refs", strconv.Itoa(i)))
	}
	for _, dir := range append(dirs, m.refs...) {
		mustDo(tb, os.MkdirAll(dir, 0o755))
	}
	for _, dir := range dirs[2:] {
		mustDo(tb, unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "size=64k"))
	}
	for _, ref := range m.refs {
		mustDo(tb, unix.Mount(m.bound, ref, "", unix.MS_BIND, ""))
	}
	return m
}

func mustDo(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// fastest measures f for some rounds of n calls and returns the time of a call
// in the fastest: whatever disturbs a round only makes it slower.
func fastest(tb testing.TB, rounds, n int, f func() error) time.Duration {
	tb.Helper()
	var best time.Duration
	for range rounds {
		start := time.Now()
		for range n {
			mustDo(tb, f())
		}
		if took := time.Since(start) / time.Duration(n); best == 0 || took < best {
			best = took
		}
	}
	return best
}

func isMountPoint(m mount.Interface, path string, want bool) func() error {
	return func() error {
		got, err := m.IsMountPoint(path)
		if err == nil && got != want {
			err = fmt.Errorf("IsMountPoint(%s) = %v", path, got)
		}
		return err
	}
}

func refCount(m mount.Interface, path string, want int) func() error {
	return func() error {
		refs, err := m.GetMountRefs(path)
		if err == nil && len(refs) != want {
			err = fmt.Errorf("GetMountRefs(%s) = %v", path, refs)
		}
		return err
	}
}

func listAll(m mount.Interface, least int) func() error {
	return func() error {
		points, err := m.List()
		if err == nil && len(points) < least {
			err = fmt.Errorf("%d mounts are listed", len(points))
		}
		return err
	}
}

// TestTableFigures measures the questions beside those of mount-utils, in turn
// and on the same tables:
//
//	PODVOL_ASSERT_FIGURES=1 go test ./mount/host -run TableFigures/root -v
func TestTableFigures(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		slack, asserted := figures.Slack(t)
		most, rounds := 2000, 2
		if asserted || testing.Verbose() {
			most, rounds = 20000, 5
		}
		limit := func(what string, got, limit float64) {
			t.Helper()
			t.Logf("%-44s %10.2f (limit %v)", what, got, limit)
			if asserted && got > limit*slack {
				t.Errorf("%s: %.2f is more than %v times %v", what, got, slack, limit)
			}
		}
		var looks []float64
		for _, count := range []int{10, most} {
			t.Run(strconv.Itoa(count), func(t *testing.T) {
				many := mountMany(t, count)
				own, utils := New(Config{}), k8smount.New("")
				cold := fastest(t, rounds, 1, func() error { _, err := mounttable.New(statmount.Host{}).List(); return err })
				look := fastest(t, rounds, 200, isMountPoint(own, many.volume, true))
				looks = append(looks, float64(look))
				t.Logf("cold load %v, through mountinfo %v", cold, fastest(t, rounds, 1, func() error {
					_, err := mounttable.New(withoutList{}).List()
					return err
				}))
				at := fastest(t, rounds, 200, func() error { _, _, err := own.Table().At(many.volume); return err })
				t.Logf("At %v, IsMountPoint %v, of what is none %v; mount-utils %v", at, look, fastest(t, rounds, 200, isMountPoint(own, many.unmounted, false)),
					fastest(t, rounds, 50, isMountPoint(utils, many.volume, true)))
				ownRefs, utilsRefs := fastest(t, rounds, 100, refCount(own, many.refs[0], 2)), fastest(t, rounds, 2, refCount(utils, many.refs[0], 2))
				ownList, utilsList := fastest(t, rounds, 5, listAll(own, count)), fastest(t, rounds, 2, listAll(utils, count))
				t.Logf("refs %v, mount-utils %v; list %v, mount-utils %v", ownRefs, utilsRefs, ownList, utilsList)
				t.Logf("all %v", fastest(t, rounds, 1, func() error { _, err := own.Table().All(); return err }))
				limit("At in µs", float64(at)/1e3, 10)
				limit("IsMountPoint in µs", float64(look)/1e3, 10)
				if count == 20000 {
					limit("refs, 500 of them in the time of mount-utils", 500*float64(ownRefs)/float64(utilsRefs), 1)
					limit("list, 5 of them in the time of mount-utils", 5*float64(ownList)/float64(utilsList), 1)
					// Reported apart and held to nothing: this is one call of the kernel
					// for each mount, whose time differs between machines.
					t.Logf("cold load in the time of mount-utils' list %21.2f", float64(cold)/float64(utilsList))
				}
			})
		}
		limit("IsMountPoint: many mounts against ten", slices.Max(looks)/looks[0], 1.5)
	})
}

// BenchmarkTable asks the same of an index and of mount-utils:
//
//	unshare -m --propagation private go test ./mount/host -run - -bench Table
//
// It does not mount in the mount namespace of the machine.
func BenchmarkTable(b *testing.B) {
	own, err := os.Readlink("/proc/self/ns/mnt")
	mustDo(b, err)
	if machine, err := os.Readlink("/proc/1/ns/mnt"); err == nil && machine == own {
		b.Skip("it mounts: run it in a mount namespace of its own")
	}
	for _, count := range []int{10, 2000, 20000} {
		b.Run(strconv.Itoa(count), func(b *testing.B) {
			many := mountMany(b, count)
			for _, m := range []struct {
				name    string
				mounter mount.Interface
			}{{"podvol", New(Config{})}, {"mount-utils", k8smount.New("")}} {
				for _, question := range []struct {
					name string
					ask  func() error
				}{
					{"IsMountPoint", isMountPoint(m.mounter, many.volume, true)},
					{"GetMountRefs", refCount(m.mounter, many.refs[0], 2)},
					{"List", listAll(m.mounter, count)},
				} {
					b.Run(question.name+"/"+m.name, func(b *testing.B) {
						for b.Loop() {
							mustDo(b, question.ask())
						}
					})
				}
			}
			b.Run("cold load/podvol", func(b *testing.B) {
				for b.Loop() {
					_, err := mounttable.New(statmount.Host{}).List()
					mustDo(b, err)
				}
			})
		})
	}
}
