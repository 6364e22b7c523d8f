package volumemanager_test

import (
	"cmp"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/util/testenv/figures"
	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/volume/volumemanager"
)

// measurement measures on one directory. Nothing in it is deleted before the end,
// since ext4 is slow for minutes in using freed inodes again.
type measurement struct {
	t        *testing.T
	slack    float64
	asserted bool
	dir      string
}

// TestFigures measures the manager with the fake mounter, its root on a disk
// and its records synced: a file system of its own as root, TMPDIR's otherwise.
//
//	PODVOL_ASSERT_FIGURES=1 go test ./volume/volumemanager -run Figures/root -v
func TestFigures(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		f := &measurement{t: t, dir: t.TempDir()}
		f.slack, f.asserted = figures.Slack(t)
		if !figures.FreshExt4(t, f.dir) {
			f.asserted = false // the disk under TMPDIR may be in any state
		}
		t.Setenv("TMPDIR", f.dir) // where the fake mounter keeps what mounts hide
		f.single("one NFS volume", 1, nfsVolume("v", "10.0.0.1"))
		f.single("five mixed volumes", 2, mixedVolumes()...)
		f.many()
	})
}

// kubelets are figures of the kubelet's volume manager, measured elsewhere. It polls, so that
// its times by the clock are mostly what it waits.
var kubelets = map[string]float64{
	"set-up of a pod with one NFS volume":       0.301,
	"teardown of a pod with one NFS volume":     0.301,
	"set-up of a pod with five mixed volumes":   0.301,
	"teardown of a pod with five mixed volumes": 0.301,
	"heap of a mounted volume and its pod":      3994,
	"idle with 5000 volumes, of a second":       0.175,
	"5000 pods at once":                         7.2, // on ext4
}

// limit reports a figure. Its limit is told only where the disk is a fresh one.
func (f *measurement) limit(what string, unit figures.Unit, got, limit float64) {
	f.t.Helper()
	if !f.asserted {
		limit = 0
	}
	figures.Report(f.t, figures.Row{What: what, Unit: unit, Ours: got, Limit: limit})
	if theirs, known := kubelets[what]; known && f.asserted {
		figures.Report(f.t, figures.Row{What: what, Unit: unit, Ours: got, Peer: "kubelet elsewhere", Theirs: theirs, Limit: 1})
	}
}

func (f *measurement) world() *world {
	dir, err := os.MkdirTemp(f.dir, "world-")
	if err != nil {
		f.t.Fatal(err)
	}
	w := newWorldIn(f.t, dir)
	w.add(&v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ops-test", Name: "settings"}, Data: map[string]string{"a": "1", "b": "2"}},
		&v1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ops-test", Name: "password"}, Data: map[string][]byte{"password": []byte("x")}})
	return w
}

func mixedVolumes() []v1.Volume {
	return []v1.Volume{
		nfsVolume("share", "10.0.0.1"), emptyDirVolume("scratch", v1.StorageMediumDefault), emptyDirVolume("memory", v1.StorageMediumMemory),
		{Name: "settings", VolumeSource: v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: v1.LocalObjectReference{Name: "settings"}}}},
		{Name: "password", VolumeSource: v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "password"}}},
	}
}

// single measures pods that come and go one after the other.
func (f *measurement) single(what string, limit float64, volumes ...v1.Volume) {
	f.t.Helper()
	manager, stop := f.world().start()
	defer stop()
	const rounds, n = 5, 40
	up, down := make([]time.Duration, rounds), make([]time.Duration, rounds)
	for round := range rounds {
		var ups, downs []time.Duration
		for i := range n {
			pod := newPod(fmt.Sprintf("p%d-%d", round, i), volumes...)
			ups = append(ups, timed(func() { mustPass(f.t, second(manager.SetUpPod(f.t.Context(), pod))) }))
			if i >= n/2 { // the others stay, so that no freed inode is used again
				downs = append(downs, timed(func() { mustPass(f.t, manager.TearDownPod(f.t.Context(), pod.UID)) }))
			}
		}
		up[round], down[round] = median(ups), median(downs)
	}
	f.limit("set-up of a pod with "+what, figures.Wall, median(up).Seconds(), limit/1000)
	f.limit("teardown of a pod with "+what, figures.Wall, median(down).Seconds(), limit/1000)
}

// many measures pods that are declared all at once.
func (f *measurement) many() {
	few, full, most := 110, 5000, 20000
	if !f.asserted {
		few, full, most = 20, 250, 1000
	}
	var cheap, all []figures.Taken
	var restarts []time.Duration
	bare := make(map[int][]figures.Taken)
	for round := range 3 {
		some := f.addAll(few)
		some.stop()
		cheap = append(cheap, some.Taken)
		crowd := f.addAll(full)
		all = append(all, crowd.Taken)
		if round == 0 {
			f.idle(crowd)
		}
		restarts = append(restarts, crowd.restart())
		bare[few], bare[full] = append(bare[few], f.directories(few)), append(bare[full], f.directories(full))
	}
	slices.SortFunc(all, func(a, b figures.Taken) int { return cmp.Compare(a.Wall, b.Wall) })
	f.limit(fmt.Sprintf("%d pods at once", full), figures.Wall, all[len(all)/2].Wall.Seconds(), 1)
	slices.SortFunc(cheap, byCPU)
	slices.SortFunc(all, byCPU)
	// The same where others use the machine as well and time says what they left.
	f.limit(fmt.Sprintf("CPU of %d pods at once", full), figures.CPU, all[len(all)/2].CPU.Seconds(), 2)
	f.limit(fmt.Sprintf("restart with %d volumes", full), figures.Wall, median(restarts).Seconds(), 1)
	last := f.addAll(most)
	bare[most] = append(bare[most], f.directories(most))
	f.limit(fmt.Sprintf("restart with %d volumes", most), figures.Wall, last.restart().Seconds(), 1)
	// Processor time, which is what each of them costs whatever else runs.
	curve := figures.Curve{What: "CPU of set-up of a pod with an NFS volume, on the fake mounter", Of: "pods at once", Unit: figures.CPU}
	curve.Points = []figures.Point{figures.Each(few, cheap[len(cheap)/2]), figures.Each(full, all[len(all)/2]), figures.Each(most, last.Taken)}
	f.reportGrowth(curve, bare)
}

// directories measures the bare calls that make n such pods' directories on the same disk.
func (f *measurement) directories(n int) figures.Taken {
	f.t.Helper()
	root, err := os.MkdirTemp(f.dir, "bare-")
	mustPass(f.t, err)
	return figures.Take(f.t, func() { makeDirectories(f.t, root, n) })
}

// reportGrowth tells what a set-up costs by the number of pods, and what the bare calls do: a
// larger directory of ext4 costs more of each, which is the kernel's, so that only what set-ups
// grow beyond them has a limit.
func (f *measurement) reportGrowth(setUp figures.Curve, bare map[int][]figures.Taken) {
	f.t.Helper()
	calls := figures.Curve{What: "CPU of the bare calls that make such a pod's directories", Of: setUp.Of, Unit: figures.CPU}
	part := figures.Curve{What: setUp.What + ", as a part of those bare calls", Of: setUp.Of}
	if f.asserted {
		part.Limit = 1.1
	}
	for _, p := range setUp.Points {
		taken := bare[int(p.X)]
		slices.SortFunc(taken, byCPU)
		calls.Points = append(calls.Points, figures.Each(int(p.X), taken[len(taken)/2]))
		part.Points = append(part.Points, figures.Point{X: p.X, Y: p.Y / calls.Points[len(calls.Points)-1].Y})
	}
	for _, c := range []figures.Curve{setUp, calls, part} {
		figures.ReportCurve(f.t, c)
	}
}

func byCPU(a, b figures.Taken) int { return cmp.Compare(a.CPU, b.CPU) }

// crowd is a manager with many pods.
type crowd struct {
	world         *world
	pods          []*v1.Pod
	manager       *volumemanager.Manager
	stop          func()
	figures.Taken // until all were mounted
}

// restart ends the manager, measures the start of another that finds the same volumes, and ends that.
func (c *crowd) restart() time.Duration {
	c.world.t.Helper()
	c.stop()
	took := timed(func() { c.manager, c.stop = c.world.start() })
	if n := len(c.manager.Explain()); n != len(c.pods) {
		c.world.t.Errorf("%d volumes of %d are known after a restart", n, len(c.pods))
	}
	c.stop()
	return took
}

// addAll declares n pods with an NFS volume each and waits for all.
func (f *measurement) addAll(n int) *crowd {
	f.t.Helper()
	c := &crowd{world: f.world()}
	c.manager, c.stop = c.world.start()
	for i := range n {
		c.pods = append(c.pods, newPod(fmt.Sprintf("p%d", i), nfsVolume("v", "10.0.0.1")))
	}
	runtime.GC()
	c.Taken = figures.Take(f.t, func() {
		for _, p := range c.pods {
			mustPass(f.t, c.manager.PutPod(p))
		}
		for _, p := range c.pods {
			mustPass(f.t, c.manager.WaitForMounted(f.t.Context(), p.UID))
		}
	})
	return c
}

// idle measures what mounted volumes cost while nothing changes, and ends their manager: the
// process costs by itself, and the more, the more threads it has ever had.
func (f *measurement) idle(c *crowd) {
	f.t.Helper()
	n := len(c.pods)
	if running := runtime.NumGoroutine(); running > 30 {
		f.t.Errorf("%d goroutines with %d mounted volumes", running, n)
	}
	cpu, switches := f.quiet()
	f.memory(c)
	without, others := f.quiet()
	// So little is mostly what the neighbours' work makes of one wake-up: where
	// limits are loosened for them, the wake-ups alone say whether anything polls.
	quiet := 0.0
	if f.slack == 1 || figures.Recording() {
		quiet = 0.0001
	}
	f.limit(fmt.Sprintf("idle with %d volumes, of a second", n), figures.CPU, max(0, (cpu-without).Seconds()), quiet)
	f.limit(fmt.Sprintf("wake-ups a second, idle with %d volumes", n), figures.Count, float64(switches-others), 2)
}

// quiet is what this process uses in the quietest of some seconds: the runtime
// stirs now and then, and what polls does so in each of them.
func (f *measurement) quiet() (cpu time.Duration, switches int64) {
	debug.FreeOSMemory() // what the runtime would do behind our back for a while
	seconds := 1
	if f.asserted {
		seconds = 10
	}
	cpu, switches = time.Hour, 1<<62
	for range seconds {
		before := usage()
		time.Sleep(time.Second)
		after := usage()
		cpu, switches = min(cpu, after.cpu-before.cpu), min(switches, after.switches-before.switches)
	}
	return cpu, switches
}

// memory measures what goes with the manager, its copies of the pods included.
func (f *measurement) memory(c *crowd) {
	f.t.Helper()
	with := heap()
	c.stop()
	c.manager = nil
	without := heap()
	runtime.KeepAlive(c.pods)
	f.limit("heap of a mounted volume and its pod", figures.Bytes, float64(with-without)/float64(len(c.pods)), 3000)
}

func heap() uint64 {
	runtime.GC()
	runtime.GC() // what finalizers and pools held
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}

// used is what this process has used so far.
type used struct {
	cpu      time.Duration
	switches int64 // voluntary context switches
}

func usage() used {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return used{time.Duration(u.Utime.Nano() + u.Stime.Nano()), u.Nvcsw}
}

func timed(f func()) time.Duration {
	start := time.Now()
	f()
	return time.Since(start)
}

func median(d []time.Duration) time.Duration {
	slices.Sort(d)
	return d[len(d)/2]
}

func second[T any](_ T, err error) error { return err }

func mustPass(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
