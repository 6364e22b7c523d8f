package persistentvolume_test

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/util/testenv/pvbuild"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/persistentvolume"
)

// badInput is something that no API server would let in, or that makes no sense.
type badInput struct {
	objects []metav1.Object
	// claim is the one that must not be bound, "c" if empty.
	claim string
	// events are parts of one event each, which begins with its object's name.
	events [][]string

	// busy is how many calls a day may be made meanwhile, to ask a plugin again.
	busy int
	// mend makes it good, so that the claim gets the volume wanted; empty: one that
	// was made for it.
	mend func(*world)
	want string
}

// sized is a volume or claim's size that resource.MustParse may not know.
func sized(size string) pvbuild.ClaimOption {
	return func(c *v1.PersistentVolumeClaim) {
		c.Spec.Resources.Requests[v1.ResourceStorage] = resource.MustParse(size)
	}
}

func changedClaim(f func(*v1.PersistentVolumeClaim)) func(*world) {
	return func(w *world) { w.changeClaim("c", f) }
}

// changeClaim has somebody else change a claim.
func (w *world) changeClaim(name string, f func(*v1.PersistentVolumeClaim)) {
	w.t.Helper()
	claim := w.claim(name).DeepCopy()
	f(claim)
	if _, err := w.api.Update(w.t.Context(), claim); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) changeClass(name string, f func(*storagev1.StorageClass)) {
	w.t.Helper()
	stored, err := w.store.Get(w.t.Context(), classRef(name))
	if err != nil {
		w.t.Fatal(err)
	}
	class := stored.(*storagev1.StorageClass).DeepCopy()
	f(class)
	if _, err := w.api.Update(w.t.Context(), class); err != nil {
		w.t.Fatal(err)
	}
}

func bindingMode(mode storagev1.VolumeBindingMode) func(*storagev1.StorageClass) {
	return func(c *storagev1.StorageClass) { c.VolumeBindingMode = &mode }
}

func reclaimPolicy(policy v1.PersistentVolumeReclaimPolicy) func(*storagev1.StorageClass) {
	return func(c *storagev1.StorageClass) { c.ReclaimPolicy = &policy }
}

func provisionedBy(name string) func(*storagev1.StorageClass) {
	return func(c *storagev1.StorageClass) { c.Provisioner = name }
}

func capacity(size string) pvbuild.Option {
	return func(pv *v1.PersistentVolume) {
		pv.Spec.Capacity = v1.ResourceList{v1.ResourceStorage: resource.MustParse(size)}
	}
}

func again(options ...pvbuild.ClaimOption) func(*world) {
	return func(w *world) {
		w.delete("PersistentVolumeClaim", "ops", "c")
		w.settle()
		w.create(pvbuild.NewClaim("c", "1Gi", append(options, withClaimUID("uid-again"))...))
	}
}

func badInputs() map[string]badInput {
	long := strings.Repeat("n", 253)
	return map[string]badInput{
		"a claim larger than any volume": {
			objects: []metav1.Object{pvbuild.NewPV("a", "1Gi"), pvbuild.NewPV("b", "2Gi"), pvbuild.NewClaim("c", "9Ti")},
			events:  [][]string{{"c: Normal FailedBinding", "too small (a: 1Gi of 9Ti; b: 2Gi of 9Ti)"}},
			mend:    func(w *world) { w.create(pvbuild.NewPV("large", "9Ti")) }, want: "large",
		},
		"a claim of absurd size": {
			objects: []metav1.Object{pvbuild.NewPV("a", "7Ei"), pvbuild.NewClaim("c", "1e60")},
			events:  [][]string{{"c: Normal FailedBinding", "too small (a: 7Ei of "}},
			mend:    changedClaim(func(c *v1.PersistentVolumeClaim) { sized("7Ei")(c) }), want: "a",
		},
		"a claim of hardly anything": {
			objects: []metav1.Object{pvbuild.NewPV("negative", "1Gi", capacity("-1n")), pvbuild.NewClaim("c", "1n")},
			events:  [][]string{{"c: Normal FailedBinding", "negative: its capacity is -1n"}, {"negative: Warning InvalidVolume", "-1n", "correct it"}},
			mend:    func(w *world) { w.create(pvbuild.NewPV("least", "1n")) }, want: "least",
		},
		"a negative size": {
			objects: []metav1.Object{pvbuild.NewPV("a", "1Gi"), pvbuild.NewClaim("c", "-1Gi")},
			events:  [][]string{{"c: Warning FailedBinding", `"ops/c"`, "spec.resources.requests.storage", "-1Gi"}},
			mend:    changedClaim(func(c *v1.PersistentVolumeClaim) { sized("1Gi")(c) }), want: "a",
		},
		"no size": {
			objects: []metav1.Object{pvbuild.NewPV("a", "1Gi"), pvbuild.NewClaim("c", "0")},
			events:  [][]string{{"c: Warning FailedBinding", `"ops/c"`, "spec.resources.requests.storage"}},
			mend:    changedClaim(func(c *v1.PersistentVolumeClaim) { sized("1Gi")(c) }), want: "a",
		},
		"no access modes": {
			objects: []metav1.Object{pvbuild.NewPV("a", "1Gi"), pvbuild.NewClaim("c", "1Gi", pvbuild.WantsModes())},
			events:  [][]string{{"c: Warning FailedBinding", `"ops/c"`, "spec.accessModes", "required"}},
			mend:    changedClaim(pvbuild.WantsModes(v1.ReadWriteOnce)), want: "a",
		},
		"one pod, and many": {
			objects: []metav1.Object{pvbuild.NewPV("a", "1Gi", pvbuild.WithModes(v1.ReadWriteOncePod, v1.ReadWriteMany)), pvbuild.NewClaim("c", "1Gi", pvbuild.WantsModes(v1.ReadWriteMany, v1.ReadWriteOncePod))},
			events:  [][]string{{"c: Warning FailedBinding", `"ops/c"`, "spec.accessModes", "ReadWriteOncePod"}},
			mend:    changedClaim(pvbuild.WantsModes(v1.ReadWriteOncePod)), want: "a",
		},
		"an access mode that there is not": {
			objects: []metav1.Object{pvbuild.NewPV("a", "1Gi"), pvbuild.NewClaim("c", "1Gi", pvbuild.WantsModes("ReadSometimes"))},
			events:  [][]string{{"c: Normal FailedBinding", "other access modes (a: not ReadSometimes)"}},
			mend:    changedClaim(pvbuild.WantsModes(v1.ReadWriteMany)), want: "a",
		},
		"a selector that contradicts itself": {
			objects: []metav1.Object{pvbuild.NewPV("a", "1Gi", pvbuild.Labelled("tier", "gold")), pvbuild.NewClaim("c", "1Gi", pvbuild.Selecting("tier", metav1.LabelSelectorOpIn, "gold"), pvbuild.Selecting("tier", metav1.LabelSelectorOpNotIn, "gold"))},
			events:  [][]string{{"c: Normal FailedBinding", "labels do not match the selector (a)"}},
			mend:    again(pvbuild.Selecting("tier", metav1.LabelSelectorOpIn, "gold")), want: "a",
		},
		"a selector of an unknown kind": {
			objects: []metav1.Object{pvbuild.NewPV("a", "1Gi", pvbuild.Labelled("tier", "gold")), pvbuild.NewClaim("c", "1Gi", pvbuild.Selecting("tier", "Near", "gold"))},
			events:  [][]string{{"c: Warning FailedBinding", `"ops/c"`, "spec.selector", "Near"}},
			mend:    again(pvbuild.Selecting("tier", metav1.LabelSelectorOpExists)), want: "a",
		},
		"a volume without a source": {
			objects: []metav1.Object{pvbuild.NewPV("a", "1Gi", pvbuild.WithoutSource), pvbuild.NewClaim("c", "1Gi")},
			events:  [][]string{{"c: Normal FailedBinding", "a: it has no source"}, {"a: Warning InvalidVolume", "it has no source", "correct it"}},
			mend: func(w *world) {
				w.change("a", func(pv *v1.PersistentVolume) { pv.Spec.HostPath = &v1.HostPathVolumeSource{Path: "/a"} })
			}, want: "a",
		},
		"a volume without a source for the claim": {
			objects: []metav1.Object{pvbuild.NewPV("a", "1Gi", pvbuild.WithoutSource, pvbuild.ForClaim("c", "")), pvbuild.NewClaim("c", "1Gi", pvbuild.Naming("a"))},
			events:  [][]string{{"c: Warning VolumeMismatch", `"a"`, "it has no source"}},
			mend: func(w *world) {
				w.change("a", func(pv *v1.PersistentVolume) { pv.Spec.HostPath = &v1.HostPathVolumeSource{Path: "/a"} })
			}, want: "a",
		},
		"a class that there is not": {
			objects: []metav1.Object{pvbuild.NewPV("a", "1Gi"), pvbuild.NewClaim("c", "1Gi", pvbuild.OfClass("gold"))},
			events:  [][]string{{"c: Warning ProvisioningFailed", `storageclass.storage.k8s.io "gold" not found`, "create it"}},
			mend:    func(w *world) { w.create(storageClass("gold", made)) },
		},
		"a class with an unknown binding mode": {
			objects: []metav1.Object{storageClass("odd", bindingMode("Sometimes")), pvbuild.NewPV("a", "1Gi", pvbuild.Class("odd")), pvbuild.NewClaim("c", "1Gi", pvbuild.OfClass("odd"))},
			events:  [][]string{{"c: Warning FailedBinding", `"ops/c"`, `volumeBindingMode: of StorageClass "odd" is "Sometimes"; make it Immediate or WaitForFirstConsumer`}},
			mend:    func(w *world) { w.changeClass("odd", bindingMode(storagev1.VolumeBindingImmediate)) }, want: "a",
		},
		"a class with an unknown reclaim policy": {
			objects: []metav1.Object{storageClass("odd", made, reclaimPolicy("Burn")), pvbuild.NewClaim("c", "1Gi", pvbuild.OfClass("odd"))},
			events:  [][]string{{"c: Warning FailedBinding", `"ops/c"`, `reclaimPolicy: of StorageClass "odd" is "Burn"; make it Delete or Retain`}},
			mend:    func(w *world) { w.changeClass("odd", reclaimPolicy(v1.PersistentVolumeReclaimRetain)) },
		},
		"a class whose volumes nobody makes": {
			objects: []metav1.Object{storageClass("odd", provisionedBy("kubernetes.io/none")), pvbuild.NewClaim("c", "1Gi", pvbuild.OfClass("odd"))},
			events:  [][]string{{"c: Warning ProvisioningFailed", `StorageClass "odd"`, "kubernetes.io/none"}}, busy: 24 * 60,
			mend: func(w *world) { w.changeClass("odd", made) },
		},
		"names as long as they may be": {
			objects: []metav1.Object{pvbuild.NewPV(long, "1Gi"), pvbuild.NewClaim(long, "2Gi")}, claim: long,
			events: [][]string{{long + ": Normal FailedBinding", "too small (" + long}},
			mend:   func(w *world) { w.change(long, capacity("2Gi")) }, want: long,
		},
		"a volume that names another claim": {
			objects: []metav1.Object{pvbuild.NewPV("a", "1Gi", pvbuild.ForClaim("other", "")), pvbuild.NewClaim("c", "1Gi", pvbuild.Naming("a"))},
			events:  [][]string{{"c: Warning FailedBinding", `volume "a" already bound to a different claim`}},
			mend:    func(w *world) { w.change("a", func(pv *v1.PersistentVolume) { pv.Spec.ClaimRef = nil }) }, want: "a",
		},
		"a volume for an earlier claim of this name": {
			objects: []metav1.Object{pvbuild.NewPV("a", "1Gi", pvbuild.ForClaim("c", "earlier")), pvbuild.NewClaim("c", "1Gi", pvbuild.Naming("a"))},
			events:  [][]string{{"c: Warning FailedBinding", `volume "a" already bound to a different claim`}},
			mend:    func(w *world) { w.change("a", func(pv *v1.PersistentVolume) { pv.Spec.ClaimRef = nil }) }, want: "a",
		},
		"a volume for a claim of a namespace that there is not": {
			objects: []metav1.Object{pvbuild.NewPV("a", "1Gi", func(pv *v1.PersistentVolume) {
				pv.Spec.ClaimRef = &v1.ObjectReference{Namespace: "nowhere", Name: "c"}
			}), pvbuild.NewClaim("c", "1Gi")},
			events: [][]string{{"c: Normal FailedBinding", "belongs to another claim (a: nowhere/c)"}},
			mend:   func(w *world) { w.change("a", func(pv *v1.PersistentVolume) { pv.Spec.ClaimRef.Namespace = "ops" }) }, want: "a",
		},
		"a volume that was for a claim of a namespace that there is not": {
			objects: []metav1.Object{pvbuild.NewPV("a", "1Gi", withPolicy(v1.PersistentVolumeReclaimRetain), func(pv *v1.PersistentVolume) {
				pv.Spec.ClaimRef = &v1.ObjectReference{Namespace: "nowhere", Name: "c", UID: "u"}
			}), pvbuild.NewClaim("c", "1Gi")},
			events: [][]string{{"c: Normal FailedBinding", "belongs to another claim (a: nowhere/c)"}},
			mend:   func(w *world) { w.change("a", func(pv *v1.PersistentVolume) { pv.Spec.ClaimRef = nil }) }, want: "a",
		},
		"a device for files": {
			objects: []metav1.Object{pvbuild.NewPV("a", "1Gi", pvbuild.OfMode(v1.PersistentVolumeBlock)), pvbuild.NewClaim("c", "1Gi", pvbuild.Naming("a"))},
			events:  [][]string{{"c: Warning VolumeMismatch", `"a"`, "other volume mode (a: Block)"}},
			mend:    again(pvbuild.Naming("a"), pvbuild.WantsMode(v1.PersistentVolumeBlock)), want: "a",
		},
		"files for a device": {
			objects: []metav1.Object{pvbuild.NewPV("a", "1Gi"), pvbuild.NewClaim("c", "1Gi", pvbuild.WantsMode(v1.PersistentVolumeBlock))},
			events:  [][]string{{"c: Normal FailedBinding", "other volume mode (a: Filesystem)"}},
			mend:    func(w *world) { w.create(pvbuild.NewPV("device", "1Gi", pvbuild.OfMode(v1.PersistentVolumeBlock))) }, want: "device",
		},
		"a device made for a claim of files": {
			objects: []metav1.Object{pvbuild.NewPV("a", "1Gi", pvbuild.OfMode(v1.PersistentVolumeBlock), pvbuild.ForClaim("c", "uid-c")), pvbuild.NewClaim("c", "1Gi")},
			events:  [][]string{{"c: Normal FailedBinding", "other volume mode (a: Block)"}, {"a: Warning VolumeMismatch", `"c"`, "Block"}},
			mend:    func(w *world) { w.create(pvbuild.NewPV("files", "1Gi")) }, want: "files",
		},
		"a volume mode that there is not": {
			objects: []metav1.Object{pvbuild.NewPV("a", "1Gi"), pvbuild.NewClaim("c", "1Gi", pvbuild.WantsMode("Tape"))},
			events:  [][]string{{"c: Normal FailedBinding", "other volume mode (a: Filesystem)"}},
			mend:    again(), want: "a",
		},
	}
}

// Whatever is wrong is said once, at the object that it is about, and nothing
// that it could not have is ever given to a claim. Nobody works until something
// changes, and then it is as if it had been right from the start.
func TestBadInput(t *testing.T) {
	for name, tc := range badInputs() {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, tc.objects...).withStorage()
				claim := tc.claim
				if claim == "" {
					claim = "c"
				}
				w.start()
				w.settle()
				w.wantUnbound(claim, tc.events)
				w.wantQuiet(tc.busy)
				tc.mend(w)
				w.settle()
				want := tc.want
				if want == "" {
					want = persistentvolume.ProvisionedName(w.claim(claim))
				}
				w.wantBound(claim, want)
				if err := w.controller.Explain(types.NamespacedName{Namespace: "ops", Name: claim}); err != nil {
					t.Errorf("mended, it is said to be unbound: %v", err)
				}
			})
		})
	}
}

// wantUnbound checks that a claim waits, that its reasons are told, and that they
// are still known.
func (w *world) wantUnbound(claim string, events [][]string) {
	w.t.Helper()
	w.wantClaim(claim, v1.ClaimPending)
	if w.claim(claim).Annotations["pv.kubernetes.io/bind-completed"] != "" {
		w.t.Errorf("claim %s is bound to %q", claim, w.claim(claim).Spec.VolumeName)
	}
	for _, parts := range events {
		w.wantEvent(parts...)
	}
	if err := w.controller.Explain(types.NamespacedName{Namespace: "ops", Name: claim}); err == nil || !strings.Contains(err.Error(), "ops/"+claim) {
		w.t.Errorf("Explain = %v", err)
	}
}

// wantEvent checks that there was one event that begins with the first and has
// all of the parts.
func (w *world) wantEvent(parts ...string) {
	w.t.Helper()
	w.events.mu.Lock()
	defer w.events.mu.Unlock()
	found := 0
	for _, e := range w.events.all {
		has := strings.HasPrefix(e, parts[0])
		for _, part := range parts[1:] {
			has = has && strings.Contains(e, part)
		}
		if has {
			found++
		}
	}
	if found != 1 {
		w.t.Errorf("%d events are %q, want 1:\n%s", found, parts, strings.Join(w.events.all, "\n"))
	}
}

// wantQuiet checks that a day without changes costs no more than some calls to
// the API.
func (w *world) wantQuiet(most int) {
	w.t.Helper()
	calls, events, lasts := w.client.Count(), len(w.events.all), 24*time.Hour
	if w.server != nil {
		lasts = time.Hour // informers open their watches anew every few minutes
	}
	time.Sleep(lasts)
	synctest.Wait()
	if n := w.client.Count() - calls; n > most {
		w.t.Errorf("%d calls to the API in %s in which nothing changed, want at most %d", n, lasts, most)
	}
	if n := len(w.events.all) - events; n > 0 {
		w.t.Errorf("%d more events in %s in which nothing changed: %s", n, lasts, w.events)
	}
}

// A plugin that returns nonsense is asked again, seldom, and nothing is stored of
// what it says.
func TestProvisionersThatReturnNonsense(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*v1.PersistentVolume) *v1.PersistentVolume
		want   string
	}{
		"nothing":      {func(*v1.PersistentVolume) *v1.PersistentVolume { return nil }, "no PersistentVolume"},
		"no name":      {changedPV(func(pv *v1.PersistentVolume) { pv.Name = "" }), `has made ""`},
		"another name": {changedPV(func(pv *v1.PersistentVolume) { pv.Name = "somebodys" }), `has made "somebodys"`},
		"too small":    {changedPV(capacity("1Gi")), "its capacity is 1Gi of 2Gi"},
		"no capacity":  {changedPV(pvbuild.WithoutCapacity), "its capacity is 0"},
		"other modes":  {changedPV(pvbuild.WithModes(v1.ReadOnlyMany)), "without ReadWriteOnce"},
		"a device":     {changedPV(pvbuild.OfMode(v1.PersistentVolumeBlock)), "volumeMode is Block instead of Filesystem"},
		"no source":    {changedPV(pvbuild.WithoutSource), "no source"},
		"another node": {changedPV(pvbuild.OnHost("elsewhere")), `node "node1"`},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, newNode("node1"), pvbuild.NewPV("somebodys", "1Gi", pvbuild.Class("theirs")),
					storageClass("fast", made, waitForConsumer), pvbuild.NewClaim("c", "2Gi", pvbuild.OfClass("fast"))).withStorage()
				w.start()
				w.storage.distort(tc.change)
				w.settle()
				if _, err := w.place(pvbuild.PodOf("c")); err != nil {
					t.Fatal(err)
				}
				w.settle()
				w.wantUnbound("c", [][]string{{"c: Warning ProvisioningFailed", `StorageClass "fast"`, "example.com/storage", tc.want}})
				w.wantQuiet(3 * 24 * 60 / 2)
				if list, err := w.store.List(t.Context(), "PersistentVolume", ""); err != nil || len(list) != 1 {
					t.Errorf("volumes: %v, %v", list, err)
				}
				w.storage.distort(nil)
				w.settle()
				w.wantBound("c", "pvc-uid-c")
				if got := w.stored(); len(got) != 1 {
					t.Errorf("storage: %q", got)
				}
			})
		})
	}
}

func changedPV(f func(*v1.PersistentVolume)) func(*v1.PersistentVolume) *v1.PersistentVolume {
	return func(pv *v1.PersistentVolume) *v1.PersistentVolume { f(pv); return pv }
}

// Whoever writes the annotation of a node that there is not, or on a class that
// makes nothing, gets the claim back to where a pod can be placed.
func TestSelectedNodeThatThereIsNot(t *testing.T) {
	for name, option := range map[string]func(*storagev1.StorageClass){"storage is made": made, "volumes are there": waitForConsumer} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, storageClass("local", waitForConsumer, option), pvbuild.NewClaim("c", "1Gi", pvbuild.OfClass("local"), func(c *v1.PersistentVolumeClaim) {
					metav1.SetMetaDataAnnotation(&c.ObjectMeta, "volume.kubernetes.io/selected-node", "ghost")
				})).withStorage()
				if name == "volumes are there" {
					w.create(localPV("pv", "1Gi", "node1"))
				}
				w.create(newNode("node1"))
				w.start()
				w.settle()
				w.wantUnbound("c", [][]string{{"c: Normal WaitForFirstConsumer"}})
				if name == "storage is made" {
					w.wantEvent("c: Warning ProvisioningFailed", `StorageClass "local"`, "Node ghost not found")
				}
				w.wantQuiet(0)
				if node, err := w.place(pvbuild.PodOf("c")); node != "node1" || err != nil {
					t.Fatalf("placed on %q, %v", node, err)
				}
				w.settle()
				w.wantClaim("c", v1.ClaimBound)
			})
		})
	}
}

func TestTwoPodsWithAClaimForOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, pvbuild.NewPV("pv", "1Gi", pvbuild.WithModes(v1.ReadWriteOncePod)), pvbuild.NewClaim("c", "1Gi", pvbuild.WantsModes(v1.ReadWriteOncePod)))
		w.start()
		w.settle()
		w.wantBound("c", "pv")
		first := pvbuild.PodOf("c")
		if node, err := w.place(first); node != "node1" || err != nil {
			t.Fatalf("placed on %q, %v", node, err)
		}
		first.Spec.NodeName = "node1"
		w.create(first)
		second := pvbuild.PodOf("c")
		second.Name, second.UID = "second", "second"
		w.settle()
		_, err := w.place(second)
		if !errors.Is(err, persistentvolume.ErrUsedByOtherPod) || !strings.Contains(err.Error(), "ops/second") || !strings.Contains(err.Error(), "ops/c") {
			t.Errorf("err = %v", err)
		}
		ended := first.DeepCopy()
		ended.ResourceVersion = ""
		ended.Status.Phase = v1.PodSucceeded
		if _, err := w.api.UpdateStatus(t.Context(), ended); err != nil {
			t.Fatal(err)
		}
		w.settle()
		if node, err := w.place(second); node != "node1" || err != nil {
			t.Errorf("once the first has ended: %q, %v", node, err)
		}
	})
}

// A class that says nonsense places no pod either.
func TestPlacingWithABadClass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, storageClass("odd", bindingMode("Sometimes")), pvbuild.NewPV("a", "1Gi", pvbuild.Class("odd")), pvbuild.NewClaim("c", "1Gi", pvbuild.OfClass("odd")))
		w.start()
		w.settle()
		if _, err := w.place(pvbuild.PodOf("c")); err == nil || !strings.Contains(err.Error(), `volumeBindingMode: of StorageClass "odd"`) {
			t.Errorf("err = %v", err)
		}
	})
}

// Nothing is done with the data of a volume whose reclaim policy nobody knows.
func TestUnknownReclaimPolicyKeepsTheData(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, pvbuild.NewPV("pv", "1Gi", withPolicy("Burn")), pvbuild.NewClaim("c", "1Gi")).withStorage()
		w.start()
		w.settle()
		w.wantBound("c", "pv")
		w.delete("PersistentVolumeClaim", "ops", "c")
		w.settle()
		w.wantPV("pv", v1.VolumeFailed)
		w.wantEvent("pv: Warning VolumeUnknownReclaimPolicy", `"Burn"`, "make it Retain, Delete or Recycle")
		w.wantQuiet(0)
		w.change("pv", withPolicy(v1.PersistentVolumeReclaimRetain))
		w.settle()
		w.wantPV("pv", v1.VolumeReleased)
	})
}

func classRef(name string) volume.ObjectRef { return volume.NewObjectRef("StorageClass", "", name) }
