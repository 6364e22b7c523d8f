package attachdetach_test

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/util/testenv/figures"
	"github.com/podvol/podvol/util/testenv/pvbuild"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/attachdetach"
	"github.com/podvol/podvol/volume/internal/work"
	"github.com/podvol/podvol/volume/objects"
)

const disksPerNode = 50

// measured is what it took to attach many disks, each.
type measured struct {
	figures.Taken
	calls float64
}

// TestFiguresOfManyAttachments attaches disks to nodes, fifty to each, with an attacher that
// answers at once.
func TestFiguresOfManyAttachments(t *testing.T) {
	_, asserted := figures.Slack(t)
	sizes := []int{100, 1000}
	if asserted {
		sizes = append(sizes, 10_000)
	}
	curve := figures.Curve{What: "CPU of the controller for a disk that it attaches", Of: "disks, fifty a node", Unit: figures.CPU, Limit: 1.2}
	requests := figures.Curve{What: "requests of the controller for a disk that it attaches", Of: "disks, fifty a node", Unit: figures.Count, Limit: 1.2}
	for _, n := range sizes {
		var all []measured
		for range min(5, max(1, 1000/n)) {
			all = append(all, attachMany(t, n))
		}
		slices.SortFunc(all, func(a, b measured) int { return cmp.Compare(a.CPU, b.CPU) })
		m := all[len(all)/2]
		t.Logf("%5d disks: %v and %v of CPU time a disk, %.2f requests of the controller", n, m.Wall/time.Duration(n), m.CPU/time.Duration(n), m.calls)
		curve.Points = append(curve.Points, figures.Each(n, m.Taken))
		requests.Points = append(requests.Points, figures.Point{X: float64(n), Y: m.calls})
	}
	figures.ReportCurve(t, curve)
	figures.ReportCurve(t, requests)
}

// countedClient counts what the controller asks of the API itself.
type countedClient struct {
	objects.Client
	creates, statuses, others, gets, lists atomic.Int64
}

func (c *countedClient) Create(ctx context.Context, object metav1.Object) (metav1.Object, error) {
	c.creates.Add(1)
	return objects.Sharing(c.Client).Create(ctx, object)
}

func (c *countedClient) UpdateStatus(ctx context.Context, object metav1.Object) (metav1.Object, error) {
	c.statuses.Add(1)
	return objects.Sharing(c.Client).UpdateStatus(ctx, object)
}

func (c *countedClient) Update(ctx context.Context, object metav1.Object) (metav1.Object, error) {
	c.others.Add(1)
	return c.Client.Update(ctx, object)
}

func (c *countedClient) Delete(ctx context.Context, ref volume.ObjectRef, preconditions objects.Preconditions) error {
	c.others.Add(1)
	return c.Client.Delete(ctx, ref, preconditions)
}

// Live implements [objects.Cached]: what is not asked of it a cache would answer.
func (c *countedClient) Live() objects.Reader { return countedReader{c} }

type countedReader struct{ *countedClient }

func (r countedReader) Get(ctx context.Context, ref volume.ObjectRef) (metav1.Object, error) {
	r.gets.Add(1)
	return r.Client.Get(ctx, ref)
}

func (r countedReader) List(ctx context.Context, kind, namespace string) ([]metav1.Object, error) {
	r.lists.Add(1)
	return r.Client.List(ctx, kind, namespace)
}

// check wants one creation a disk, at most one report to its node, and no question but for the
// nodes and the attachments at the start.
func (c *countedClient) check(t *testing.T, n int64) (requests float64) {
	t.Helper()
	creates, statuses, others, gets, lists := c.creates.Load(), c.statuses.Load(), c.others.Load(), c.gets.Load(), c.lists.Load()
	if creates != n || statuses > n || others > 0 || gets > 0 || lists != 2 {
		t.Errorf("%d disks took %d creations, %d updates of a status, %d other writes, %d GETs and %d lists", n, creates, statuses, others, gets, lists)
	}
	return float64(creates+statuses+others+gets+lists) / float64(n)
}

// populate makes nodes, and disks with their PersistentVolumes and claims.
func populate(t *testing.T, store *objects.Store, nodes, disks int) {
	t.Helper()
	for i := range nodes {
		createIn(t, store, &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("n%d", i), Annotations: map[string]string{attachdetach.ManagedAnnotation: "true"}}})
	}
	for i := range disks {
		disk := diskName(i)
		pv := pvbuild.NewPV(disk, "1Gi", pvbuild.ForClaim(disk, types.UID("uid-"+disk)), pvbuild.WithModes(v1.ReadWriteOnce))
		pv.Spec.PersistentVolumeSource = v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: disk}}
		createIn(t, store, pv)
		claim := pvbuild.NewClaim(disk, "1Gi", pvbuild.Naming(disk))
		createIn(t, store, claim)
		claim.Status.Phase = v1.ClaimBound
		if _, err := store.UpdateStatus(t.Context(), claim); err != nil {
			t.Fatal(err)
		}
	}
}

func diskName(i int) string { return fmt.Sprintf("disk-%05d", i) }

func createIn(t *testing.T, store *objects.Store, o metav1.Object) {
	t.Helper()
	if _, err := objects.Sharing(store).Create(t.Context(), o); err != nil {
		t.Fatal(err)
	}
}

// control runs a controller, and an attacher that answers at once, until the test ends or stop
// is called.
func control(t *testing.T, store *objects.Store, client objects.Client) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	attachAtOnce(ctx, store)
	go func() { ended <- attachdetach.New(attachdetach.Config{Objects: client}).Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return stop
}

func attachMany(t *testing.T, n int) measured {
	store := objects.NewStore()
	populate(t, store, (n+disksPerNode-1)/disksPerNode, n)
	client := &countedClient{Client: store}
	listed := watchLists(store, "", n)
	stop := control(t, store, client)
	m := measured{Taken: figures.Take(t, func() {
		for i := range n {
			createIn(t, store, podOn(fmt.Sprintf("p%d", i), fmt.Sprintf("n%d", i/disksPerNode), diskName(i)))
		}
		await(t, listed)
	})}
	stop()
	m.calls = client.check(t, int64(n))
	return m
}

func await(t *testing.T, listed <-chan struct{}) {
	t.Helper()
	select {
	case <-listed:
	case <-time.After(5 * time.Minute):
		t.Fatal("the nodes do not list the disks within five minutes")
	}
}

// TestFiguresOfAFailover switches a node off that has fifty disks, and says so with the taint: the
// other node has them in less than a second.
func TestFiguresOfAFailover(t *testing.T) {
	store := objects.NewStore()
	populate(t, store, 2, disksPerNode)
	control(t, store, store)
	for i := range disksPerNode {
		createIn(t, store, podOn(fmt.Sprintf("p%d", i), "n0", diskName(i)))
	}
	await(t, watchLists(store, "n0", disksPerNode))
	for i := range disksPerNode {
		if err := store.Delete(t.Context(), volume.NewObjectRef("Pod", "ops", fmt.Sprintf("p%d", i)), noPreconditions); err != nil {
			t.Fatal(err)
		}
		createIn(t, store, podOn(fmt.Sprintf("q%d", i), "n1", diskName(i)))
	}
	w := &world{t: t, store: store}
	w.setReady("n0", false)
	moved := watchLists(store, "n1", disksPerNode)
	began := time.Now()
	w.fence("n0")
	await(t, moved)
	figures.Report(t, figures.Row{What: fmt.Sprintf("%d disks are attached to another node, from the taint on", disksPerNode), Unit: figures.Wall, Ours: time.Since(began).Seconds(), Limit: 1})
}

// attachAtOnce attaches whatever is to be.
func attachAtOnce(ctx context.Context, store *objects.Store) {
	queue := work.NewQueue(work.Config[volume.ObjectRef]{Reconcile: func(ctx context.Context, ref volume.ObjectRef) work.Result {
		a, err := objects.Get[*storagev1.VolumeAttachment](ctx, store, ref)
		if err != nil || a.Status.Attached {
			return work.Result{}
		}
		next := *a
		next.Status.Attached = true
		_, err = objects.Sharing(store).UpdateStatus(ctx, &next)
		return work.Result{Reason: err}
	}, Workers: 4})
	store.WatchKind("VolumeAttachment", queue.Enqueue)
	queue.Start(ctx)
}

// watchLists says when a node lists so many disks, or all nodes do where it names none. It is
// asked at the end of each burst of changes.
func watchLists(store *objects.Store, name string, n int) <-chan struct{} {
	done, changed := make(chan struct{}), make(chan struct{}, 1)
	wake := func(volume.ObjectRef) {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	store.WatchKind("Node", wake)
	wake(volume.ObjectRef{}) // it may be so already
	go func() {
		defer close(done)
		for range changed {
			listed := 0
			nodes, _ := objects.List[*v1.Node](context.Background(), store, "Node", "") // a store in memory answers
			for _, node := range nodes {
				if name == "" || node.Name == name {
					listed += len(node.Status.VolumesAttached)
				}
			}
			if listed == n {
				return
			}
		}
	}()
	return done
}
