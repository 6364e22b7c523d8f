package attachdetach_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
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
	wall, cpu time.Duration
	calls     float64
}

// TestFiguresOfManyAttachments attaches disks to nodes, fifty to each, with an attacher that
// answers at once.
func TestFiguresOfManyAttachments(t *testing.T) {
	slack, asserted := figures.Slack(t)
	sizes := []int{100, 1000}
	if asserted {
		sizes = append(sizes, 10_000)
	}
	all := make(map[int]measured)
	for _, n := range sizes {
		all[n] = attachMany(t, n)
		t.Logf("%5d disks: %v and %v of CPU time a disk, %.2f calls of the controller", n, all[n].wall, all[n].cpu, all[n].calls)
	}
	if !asserted {
		return
	}
	few, many := all[100], all[10_000]
	if ratio := float64(many.cpu) / float64(few.cpu); ratio > 2*slack {
		t.Errorf("a disk among 10,000 takes %.1f times the CPU time of one among 100", ratio)
	}
	if many.calls > 3*slack {
		t.Errorf("%.2f calls a disk", many.calls)
	}
}

// countedClient counts the controller's calls of the API.
type countedClient struct {
	objects.Client
	calls atomic.Int64
}

func (c *countedClient) Create(ctx context.Context, object metav1.Object) (metav1.Object, error) {
	c.calls.Add(1)
	return c.Client.Create(ctx, object)
}

func (c *countedClient) UpdateStatus(ctx context.Context, object metav1.Object) (metav1.Object, error) {
	c.calls.Add(1)
	return c.Client.UpdateStatus(ctx, object)
}

func attachMany(t *testing.T, n int) measured {
	store := objects.NewStore()
	create := func(o metav1.Object) {
		if _, err := store.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	for i := range (n + disksPerNode - 1) / disksPerNode {
		create(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("n%d", i), Annotations: map[string]string{attachdetach.ManagedAnnotation: "true"}}})
	}
	for i := range n {
		disk := fmt.Sprintf("disk-%05d", i)
		pv := pvbuild.NewPV(disk, "1Gi", pvbuild.ForClaim(disk, types.UID("uid-"+disk)), pvbuild.WithModes(v1.ReadWriteOnce))
		pv.Spec.PersistentVolumeSource = v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: disk}}
		create(pv)
		claim := pvbuild.NewClaim(disk, "1Gi", pvbuild.Naming(disk))
		create(claim)
		claim.Status.Phase = v1.ClaimBound
		if _, err := store.UpdateStatus(t.Context(), claim); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	client := &countedClient{Client: store}
	ended := make(chan error, 1)
	attachAtOnce(ctx, store)
	listed := watchLists(store, n)
	go func() { ended <- attachdetach.New(attachdetach.Config{Objects: client}).Run(ctx) }()
	began, cpu := time.Now(), cpuTime(t)
	for i := range n {
		create(podOn(fmt.Sprintf("p%d", i), fmt.Sprintf("n%d", i/disksPerNode), fmt.Sprintf("disk-%05d", i)))
	}
	select {
	case <-listed:
	case <-time.After(5 * time.Minute):
		t.Fatal("not all disks are attached within five minutes")
	}
	m := measured{wall: time.Since(began) / time.Duration(n), cpu: (cpuTime(t) - cpu) / time.Duration(n), calls: float64(client.calls.Load()) / float64(n)}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	return m
}

// attachAtOnce attaches whatever is to be.
func attachAtOnce(ctx context.Context, store *objects.Store) {
	queue := work.NewQueue(work.Config[volume.ObjectRef]{Reconcile: func(ctx context.Context, ref volume.ObjectRef) work.Result {
		a, err := objects.Get[*storagev1.VolumeAttachment](ctx, store, ref)
		if err != nil || a.Status.Attached {
			return work.Result{}
		}
		next := a.DeepCopy()
		next.Status.Attached = true
		_, err = store.UpdateStatus(ctx, next)
		return work.Result{Reason: err}
	}, Workers: 4})
	store.WatchKind("VolumeAttachment", queue.Enqueue)
	queue.Start(ctx)
}

// watchLists says when the nodes list so many disks. It is asked at the end of each burst of
// changes.
func watchLists(store *objects.Store, n int) <-chan struct{} {
	done, changed := make(chan struct{}), make(chan struct{}, 1)
	store.WatchKind("Node", func(volume.ObjectRef) {
		select {
		case changed <- struct{}{}:
		default:
		}
	})
	go func() {
		defer close(done)
		for range changed {
			listed := 0
			nodes, _ := objects.List[*v1.Node](context.Background(), store, "Node", "") // a store in memory answers
			for _, node := range nodes {
				listed += len(node.Status.VolumesAttached)
			}
			if listed == n {
				return
			}
		}
	}()
	return done
}

func cpuTime(t *testing.T) time.Duration {
	var usage unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &usage); err != nil {
		t.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
