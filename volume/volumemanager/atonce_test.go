package volumemanager_test

import (
	"context"
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/util/testenv/figures"
	"github.com/podvol/podvol/util/testenv/mounttest"
	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/volume/volumemanager"
)

// TestPodsAtOnceFigures has pods with an NFS volume each declared all at once, and deleted all at
// once, with a mounter that costs nothing, so that what is left is the manager's own:
//
//	PODVOL_ASSERT_FIGURES=1 go test ./volume/volumemanager -run PodsAtOnceFigures -v -p 1
//
// On ext4 it has beside it what the same takes on tmpfs, and the bare calls that make and remove
// the pods' directories there.
func TestPodsAtOnceFigures(t *testing.T) {
	nstest.RunAs(t, []nstest.Mode{nstest.Root}, func(t *testing.T) {
		memory, disk := t.TempDir(), t.TempDir()
		mounttest.MountTmpfs(t, memory)
		if !figures.FreshExt4(t, disk) {
			t.Fatal("there are no loop devices")
		}
		few, full, most, rounds := 11, 100, 200, 1
		if _, asserted := figures.Slack(t); asserted || figures.Recording() {
			few, full, most, rounds = 110, 5000, 20000, 3
		}
		c := crowds{t: t}
		var ways []figures.Way
		for _, n := range []int{few, full, most} {
			ways = append(ways, c.ways("tmpfs", memory, n, full)...)
		}
		ways = append(ways, c.ways("ext4", disk, full, full)...)
		ways = append(ways, c.directories(disk, full)...)
		c.took = figures.InTurn(t, rounds, ways...)
		c.end()
		t.Setenv("TMPDIR", memory)
		c.report(few, full, most)
		t.Setenv("TMPDIR", disk)
		c.reportDisk(full)
	})
}

// crowds are managers with many pods, one after the other.
type crowds struct {
	t    *testing.T
	end  func() // of the manager that runs; nil: none does
	took map[string]figures.Measured
	made int
}

func (c *crowds) fresh(dir string) string {
	c.made++
	return filepath.Join(dir, fmt.Sprint(c.made))
}

// ways are to set n pods up and tear them down. So many managers follow one another that they
// have a fifth of the most pods together, since a round of few is over too soon.
func (c *crowds) ways(where, dir string, n, most int) []figures.Way {
	times := max(most/n/5, 1)
	var worlds []*world
	var managers []*volumemanager.Manager
	pods := make([]*v1.Pod, n)
	for i := range pods {
		pods[i] = newPod(fmt.Sprintf("p%d", i), nfsVolume("v", "10.0.0.1"))
	}
	begin := func() {
		if c.end != nil {
			c.end()
		}
		worlds, managers = nil, nil
		var stops []func()
		for range times {
			w := newWorldIn(c.t, c.fresh(dir))
			w.mounter, w.containers = newQuickMounter(), noContainers{}
			m, stop := w.start()
			worlds, managers, stops = append(worlds, w), append(managers, m), append(stops, stop)
		}
		c.end = func() {
			for _, stop := range stops {
				stop()
			}
		}
		runtime.GC()
	}
	each := func(f func(testing.TB, *volumemanager.Manager, []*v1.Pod)) func() {
		return func() {
			for _, m := range managers {
				f(c.t, m, pods)
			}
		}
	}
	return []figures.Way{{Name: up(where, n), Prepare: begin, Run: each(setUpAll)}, {Name: down(where, n), Run: each(deleteAll)}}
}

func up(where string, n int) string   { return fmt.Sprintf("up, %s, %d", where, n) }
func down(where string, n int) string { return fmt.Sprintf("down, %s, %d", where, n) }

// directories are the calls that make and remove n pods' directories.
func (c *crowds) directories(dir string, n int) []figures.Way {
	var root string
	return []figures.Way{
		{Name: "mkdir", Prepare: func() { root = c.fresh(dir); must(c.t, mkdir(root)) }, Run: func() { makeDirectories(c.t, root, n) }},
		{Name: "rmdir", Run: func() {
			for i := range n {
				for _, d := range slices.Backward(directoriesOf(root, i)) {
					must(c.t, unix.Rmdir(d))
				}
			}
		}},
	}
}

func mkdir(path string) error { return unix.Mkdir(path, 0o750) }

// makeDirectories makes n pods' directories.
func makeDirectories(t *testing.T, root string, n int) {
	for i := range n {
		for _, d := range directoriesOf(root, i) {
			must(t, mkdir(d))
		}
	}
}

// directoriesOf are those of a pod with an NFS volume.
func directoriesOf(root string, i int) []string {
	pod := filepath.Join(root, fmt.Sprint("uid-p", i))
	return []string{pod, filepath.Join(pod, "volumes"), filepath.Join(pod, "volumes/kubernetes.io~nfs"), filepath.Join(pod, "volumes/kubernetes.io~nfs/v")}
}

// report tells of the pods on tmpfs.
func (c *crowds) report(few, full, most int) {
	atOnce := c.took[up("tmpfs", full)]
	figures.Report(c.t, figures.Row{What: fmt.Sprintf("%d pods at once", full), Unit: figures.Wall,
		Ours: atOnce.Median.Wall.Seconds(), Fastest: atOnce.Fastest.Wall.Seconds(), Limit: 0.5})
	for what, way := range map[string]func(string, int) string{"set-up of a pod": up, "tear-down of a pod": down} {
		curve := figures.Curve{What: what, Of: "pods at once", Unit: figures.CPU, Limit: 1.1}
		for _, n := range []int{few, full, most} {
			point := figures.Each(n*max(full/n/5, 1), c.took[way("tmpfs", n)].Median)
			point.X = float64(n)
			curve.Points = append(curve.Points, point)
		}
		figures.ReportCurve(c.t, curve)
	}
}

// reportDisk tells of the pods on ext4.
func (c *crowds) reportDisk(n int) {
	for _, r := range []struct {
		what, calls string
		way         func(string, int) string
	}{{"set-up", "mkdir", up}, {"tear-down", "rmdir", down}} {
		ours, memory, calls := c.took[r.way("ext4", n)], c.took[r.way("tmpfs", n)], c.took[r.calls]
		row := figures.Times(fmt.Sprintf("%s of %d pods at once", r.what, n), figures.CPU, ours.Median.CPU, "tmpfs and bare "+r.calls, memory.Median.CPU+calls.Median.CPU, 1.5)
		row.Fastest = ours.Fastest.CPU.Seconds() / (memory.Fastest.CPU + calls.Fastest.CPU).Seconds()
		figures.Report(c.t, row)
	}
}

// deleteAll deletes pods whose containers are gone, and waits for all.
func deleteAll(tb testing.TB, manager *volumemanager.Manager, pods []*v1.Pod) {
	tb.Helper()
	for _, p := range pods {
		manager.DeletePod(p.UID)
	}
	for _, p := range pods {
		if err := manager.WaitForUnmounted(tb.Context(), p.UID); err != nil {
			tb.Fatal(err)
		}
	}
}

// noContainers is the role of a node on which no container runs.
type noContainers struct{}

func (noContainers) ContainersGone(context.Context, types.UID) (bool, error) { return true, nil }
func (noContainers) WatchContainers(func(types.UID)) (stop func())           { return func() {} }

// quickMounter mounts in a map, which is its table, and nowhere else. It has no other method of
// mount.Interface than its callers need.
type quickMounter struct {
	mount.Interface
	mu     sync.Mutex
	mounts map[string]mount.Entry
	last   int
}

func newQuickMounter() *quickMounter { return &quickMounter{mounts: make(map[string]mount.Entry)} }

func (m *quickMounter) MountContext(_ context.Context, r mount.Request) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.last++
	m.mounts[r.Target] = mount.Entry{ID: m.last, Root: "/", Target: r.Target, Source: r.Source, FSType: r.FSType, Options: r.Options}
	return nil
}

func (m *quickMounter) UnmountContext(_ context.Context, target string, _ mount.UnmountOptions) (mount.Rung, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.mounts, target)
	return mount.RungNormal, nil
}

func (m *quickMounter) Table() mount.Table { return m }

func (m *quickMounter) At(path string) (mount.Entry, bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e, ok := m.mounts[path]
	return e, ok, nil
}

func (m *quickMounter) All() (all []mount.Entry, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, e := range m.mounts {
		all = append(all, e)
	}
	return all, nil
}

func (m *quickMounter) BySource(string) ([]mount.Entry, error)    { return m.All() }
func (m *quickMounter) ByDevice(uint64) ([]mount.Entry, error)    { return m.All() }
func (m *quickMounter) Subscribe(context.Context) <-chan struct{} { return nil }
