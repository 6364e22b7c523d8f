package csi_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/util/testenv/figures"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/plugins/csi"
	"github.com/podvol/podvol/volume/volumemanager"
	"github.com/podvol/podvol/volume/volumetest/csitest"
)

// crowd is a node with many pods, each with a volume of its own of some driver.
type crowd struct {
	t       *testing.T
	mounter *fakemount.Mounter
	drivers map[string]*csitest.Driver
	sockets map[string]string
	plugin  *csi.Plugin
	manager *volumemanager.Manager
	pods    []*v1.Pod
}

// newCrowd has n pods of each driver.
func newCrowd(t *testing.T, n int, drivers ...string) *crowd {
	t.Helper()
	c := &crowd{t: t, mounter: fakemount.New(), drivers: map[string]*csitest.Driver{}, sockets: map[string]string{}}
	t.Cleanup(func() { c.mounter.Close() })
	dir := csitest.SocketDir(t)
	var all []metav1.Object
	for _, name := range drivers {
		d := csitest.New(csitest.Config{Name: name, Dir: t.TempDir(), Mounter: c.mounter, CreateOnUse: true, Capabilities: csitest.AllCapabilities()})
		c.drivers[name], c.sockets[name] = d, filepath.Join(dir, name)
		c.must(d.Start(c.sockets[name]))
		t.Cleanup(func() {
			c.must(d.Close())
			if broken := d.Violations(); len(broken) > 0 {
				t.Errorf("rules of the specification were broken: %q", broken)
			}
		})
		for i := range n {
			all = append(all, c.claim(fmt.Sprintf("%s-%d", name, i), name)...)
		}
	}
	var err error
	c.plugin, err = csi.New(csi.Config{Drivers: c.sockets, CallTimeout: time.Hour})
	c.must(err)
	store := objects.NewStore()
	c.must(store.Load(t.Context(), 0, all...))
	c.manager, err = volumemanager.New(volumemanager.Config{RootDir: t.TempDir(), NodeName: "node1", Objects: store, SetUpTimeout: time.Hour,
		Plugins: []volume.VolumePlugin{c.plugin}, Mounter: c.mounter})
	c.must(err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.manager.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		c.must(<-done)
		c.plugin.Close()
	})
	return c
}

func (c *crowd) must(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

// claim adds a pod, and returns its claim with a volume.
func (c *crowd) claim(name, driver string) []metav1.Object {
	all := boundClaim()
	for _, o := range all {
		switch o := o.(type) {
		case *v1.PersistentVolume:
			o.Name, o.UID, o.Spec.CSI.Driver, o.Spec.CSI.VolumeHandle = name, types.UID("pv-"+name), driver, name
			o.Spec.ClaimRef.Name, o.Spec.ClaimRef.UID = name, types.UID("claim-"+name)
		case *v1.PersistentVolumeClaim:
			o.Name, o.UID, o.Spec.VolumeName = name, types.UID("claim-"+name), name
		}
	}
	p := claiming()
	p.Name, p.UID = name, types.UID(name)
	p.Spec.Volumes[0].PersistentVolumeClaim.ClaimName = name
	c.pods = append(c.pods, p)
	return all
}

// each does something for pods of a driver at once; "": of all.
func (c *crowd) each(driver string, f func(*v1.Pod) error) error {
	var group sync.WaitGroup
	errs := make([]error, len(c.pods))
	for i, p := range c.pods {
		if strings.HasPrefix(p.Name, driver) {
			group.Go(func() { errs[i] = f(p) })
		}
	}
	group.Wait()
	return errors.Join(errs...)
}

func (c *crowd) setUp(p *v1.Pod) error {
	_, err := c.manager.SetUpPod(c.t.Context(), p)
	return err
}

func (c *crowd) tearDown(p *v1.Pod) error { return c.manager.TearDownPod(c.t.Context(), p.UID) }

// counts are the numbers of a driver's calls by method, and the most of one volume.
func (c *crowd) counts(driver string) (calls, most map[string]int) {
	calls, most = map[string]int{}, map[string]int{}
	ofVolume := map[string]int{}
	for _, call := range c.drivers[driver].Calls() {
		calls[call.Method]++
		key := call.Method + " " + call.Volume
		ofVolume[key]++
		most[call.Method] = max(most[call.Method], ofVolume[key])
	}
	return calls, most
}

// A thousand pods with a volume each cost the driver one call of each kind a volume, and it is
// asked what it can do once. Where figures are not asserted a hundred do.
func TestFiguresOfAThousandVolumes(t *testing.T) {
	_, asserted := figures.Slack(t)
	n := 100
	if asserted {
		n = 1000
	}
	c := newCrowd(t, n, "d")
	begin := time.Now()
	c.must(c.each("d", c.setUp))
	up := time.Since(begin)
	idle := c.idle(asserted)
	begin = time.Now()
	c.must(c.each("d", c.tearDown))
	down := time.Since(begin)
	calls, most := c.counts("d")
	want := map[string]int{"GetPluginInfo": 1, "NodeGetCapabilities": 1, "NodeStageVolume": n, "NodePublishVolume": n, "NodeUnpublishVolume": n, "NodeUnstageVolume": n}
	for method, count := range calls {
		if want[method] != count || count > 1 && most[method] != 1 {
			t.Errorf("%d calls of %s, of one volume at most %d; want %d", count, method, most[method], want[method])
		}
	}
	if len(calls) != len(want) {
		t.Errorf("calls %v, want %v", calls, want)
	}
	bare := c.bare(n)
	each := func(d time.Duration) time.Duration { return d / time.Duration(n) }
	figures.Report(t, figures.Times(fmt.Sprintf("set-up and teardown of one of %d CSI volumes at once", n), figures.Wall, each(up+down), "bare calls", each(bare), 0),
		figures.Row{What: fmt.Sprintf("idle with %d CSI volumes, of a second", n), Unit: figures.CPU, Ours: idle, Limit: 1e-3})
}

// What a volume of many costs, with the driver's part, does not grow with them.
func TestFiguresOfCSIVolumesByNumber(t *testing.T) {
	_, asserted := figures.Slack(t)
	sizes := []int{20, 100}
	if asserted {
		sizes = []int{100, 1000, 10_000}
	}
	figures.InMemory(t)
	curve := figures.Curve{What: "CPU of set-up and teardown of a CSI volume, with the test's driver", Of: "volumes at once", Unit: figures.CPU, Limit: 1.2}
	for _, n := range sizes {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			var all []figures.Taken
			for range max(1, sizes[1]/n) {
				c := newCrowd(t, n, "d")
				all = append(all, figures.Take(t, func() {
					c.must(c.each("d", c.setUp))
					c.must(c.each("d", c.tearDown))
				}))
			}
			slices.SortFunc(all, func(a, b figures.Taken) int { return cmp.Compare(a.CPU, b.CPU) })
			curve.Points = append(curve.Points, figures.Each(n, all[len(all)/2]))
		})
	}
	figures.ReportCurve(t, curve)
}

// idle is the share of a core that this process takes in the quietest of some seconds.
func (c *crowd) idle(asserted bool) float64 {
	c.t.Helper()
	seconds := 1
	if asserted {
		seconds = 5
	}
	least := time.Hour
	for range seconds {
		before := used(c.t)
		time.Sleep(time.Second)
		least = min(least, used(c.t)-before)
	}
	return least.Seconds()
}

// used is the processor time of this process.
func used(t testing.TB) time.Duration {
	t.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// bare makes the calls of n volumes' lives at once, and nothing else.
func (c *crowd) bare(n int) time.Duration {
	c.t.Helper()
	conn, err := csitest.Dial(c.sockets["d"])
	c.must(err)
	defer conn.Close()
	node, dir := spec.NewNodeClient(conn), c.t.TempDir()
	var group sync.WaitGroup
	begin := time.Now()
	for i := range n {
		group.Go(func() { bareLife(c.t, node, filepath.Join(dir, fmt.Sprint(i)), fmt.Sprint("bare-", i)) })
	}
	group.Wait()
	return time.Since(begin)
}

// A driver that hangs delays its own volumes only. Its pods' teardown ends with the caller's
// patience and says why, no thread waits for it, and all is well once it answers.
func TestHundredVolumesOfADriverThatHangs(t *testing.T) {
	const n = 100
	c := newCrowd(t, n, "ill", "well")
	c.must(c.each("", c.setUp)) // takes the threads that disk and mounts need
	c.must(c.each("", c.tearDown))
	c.drivers["ill"].ResetCalls()
	before := threadsOf(t)
	release, hanging := make(chan struct{}), make(chan struct{}, n)
	remove := c.drivers["ill"].Inject(csitest.Fault{Match: csitest.Method("NodePublishVolume"), Hook: func() { hanging <- struct{}{} }, Release: release})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- c.each("ill", func(p *v1.Pod) error {
			_, err := c.manager.SetUpPod(ctx, p)
			if err == nil {
				return fmt.Errorf("%s is set up", p.Name)
			}
			return nil
		})
	}()
	for range n {
		<-hanging
	}
	if told := c.plugin.Drivers()[0]; told.Name != "ill" || len(told.Calls) != n || told.Calls[0].Method != "NodePublishVolume" {
		t.Errorf("the driver has %d calls under way: %+v", len(told.Calls), told)
	}
	c.must(c.each("well", c.setUp))
	c.must(c.each("well", c.tearDown))
	if now := threadsOf(t); now >= before+n {
		t.Errorf("%d threads before, %d now", before, now)
	}
	cancel()
	c.must(<-ended)
	c.must(c.each("ill", func(p *v1.Pod) error {
		err := c.manager.TearDownPod(ctx, p.UID) // without patience
		if !errors.Is(err, context.Canceled) {
			return fmt.Errorf("teardown of %s: %w", p.Name, err)
		}
		return nil
	}))
	rows := 0
	for _, row := range c.manager.Explain() {
		if strings.HasPrefix(row.Pod.Name, "ill-") {
			rows++
		}
	}
	if rows != n {
		t.Errorf("%d volumes are told of", rows)
	}
	remove()
	close(release)
	c.must(c.each("ill", c.tearDown))
	for name, d := range c.drivers {
		if staged, published := d.Staged(), d.Published(); len(staged)+len(published) > 0 {
			t.Errorf("driver %s has staged %v, published %v", name, staged, published)
		}
	}
	if _, most := c.counts("ill"); most["NodePublishVolume"] != 1 || most["NodeStageVolume"] != 1 {
		t.Errorf("calls a volume: %v", most)
	}
}

func threadsOf(t *testing.T) int {
	t.Helper()
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	return len(tasks)
}
