package persistentvolume_test

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/util/testenv/pvbuild"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/persistentvolume"
)

func podNamed(name, node string, claims ...string) *v1.Pod {
	pod := pvbuild.PodOf(claims...)
	pod.Name, pod.UID, pod.Spec.NodeName = name, types.UID(name), node
	return pod
}

// onePodWorld has a bound claim for one pod, and these pods.
func onePodWorld(t *testing.T, pods ...*v1.Pod) *world {
	w := newWorld(t, pvbuild.NewPV("pv", "1Gi", pvbuild.WithModes(v1.ReadWriteOncePod)), pvbuild.NewClaim("data", "1Gi", pvbuild.WantsModes(v1.ReadWriteOncePod)))
	for _, pod := range pods {
		w.create(pod)
	}
	w.start()
	w.settle()
	w.wantBound("data", "pv")
	return w
}

// wantPlaced checks whether a pod can be placed, which stays undecided.
func (w *world) wantPlaced(pod *v1.Pod, usedBy string) {
	w.t.Helper()
	p, err := w.controller.Place(w.t.Context(), pod, nodes())
	switch {
	case err == nil:
		p.Rollback()
		if usedBy != "" {
			w.t.Errorf("%s was placed while %s has the claim", pod.Name, usedBy)
		}
	case usedBy == "":
		w.t.Errorf("%s was not placed: %v", pod.Name, err)
	case !errors.Is(err, persistentvolume.ErrUsedByOtherPod) || !strings.Contains(err.Error(), `"`+usedBy+`"`) || !strings.Contains(err.Error(), pod.Name):
		w.t.Errorf("%s: %v", pod.Name, err)
	}
}

// Of several pods that were put on nodes by who has made them, one can start, and
// it is always the same.
func TestOneOfSeveralPodsOnNodesMayHaveAClaimForOne(t *testing.T) {
	for name, tc := range map[string]struct{ running, want string }{"none runs": {"", "first"}, "the second runs": {"second", "second"}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				pods := []*v1.Pod{podNamed("first", "node1", "data"), podNamed("second", "node1", "data"), podNamed("third", "node2", "data")}
				for _, pod := range pods {
					if pod.Name == tc.running {
						pod.Status.Phase = v1.PodRunning
					}
				}
				w := onePodWorld(t, pods...)
				for _, pod := range []*v1.Pod{pods[2], pods[1], pods[0]} {
					if pod.Name == tc.want {
						w.wantPlaced(pod, "")
						continue
					}
					_, err := w.controller.Place(t.Context(), pod, nodes())
					if !errors.Is(err, persistentvolume.ErrUsedByOtherPod) {
						t.Errorf("%s: %v", pod.Name, err)
					}
				}
			})
		})
	}
}

// A claim for one pod is kept for the pod that was placed, before anybody sees it
// on its node, until it has gone or ended.
func TestClaimForOnePodIsKeptForThePodThatIsPlaced(t *testing.T) {
	ref := volume.NewObjectRef("Pod", "ops", "first")
	for name, end := range map[string]func(*world, *persistentvolume.Placement){
		"rolled back": func(w *world, p *persistentvolume.Placement) { p.Rollback() },
		"gone":        func(w *world, p *persistentvolume.Placement) { w.delete("Pod", "ops", "first") },
		"another of its name": func(w *world, p *persistentvolume.Placement) {
			w.delete("Pod", "ops", "first")
			again := podNamed("first", "", "data")
			again.UID = "again"
			w.create(again)
		},
		"ended, and never seen on its node": func(w *world, p *persistentvolume.Placement) {
			pod, err := objects.Get[*v1.Pod](w.t.Context(), w.store, ref)
			if err != nil {
				w.t.Fatal(err)
			}
			pod = pod.DeepCopy()
			pod.Status.Phase = v1.PodFailed
			if _, err := w.api.UpdateStatus(w.t.Context(), pod); err != nil {
				w.t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				first, second := podNamed("first", "", "data"), podNamed("second", "", "data")
				w := onePodWorld(t, first, second)
				p, err := w.controller.Place(t.Context(), first, nodes())
				if err != nil {
					t.Fatal(err)
				}
				w.wantPlaced(second, "first")
				if name != "rolled back" {
					if err := p.Commit(t.Context()); err != nil {
						t.Fatal(err)
					}
					p.Rollback() // which does nothing any more
					w.wantPlaced(second, "first")
				}
				end(w, p)
				w.wantPlaced(second, "")
				w.settle()
			})
		})
	}
}

// A pod that cannot be placed for another reason keeps nothing.
func TestPodThatIsNotPlacedKeepsNoClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first, second := podNamed("first", "", "data", "missing"), podNamed("second", "", "data")
		w := onePodWorld(t, first, second)
		if _, err := w.controller.Place(t.Context(), first, nodes()); !errors.Is(err, volume.ErrNotFound) {
			t.Errorf("err = %v", err)
		}
		w.wantPlaced(second, "")
		if _, err := w.controller.Place(t.Context(), podNamed("first", "", "data"), nil); err == nil {
			t.Error("placed on no node")
		}
		w.wantPlaced(second, "")
	})
}

// One of many calls at the same time succeeds.
func TestPlacingManyPodsAtOnceWithAClaimForOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var pods []*v1.Pod
		for _, name := range strings.Split("abcdefgh", "") {
			pods = append(pods, podNamed(name, "", "data"))
		}
		w := onePodWorld(t, pods...)
		var mu sync.Mutex
		var placed []string
		var all sync.WaitGroup
		for _, pod := range pods {
			all.Go(func() {
				p, err := w.controller.Place(t.Context(), pod, nodes())
				if err == nil {
					err = p.Commit(t.Context())
				}
				mu.Lock()
				defer mu.Unlock()
				if err == nil {
					placed = append(placed, pod.Name)
				} else if !errors.Is(err, persistentvolume.ErrUsedByOtherPod) {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if len(placed) != 1 {
			t.Errorf("placed: %q", placed)
		}
	})
}

// Rollback while the placement is committed takes nothing away from it.
func TestRollbackWhileCommitting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, storageClass("local", waitForConsumer))
		var claims []string
		for _, name := range strings.Split("abcdefghij", "") {
			w.create(localPV(name, "1Gi", "node1"))
			w.create(pvbuild.NewClaim(name, "1Gi", pvbuild.OfClass("local")))
			claims = append(claims, name)
		}
		w.start()
		p, err := w.controller.Place(t.Context(), pvbuild.PodOf(claims...), nodes())
		if err != nil {
			t.Fatal(err)
		}
		committed := make(chan error, 1)
		go func() { committed <- p.Commit(t.Context()) }()
		p.Rollback()
		if err := <-committed; err != nil {
			t.Error(err)
		}
		if err := w.controller.Idle(t.Context()); err != nil {
			t.Fatal(err)
		}
		bound := 0
		for _, name := range claims {
			if w.claim(name).Spec.VolumeName != "" {
				bound++
			}
		}
		if bound != 0 && bound != len(claims) {
			t.Errorf("%d of %d claims are bound", bound, len(claims))
		}
	})
}
