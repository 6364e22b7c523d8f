package volumetest

import (
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/volumesource"
)

// concurrencyChecks say most under the race detector.
func concurrencyChecks() []check {
	return []check{
		{
			name:   "concurrency/pods",
			proves: "A plugin is used from several goroutines at a time: several pods set up and tear down volumes of one source at once. Calls for one volume of one pod never overlap: the caller makes them one after the other.",
			each: func(k *kit, c Case) {
				checkAtOnce(k, c, func(n *Node, i int) *podVolume { return n.volume(fmt.Sprintf("pod%d", i)) })
			},
		},
		{
			name:   "concurrency/volumes",
			proves: "A plugin is used from several goroutines at a time: several volumes of one pod are set up and torn down at once.",
			each: func(k *kit, c Case) {
				checkAtOnce(k, c, func(n *Node, i int) *podVolume {
					spec := n.named(fmt.Sprintf("vol%d", i))
					return n.volumeOf(spec, n.pod("a", spec))
				})
			},
		},
		{
			name:   "concurrency/questions",
			proves: "A plugin answers questions while its volumes are set up and torn down.",
			each:   checkQuestions,
		},
	}
}

const workers = 4

func checkAtOnce(k *kit, c Case, volumeFor func(*Node, int) *podVolume) {
	n := k.node(c)
	var group sync.WaitGroup
	for i := range workers {
		v := volumeFor(n, i)
		group.Go(func() {
			defer k.Catch()
			for range 2 {
				if err := v.SetUpWithDevice(k.Context()); err != nil {
					k.Errorf("SetUp at once with others: %v", err)
					return
				}
				v.assertShown()
				if err := v.TearDownWithDevice(k.Context()); err != nil {
					k.Errorf("TearDown at once with others: %v", err)
				}
			}
		})
	}
	group.Wait()
	n.AssertTornDown(k)
}

func checkQuestions(k *kit, c Case) {
	n := k.node(c)
	v := n.volume("a")
	done := make(chan struct{})
	var group sync.WaitGroup
	for range workers {
		group.Go(func() {
			defer k.Catch()
			for {
				n.ask(k, v)
				select {
				case <-done:
					return
				default:
				}
			}
		})
	}
	var err error
	for range 3 {
		err = errors.Join(err, v.SetUpWithDevice(k.Context()))
		// Measuring keeps a file system busy for a moment.
		if tearDownErr := v.TearDownWithDevice(k.Context()); !errors.Is(tearDownErr, mount.ErrBusy) {
			err = errors.Join(err, tearDownErr)
		}
	}
	close(done)
	group.Wait()
	if err != nil {
		k.Fatalf("SetUp and TearDown while questions are asked: %v", err)
	}
	v.MustTearDown()
	n.AssertTornDown(k)
}

// ask asks everything of the plugin that may be asked at any time. The answers
// depend on the moment.
func (n *Node) ask(t testing.TB, v *podVolume) {
	n.sim.Plugin.CanSupport(v.Spec)
	if _, err := n.sim.Plugin.GetVolumeName(v.Spec); err != nil {
		t.Errorf("GetVolumeName: %v", err)
	}
	if _, err := n.sim.Plugin.NewMounter(v.Spec, v.Pod); err != nil {
		t.Errorf("NewMounter: %v", err)
	}
	if _, err := n.sim.Plugin.ConstructVolumeSpec(t.Context(), v.Spec.Name(), v.GetPath()); err != nil {
		t.Errorf("ConstructVolumeSpec: %v", err)
	}
	v.GetAttributes()
	volume.RefreshAfter(v.Mounter)
	volumesource.Describe(n.sim.Plugin, v.Spec)
	volume.DependsOn(n.sim.Plugin, v.Spec, v.Pod)
	_, _ = v.GetMetrics(t.Context())
}
