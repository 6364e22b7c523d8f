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

// onKernel is the host's mounter with a table of its own, on a kernel that may be poor.
func onKernel(kernel statmount.Kernel) *Mounter {
	m := New(Config{})
	m.index = mounttable.New(kernel)
	m.table = m.index
	return m
}

// withoutEvents is a kernel without events of mounts, as before 6.15 and for users without
// privileges.
type withoutEvents struct{ statmount.Host }

func (withoutEvents) Watch() (*os.File, error) { return nil, unix.EINVAL }

// tableCurves are what one answer costs, by the number of mounts.
type tableCurves struct{ list, look, refs []figures.Point }

// TestTableFigures measures the questions beside those of mount-utils, in turn
// and on the same tables:
//
//	PODVOL_ASSERT_FIGURES=1 go test ./mount/host -run TableFigures -v
func TestTableFigures(t *testing.T) {
	_, asserted := figures.Slack(t)
	// An ordinary user has no events of mounts: that kernel is measured apart.
	nstest.RunAs(t, []nstest.Mode{nstest.Root}, func(t *testing.T) {
		counts, rounds := []int{10, 200}, 3
		if asserted || testing.Verbose() {
			counts, rounds = []int{10, 2000, 20_000, 50_000}, 7
		}
		var curves tableCurves
		for _, count := range counts {
			t.Run(strconv.Itoa(count), func(t *testing.T) { curves.measure(t, count, rounds) })
		}
		figures.ReportCurve(t, figures.Curve{What: "List after a change, of a mount", Of: "mounts", Unit: figures.CPU, Points: curves.list, Limit: 1.2})
		figures.ReportCurve(t, figures.Curve{What: "IsMountPoint", Of: "mounts", Unit: figures.CPU, Points: curves.look, Limit: 1.2})
		figures.ReportCurve(t, figures.Curve{What: "GetMountRefs, of a hit", Of: "mounts", Unit: figures.CPU, Points: curves.refs, Limit: 1.2})
	})
}

func (c *tableCurves) measure(t *testing.T, count, rounds int) {
	many := mountMany(t, count)
	own, utils := New(Config{}), k8smount.New("")
	const peer = "mount-utils"
	repeat := func(n int, f func() error) func() {
		return func() {
			for range n {
				mustDo(t, f())
			}
		}
	}
	change := func() {
		mustDo(t, unix.Mount(many.bound, many.unmounted, "", unix.MS_BIND, ""))
		mustDo(t, unix.Unmount(many.unmounted, 0))
	}
	changed := func(name string, m mount.Interface) figures.Way {
		return figures.Way{Name: name, Prepare: change, Run: repeat(1, listAll(m, count))}
	}
	cold := func(name string, kernel statmount.Kernel) figures.Way {
		return figures.Way{Name: name, Run: func() { mustDo(t, listAll(onKernel(kernel), count)()) }}
	}
	const looks, hits = 2000, 2
	ways := []figures.Way{
		changed("changed", own), changed(peer, utils),
		changed("changed, no events", onKernel(withoutEvents{})), changed("changed, no listmount", onKernel(withoutList{})),
		cold("cold", statmount.Host{}), cold("cold, no listmount", withoutList{}),
		{Name: "look", Run: repeat(looks, isMountPoint(own, many.volume, true))},
		{Name: "look by " + peer, Run: repeat(looks, isMountPoint(utils, many.volume, true))},
		{Name: "refs", Run: repeat(looks, refCount(own, many.refs[0], hits))},
		{Name: "refs by " + peer, Run: repeat(1, refCount(utils, many.refs[0], hits))},
	}
	if count > 20_000 {
		ways = slices.DeleteFunc(ways, func(w figures.Way) bool { return !slices.Contains([]string{"changed", "look", "refs"}, w.Name) })
	}
	took := figures.InTurn(t, rounds, ways...)
	each := func(name string, n int) float64 { return took[name].Median.CPU.Seconds() / float64(n) }
	c.list = append(c.list, figures.Point{X: float64(count), Y: each("changed", count)})
	c.look = append(c.look, figures.Point{X: float64(count), Y: each("look", looks)})
	c.refs = append(c.refs, figures.Point{X: float64(count), Y: each("refs", looks*hits)})
	if count > 20_000 {
		return
	}
	row := func(what, way string, n int, than string, m int, limit float64) {
		ours, theirs := took[way], took[than]
		r := figures.Times(fmt.Sprintf("%s, %d mounts", what, count), figures.CPU, ours.Median.CPU/time.Duration(n), peer, theirs.Median.CPU/time.Duration(m), limit)
		r.Fastest = ours.Fastest.CPU.Seconds() / float64(n) / (theirs.Fastest.CPU.Seconds() / float64(m))
		figures.Report(t, r)
	}
	row("IsMountPoint", "look", looks, "look by "+peer, looks, 1)
	row("GetMountRefs", "refs", looks, "refs by "+peer, 1, 0.5)
	if count < 2000 {
		return
	}
	row("List after a change", "changed", 1, peer, 1, 1)
	row("List after a change without events of mounts", "changed, no events", 1, peer, 1, 1.7)
	row("List after a change without listmount", "changed, no listmount", 1, peer, 1, 1.7)
	row("the first List", "cold", 1, peer, 1, 70./42)
	row("the first List without listmount", "cold, no listmount", 1, peer, 1, 1.7)
	if count < 20_000 {
		return // two threads do not pay
	}
	clock := func(what, way string, limit float64) {
		r := figures.Times(fmt.Sprintf("%s, %d mounts", what, count), figures.Wall, took[way].Median.Wall, peer, took[peer].Median.Wall, limit)
		r.Fastest = took[way].Fastest.Wall.Seconds() / took[peer].Fastest.Wall.Seconds()
		figures.Report(t, r)
	}
	clock("List after a change", "changed", 40./42)
	clock("the first List", "cold", 45./42)
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
