package persistentvolume_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/util/testenv/pvbuild"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/persistentvolume"
)

var errNoAnswer = errors.New("the server does not answer")

func refusedParameters(c *storagev1.StorageClass) { c.Parameters = map[string]string{"bad": "yes"} }

func isProvisioning(c *v1.PersistentVolumeClaim) bool {
	return slices.Contains(c.Finalizers, persistentvolume.ProvisioningFinalizer) || c.Annotations[persistentvolume.ProvisioningFinalizer] != ""
}

// replaceClass has somebody make a class again with the same name.
func (w *world) replaceClass(class *storagev1.StorageClass) {
	w.t.Helper()
	w.delete("StorageClass", "", class.Name)
	w.create(class)
}

// What has left nothing keeps a claim from nothing: not from another volume, not
// from what its class says by then, not from being deleted.
func TestFailedAttemptThatLeftNothing(t *testing.T) {
	refused := func(w *world) {}
	fails := func(w *world) {
		w.storage.fail(volume.NothingDone(errNoAnswer))
		w.replaceClass(storageClass("fast", made))
	}
	for name, fail := range map[string]func(*world){"refused by the plugin before": refused, "made in vain": fails} {
		for then, tc := range map[string]struct {
			do     func(*world)
			volume string // that the claim has then; empty: it is gone
		}{
			"a volume comes": {func(w *world) { w.create(pvbuild.NewPV("pv", "1Gi", pvbuild.Class("fast"))) }, "pv"},
			"the class has volumes": {func(w *world) {
				w.replaceClass(storageClass("fast"))
				w.create(pvbuild.NewPV("pv", "1Gi", pvbuild.Class("fast")))
			}, "pv"},
			"the class makes volumes": {func(w *world) { w.storage.fail(nil); w.replaceClass(storageClass("fast", made)) }, "pvc-uid-data"},
			"the claim is deleted":    {func(w *world) { w.delete("PersistentVolumeClaim", "ops", "data") }, ""},
			"deleted before a restart": {func(w *world) {
				w.stop()
				w.delete("PersistentVolumeClaim", "ops", "data")
				w.startFailing(errNoAnswer)
			}, ""},
			"deleted, and its class": {func(w *world) { w.delete("StorageClass", "", "fast"); w.delete("PersistentVolumeClaim", "ops", "data") }, ""},
			"deleted, and comes again": {func(w *world) {
				w.delete("PersistentVolumeClaim", "ops", "data")
				w.settle()
				w.storage.fail(nil)
				w.create(pvbuild.NewClaim("data", "1Gi", pvbuild.OfClass("")))
				w.create(pvbuild.NewPV("pv", "1Gi"))
			}, "pv"},
		} {
			t.Run(name+", "+then, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := newWorld(t, storageClass("fast", made, refusedParameters), pvbuild.NewClaim("data", "1Gi", pvbuild.OfClass("fast"))).withStorage()
					w.start()
					w.settle()
					fail(w)
					w.settle()
					w.wantClaim("data", v1.ClaimPending)
					if c := w.claim("data"); isProvisioning(c) {
						t.Errorf("finalizers %q, annotations %q", c.Finalizers, c.Annotations)
					}
					if name == "refused by the plugin before" && w.storage.asked() > 0 {
						t.Errorf("the plugin was asked %d times", w.storage.asked())
					}
					tc.do(w)
					w.settle()
					if tc.volume == "" {
						w.wantGone("PersistentVolumeClaim", "ops", "data")
					} else {
						w.wantBound("data", tc.volume)
						if isProvisioning(w.claim("data")) {
							t.Errorf("finalizers %q", w.claim("data").Finalizers)
						}
					}
				})
			})
		}
	}
}

// Where storage may have been made it is asked for again as it was, whatever has
// become of the class, and the claim says how to get rid of it otherwise.
func TestUncertainStorageIsAskedForAsItWas(t *testing.T) {
	for name, change := range map[string]func(*world){
		"the class is gone":        func(w *world) { w.delete("StorageClass", "", "fast") },
		"the class is another's":   func(w *world) { w.replaceClass(storageClass("fast", provisionedBy("csi.example.com"))) },
		"the class makes nothing":  func(w *world) { w.replaceClass(storageClass("fast")) },
		"the class makes it other": func(w *world) { w.replaceClass(storageClass("fast", made, refusedParameters)) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, storageClass("fast", made), pvbuild.NewClaim("data", "1Gi", pvbuild.OfClass("fast"))).withStorage()
				w.config.TrustedClaims = true
				w.startFailing(errNoAnswer)
				w.settle()
				change(w)
				w.stop()
				w.startFailing(errNoAnswer)
				w.delete("PersistentVolumeClaim", "ops", "data")
				w.settle()
				w.wantEvent("data: Warning ProvisioningCleanupFailed", `"pvc-uid-data"`, errNoAnswer.Error(), "remove the finalizer podvol.io/provisioning")
				if !isProvisioning(w.claim("data")) {
					t.Error("it is not known any more what may have been made")
				}
				w.storage.fail(nil)
				w.settle()
				w.wantGone("PersistentVolumeClaim", "ops", "data")
				if got := w.stored(); len(got) != 0 {
					t.Errorf("storage is left: %q", got)
				}
			})
		})
	}
}

// Whoever makes a claim may write into it as what class its storage was begun:
// nothing is made by that unless claims are trusted.
func TestNothingIsMadeAsAClaimItselfSays(t *testing.T) {
	forged := func(c *v1.PersistentVolumeClaim) {
		c.Finalizers = append(c.Finalizers, persistentvolume.ProvisioningFinalizer)
		metav1.SetMetaDataAnnotation(&c.ObjectMeta, persistentvolume.ProvisioningFinalizer,
			fmt.Sprintf(`{"class":{"metadata":{"name":"fast"},"provisioner":%q,"parameters":{"path":"/etc"}}}`, storagePlugin))
	}
	for name, classes := range map[string][]*storagev1.StorageClass{"of another class": {storageClass("fast", made)}, "of none": nil} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, pvbuild.NewClaim("data", "1Gi", pvbuild.OfClass("fast"), forged)).withStorage()
				for _, class := range classes {
					w.create(class)
				}
				w.start()
				w.settle()
				w.wantEvent("data: Warning ProvisioningFailed", `"fast"`, "remove the finalizer podvol.io/provisioning")
				w.delete("PersistentVolumeClaim", "ops", "data")
				w.settle()
				w.wantEvent("data: Warning ProvisioningCleanupFailed", "remove the finalizer podvol.io/provisioning")
				if got := w.storage.asked(); got > 0 || len(w.stored()) > 0 {
					t.Errorf("the plugin was asked %d times, and has made %q", got, w.stored())
				}
			})
		})
	}
}

// selected places the pod of a claim and returns the node that is written down a
// moment later.
func (w *world) selected(claim string, nodes ...*v1.Node) string {
	w.t.Helper()
	p, err := w.controller.Place(w.t.Context(), pvbuild.PodOf(claim), nodes)
	if err != nil {
		w.t.Fatal(err)
	}
	if err := p.Commit(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
	time.Sleep(100 * time.Millisecond)
	synctest.Wait()
	return w.claim(claim).Annotations["volume.kubernetes.io/selected-node"]
}

// A node is given back once for each attempt on it. Selected again it waits for
// its turn, another node is tried at once.
func TestNodeIsGivenBackOnceForEachAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, storageClass("fast", made, waitForConsumer), pvbuild.NewClaim("data", "1Gi", pvbuild.OfClass("fast")), newNode("node1"), newNode("node2")).withStorage()
		w.startFailing(volume.NothingDone(errors.New("it is full")))
		w.settle()
		for i, step := range []struct {
			node, left string
			asked      int
		}{{"node1", "", 1}, {"node1", "node1", 1}, {"node1", "node1", 1}, {"node2", "", 2}, {"node1", "node1", 2}} {
			if left := w.selected("data", newNode(step.node)); left != step.left || w.storage.asked() != step.asked {
				t.Errorf("step %d: %s was selected, %q is left after %d attempts, want %q after %d", i, step.node, left, w.storage.asked(), step.left, step.asked)
			}
		}
		w.storage.fail(nil)
		w.settle()
		w.wantBound("data", "pvc-uid-data")
	})
}

// Who places a pod again whenever its claim has changed gets one attempt for each
// pause, however many nodes there are.
func TestPlacingAgainAtEachChangeDoesNotSpin(t *testing.T) {
	for name, all := range map[string][]*v1.Node{"one node": {newNode("node1")}, "two nodes": {newNode("node1"), newNode("node2")}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, storageClass("fast", made, waitForConsumer), pvbuild.NewClaim("data", "1Gi", pvbuild.OfClass("fast")), newNode("node1"), newNode("node2")).withStorage()
				w.startFailing(volume.NothingDone(errors.New("it is full")))
				w.settle()
				changed := make(chan struct{}, 1)
				stop := w.client.WatchKind("PersistentVolumeClaim", func(volume.ObjectRef) {
					select {
					case changed <- struct{}{}:
					default:
					}
				})
				defer stop()
				var rounds atomic.Int32
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				changed <- struct{}{}
				for i := 0; ctx.Err() == nil && rounds.Load() < 1000; i++ {
					select {
					case <-changed:
					case <-ctx.Done():
						continue
					}
					if p, err := w.controller.Place(ctx, pvbuild.PodOf("data"), all[i%len(all):][:1]); err == nil && p.Commit(ctx) == nil {
						rounds.Add(1)
					}
				}
				if n, asked := rounds.Load(), w.storage.asked(); n > 300 || asked < 30 || asked > 100*len(all) {
					t.Errorf("%d placements and %d attempts in an hour", n, asked)
				}
			})
		})
	}
}

// The only node there is stays selected, and is tried again by itself.
func TestOnlyNodeStaysSelected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, storageClass("fast", made, waitForConsumer), pvbuild.NewClaim("data", "1Gi", pvbuild.OfClass("fast")), newNode("node1")).withStorage()
		w.config.NodeName = "node1"
		w.startFailing(volume.NothingDone(errors.New("it is full")))
		w.settle()
		if left := w.selected("data", newNode("node1")); left != "node1" {
			t.Errorf("%q is selected after a failure", left)
		}
		w.settle()
		w.storage.fail(nil)
		w.settle()
		w.wantBound("data", "pvc-uid-data")
	})
}

// A failure that left nothing says nothing of an attempt before it that may have
// left something: where that is does not get lost with the node.
func TestNodeOfAnUncertainAttemptStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, storageClass("fast", made, waitForConsumer), pvbuild.NewClaim("data", "1Gi", pvbuild.OfClass("fast")), newNode("node1"), newNode("node2")).withStorage()
		w.start()
		w.settle()
		w.storage.distort(func(pv *v1.PersistentVolume) *v1.PersistentVolume { return nil }) // made, but the answer is lost
		if left := w.selected("data", newNode("node1")); left != "node1" {
			t.Fatalf("%q is selected", left)
		}
		w.delete("Node", "", "node1")
		w.settle()
		w.storage.distort(nil)
		w.wantEvent("data: Warning ProvisioningFailed", `storage may have been made on node "node1", which is gone`, "remove the finalizer podvol.io/provisioning")
		_, err := w.controller.Place(t.Context(), pvbuild.PodOf("data"), []*v1.Node{newNode("node2")})
		if !errors.Is(err, persistentvolume.ErrOtherNodeSelected) || !strings.Contains(err.Error(), "node1") {
			t.Errorf("placed elsewhere: %v", err)
		}
		// Who knows that it is gone, too, removes the finalizer.
		w.changeClaim("data", func(c *v1.PersistentVolumeClaim) {
			c.Finalizers = slices.DeleteFunc(slices.Clone(c.Finalizers), func(f string) bool { return f == persistentvolume.ProvisioningFinalizer })
		})
		w.settle()
		if left := w.selected("data", newNode("node2")); left != "node2" {
			t.Errorf("%q is selected", left)
		}
		w.settle()
		w.wantBound("data", "pvc-uid-data")
	})
}
