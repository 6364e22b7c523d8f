package volumemanager_test

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/util/testenv/figures"
	"github.com/podvol/podvol/util/testenv/loopdev"
	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/util/testenv/testtool"
	"github.com/podvol/podvol/volume/volumemanager"
)

// measurement measures on one directory. Nothing in it is deleted before the end,
// since ext4 is slow for minutes in using freed inodes again.
type measurement struct {
	t        *testing.T
	slack    float64
	asserted bool
	dir      string
	// What a second costs without a manager.
	idleCPU      time.Duration
	idleSwitches int64
}

// TestFigures measures the manager with the fake mounter, its root on a disk
// and its records synced: a file system of its own as root, TMPDIR's otherwise.
//
//	PODVOL_ASSERT_FIGURES=1 go test ./volume/volumemanager -run Figures/root -v
//
// Limits are for the fastest of several rounds.
func TestFigures(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		f := &measurement{t: t, dir: t.TempDir()}
		f.slack, f.asserted = figures.Slack(t)
		if !mountFresh(t, f.dir) {
			f.asserted = false // the disk under TMPDIR may be in any state
		}
		t.Setenv("TMPDIR", f.dir) // where the fake mounter keeps what mounts hide
		f.idleCPU, f.idleSwitches = f.quiet()
		f.single("one NFS volume", 1, nfsVolume("v", "10.0.0.1"))
		f.single("five mixed volumes", 2, mixedVolumes()...)
		f.many()
	})
}

// mountFresh mounts a new ext4 on dir, where the process may.
func mountFresh(t *testing.T, dir string) bool {
	if control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0); err != nil {
		return false
	} else {
		control.Close()
	}
	device := loopdev.New(t, 4<<30)
	testtool.Need(t, "mkfs.ext4")
	if out, err := exec.Command("mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0", device.Path).CombinedOutput(); err != nil {
		t.Fatalf("mkfs.ext4: %v\n%s", err, out)
	}
	if err := unix.Mount(device.Path, dir, "ext4", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return true
}

func (f *measurement) limit(what string, got, limit float64) {
	f.t.Helper()
	f.t.Logf("%-52s %10.4g (limit %v)", what, got, limit)
	if f.asserted && got > limit*f.slack {
		f.t.Errorf("%s: %.4g is more than %v times %v", what, got, f.slack, limit)
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
	f.limit("median set-up of "+what+", in ms", ms(slices.Min(up)), limit)
	f.limit("median tear-down of "+what+", in ms", ms(slices.Min(down)), limit)
}

// many measures pods that are declared all at once.
func (f *measurement) many() {
	few, full, most := 110, 5000, 20000
	if !f.asserted {
		few, full, most = 20, 250, 1000
	}
	var cheap, all, cpu, restarts []time.Duration
	for round := range 3 {
		some := f.addAll(few)
		some.stop()
		cheap = append(cheap, some.cpu)
		crowd := f.addAll(full)
		all, cpu = append(all, crowd.took), append(cpu, crowd.cpu)
		if round == 0 {
			f.idle(full)
			f.memory(crowd)
		}
		crowd.stop()
		restarts = append(restarts, timed(func() { crowd.manager, crowd.stop = crowd.world.start() }))
		if n := len(crowd.manager.Explain()); n != full {
			f.t.Errorf("%d volumes are known after a restart", n)
		}
		crowd.stop()
	}
	f.limit(fmt.Sprintf("%d pods at once, in s, on %d processors", full, runtime.NumCPU()), slices.Min(all).Seconds(), 1)
	// The same where others use the machine as well and time says what they left.
	f.limit(fmt.Sprintf("%d pods at once, processor time of two in s", full), slices.Min(cpu).Seconds()/2, 1)
	f.limit(fmt.Sprintf("restart with %d volumes, in s", full), slices.Min(restarts).Seconds(), 1)
	last := f.addAll(most)
	last.stop()
	f.t.Logf("a pod of %d at once: %v; of %d: %v", full, slices.Min(all)/time.Duration(full), most, last.took/time.Duration(most))
	// Processor time, which is what each of them costs whatever else runs.
	f.limit(fmt.Sprintf("work on one of %d pods, in that on one of %d", most, few),
		float64(last.cpu)/float64(most)/(float64(slices.Min(cheap))/float64(few)), 1.5)
}

// crowd is a manager with many pods.
type crowd struct {
	world     *world
	pods      []*v1.Pod
	manager   *volumemanager.Manager
	stop      func()
	took, cpu time.Duration // until all were mounted
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
	before := usage()
	c.took = timed(func() {
		for _, p := range c.pods {
			mustPass(f.t, c.manager.PutPod(p))
		}
		for _, p := range c.pods {
			mustPass(f.t, c.manager.WaitForMounted(f.t.Context(), p.UID))
		}
	})
	c.cpu = usage().cpu - before.cpu
	return c
}

// idle measures what n mounted volumes cost while nothing changes.
func (f *measurement) idle(n int) {
	f.t.Helper()
	if running := runtime.NumGoroutine(); running > 30 {
		f.t.Errorf("%d goroutines with %d mounted volumes", running, n)
	}
	cpu, switches := f.quiet()
	share := 100 * (cpu - f.idleCPU).Seconds()
	f.t.Logf("%-52s %10.4g (limit 0.01 on a quiet machine)", "idle: share of a core, in %", share)
	// So little is mostly what the neighbours' work makes of one wake-up: where
	// limits are loosened for them, the wake-ups alone say whether anything polls.
	if f.asserted && f.slack == 1 && share > 0.01 {
		f.t.Errorf("idle: %.4g %% of a core is more than 0.01", share)
	}
	f.limit("idle: wake-ups a second", float64(switches-f.idleSwitches), 2)
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

// memory measures what goes with the manager, less the pods that it copied.
func (f *measurement) memory(c *crowd) {
	f.t.Helper()
	with := heap()
	c.stop()
	c.manager = nil
	without := heap()
	copies := make([]*v1.Pod, len(c.pods))
	for i, p := range c.pods {
		copies[i] = p.DeepCopy()
	}
	copied := heap() - without
	runtime.KeepAlive(copies)
	n := uint64(len(c.pods))
	f.t.Logf("a mounted volume and its pod take %d bytes of heap, of which the pod object has %d", (with-without)/n, copied/n)
	f.limit("heap of a mounted volume, in KiB", float64((with-without-copied)/n)/1024, 1.5)
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

func ms(d time.Duration) float64 { return d.Seconds() * 1000 }

func second[T any](_ T, err error) error { return err }

func mustPass(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
