package release_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/util/testenv/pvbuild"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/objects/objectstest"
	"github.com/podvol/podvol/volume/persistentvolume/release"
	"github.com/podvol/podvol/volume/plugins/nfs"
	"github.com/podvol/podvol/volume/recyclerpod"
)

var start = time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)

func exportVolume(name, path string, change ...func(*v1.PersistentVolume)) *v1.PersistentVolume {
	pv := &v1.PersistentVolume{}
	pv.Name, pv.UID = name, types.UID(name+"-uid")
	pv.Spec.NFS = &v1.NFSVolumeSource{Server: "server", Path: path}
	for _, f := range change {
		f(pv)
	}
	return pv
}

// madeBy has a volume be one that was provisioned, and is to be deleted.
func madeBy(plugin string) func(*v1.PersistentVolume) {
	return func(pv *v1.PersistentVolume) {
		metav1.SetMetaDataAnnotation(&pv.ObjectMeta, "pv.kubernetes.io/provisioned-by", plugin)
		pv.Spec.PersistentVolumeReclaimPolicy = v1.PersistentVolumeReclaimDelete
	}
}

// A class whose share is a volume of another class makes volumes inside that. The
// inner one goes first, and neither waits for ever.
func TestAVolumeMadeInsideAnotherGoesFirst(t *testing.T) {
	for name, tc := range map[string]struct {
		outer string
		made  func(*v1.PersistentVolume)
		inner bool // whether it is held up
	}{
		"made in one that was made":       {outer: "/exports", made: madeBy(nfs.PluginName)},
		"made in one that was made at /":  {outer: "/", made: madeBy(nfs.PluginName)},
		"made at the same path":           {outer: "/exports/pv1", made: madeBy(nfs.PluginName), inner: true},
		"made in one of another's making": {outer: "/exports", made: madeBy("example.com/other"), inner: true},
		"made in one of a person's":       {outer: "/exports", made: func(*v1.PersistentVolume) {}, inner: true},
	} {
		t.Run(name, func(t *testing.T) {
			inner := released(madeBy(nfs.PluginName))
			outer := exportVolume("outer", tc.outer, func(pv *v1.PersistentVolume) {
				pv.Spec.ClaimRef = &v1.ObjectReference{Namespace: "ops", Name: "outer", UID: "claim2"}
				pv.Status.Phase = v1.VolumeReleased
			}, madeBy(""), tc.made)
			verify := verifier(t, pvbuild.StoreOf(t, inner, outer))
			if err := verify.VerifyReleased(t.Context(), inner); errors.Is(err, volume.ErrInUse) != tc.inner {
				t.Errorf("the inner one: %v", err)
			}
			if err := verify.VerifyReleased(t.Context(), outer); !errors.Is(err, volume.ErrInUse) {
				t.Errorf("the outer one: %v", err)
			}
		})
	}
}

// released is a volume that claim ops/data, of UID claim1, has left.
func released(change ...func(*v1.PersistentVolume)) *v1.PersistentVolume {
	return exportVolume("pv1", "/exports/pv1", append([]func(*v1.PersistentVolume){func(pv *v1.PersistentVolume) {
		pv.Spec.ClaimRef = &v1.ObjectReference{Namespace: "ops", Name: "data", UID: "claim1"}
		pv.Spec.PersistentVolumeReclaimPolicy = v1.PersistentVolumeReclaimRecycle
		pv.Status.Phase = v1.VolumeReleased
	}}, change...)...)
}

func claimOf(name, uid, volumeName string) *v1.PersistentVolumeClaim {
	c := &v1.PersistentVolumeClaim{}
	c.Namespace, c.Name, c.UID = "ops", name, types.UID(uid)
	c.CreationTimestamp = metav1.NewTime(start)
	c.Spec.VolumeName = volumeName
	return c
}

func podWith(name string, volumes ...v1.VolumeSource) *v1.Pod {
	p := &v1.Pod{}
	p.Namespace, p.Name, p.UID = "ops", name, types.UID(name)
	p.CreationTimestamp = metav1.NewTime(start.Add(time.Hour))
	p.Spec.NodeName = "node1"
	for _, source := range volumes {
		p.Spec.Volumes = append(p.Spec.Volumes, v1.Volume{Name: "v", VolumeSource: source})
	}
	return p
}

func ofClaim(name string) v1.VolumeSource {
	return v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: name}}
}

func ofExport(server, path string) v1.VolumeSource {
	return v1.VolumeSource{NFS: &v1.NFSVolumeSource{Server: server, Path: path}}
}

func verifier(t *testing.T, store objects.Reader) volume.ReleaseVerifier {
	t.Helper()
	plugins, err := volume.NewVolumePluginMgr([]volume.VolumePlugin{nfs.New(nfs.Config{})}, &volume.Host{})
	if err != nil {
		t.Fatal(err)
	}
	return &release.Verifier{Objects: store, Plugins: plugins}
}

func TestReleasedVolumeMayBeDestroyed(t *testing.T) {
	older := podWith("older", ofExport("server", "/exports/pv1"))
	older.Status.Phase = v1.PodSucceeded
	unplaced := podWith("p", ofClaim("data"))
	unplaced.Spec.NodeName = ""
	cloned := claimOf("copy", "claim6", "pv3")
	cloned.Spec.DataSourceRef = &v1.TypedObjectReference{Kind: "PersistentVolumeClaim", Name: "data"}
	recycler := podWith("recycler", ofExport("server", "/exports/pv1"))
	recycler.Labels = map[string]string{recyclerpod.Label: recyclerpod.ReleaseID(released())}
	recycler.Annotations = map[string]string{recyclerpod.Annotation: "pv1"}
	for name, tc := range map[string]struct {
		others []metav1.Object
		change func(*v1.PersistentVolume)
	}{
		"the claim is gone":         {},
		"an earlier try has failed": {change: func(pv *v1.PersistentVolume) { pv.Status.Phase = v1.VolumeFailed }},
		"to be deleted": {change: func(pv *v1.PersistentVolume) {
			pv.Spec.PersistentVolumeReclaimPolicy = v1.PersistentVolumeReclaimDelete
		}},
		"its claim has had another volume": {others: []metav1.Object{claimOf("data", "claim1", "pv2"), podWith("p", ofClaim("data"))}},
		"another claim of the same name":   {others: []metav1.Object{claimOf("data", "claim2", "pv2")}},
		"and a pod that came later":        {others: []metav1.Object{claimOf("data", "claim2", "pv2"), podWith("p", ofClaim("data"))}},
		"a pod that waits for a new claim": {others: []metav1.Object{claimOf("data", "claim2", ""), podWith("p", ofClaim("data"))}},
		"a pod that is on no node":         {others: []metav1.Object{unplaced}},
		"a pod of another claim":           {others: []metav1.Object{claimOf("other", "claim3", "pv2"), podWith("p", ofClaim("other"))}},
		"another export":                   {others: []metav1.Object{podWith("p", ofExport("server", "/exports/pv10")), exportVolume("pv2", "/exports/pv2")}},
		"another kind of volume":           {others: []metav1.Object{podWith("p", v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}})}},
		"a pod that has ended":             {others: []metav1.Object{older}},
		"a claim that has its copy":        {others: []metav1.Object{cloned}},
		"the recycler of this very volume": {others: []metav1.Object{recycler}},
	} {
		t.Run(name, func(t *testing.T) {
			pv := released()
			if tc.change != nil {
				tc.change(pv)
			}
			if err := verifier(t, pvbuild.StoreOf(t, append(tc.others, pv)...)).VerifyReleased(t.Context(), pv); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestVolumeThatWasNotReleasedIsKept(t *testing.T) {
	for name, tc := range map[string]struct {
		stored, given func(*v1.PersistentVolume)
		want          string
	}{
		"bound":    {stored: func(pv *v1.PersistentVolume) { pv.Status.Phase = v1.VolumeBound }, want: `"Bound"`},
		"no phase": {stored: func(pv *v1.PersistentVolume) { pv.Status.Phase = "" }, want: `phase`},
		"retained": {stored: func(pv *v1.PersistentVolume) {
			pv.Spec.PersistentVolumeReclaimPolicy = v1.PersistentVolumeReclaimRetain
		}, want: `"Retain"`},
		"policies differ": {given: func(pv *v1.PersistentVolume) {
			pv.Spec.PersistentVolumeReclaimPolicy = v1.PersistentVolumeReclaimDelete
		}, want: `"Delete"`},
		"made again":            {stored: func(pv *v1.PersistentVolume) { pv.UID = "uid2" }, want: "made again"},
		"without UID":           {given: func(pv *v1.PersistentVolume) { pv.UID = "" }, want: "UID"},
		"never claimed":         {stored: func(pv *v1.PersistentVolume) { pv.Spec.ClaimRef = nil }, want: "claimRef"},
		"pre-bound":             {stored: func(pv *v1.PersistentVolume) { pv.Spec.ClaimRef.UID = "" }, want: "claimRef"},
		"claimed again":         {stored: func(pv *v1.PersistentVolume) { pv.Spec.ClaimRef.UID = "claim2" }, want: "claim2"},
		"given without claim":   {given: func(pv *v1.PersistentVolume) { pv.Spec.ClaimRef = nil }, want: "claimRef"},
		"the source is another": {given: func(pv *v1.PersistentVolume) { pv.Spec.NFS.Path = "/exports" }, want: "source"},
	} {
		t.Run(name, func(t *testing.T) {
			stored, given := released(), released()
			if tc.stored != nil {
				tc.stored(stored)
			}
			if tc.given != nil {
				tc.given(given)
			}
			before := given.DeepCopy()
			err := verifier(t, pvbuild.StoreOf(t, stored)).VerifyReleased(t.Context(), given)
			if e, ok := errors.AsType[*release.NotReleasedError](err); !ok || e.Volume != "pv1" || !strings.Contains(err.Error(), tc.want) || volume.IsUncertain(err) {
				t.Errorf("err = %v, want a NotReleasedError with %s", err, tc.want)
			}
			if diff := cmp.Diff(before, given); diff != "" {
				t.Errorf("the argument was changed:\n%s", diff)
			}
		})
	}
	if err := verifier(t, pvbuild.StoreOf(t)).VerifyReleased(t.Context(), released()); err == nil {
		t.Error("a volume that is not stored may be destroyed")
	}
	if err := verifier(t, pvbuild.StoreOf(t)).VerifyReleased(t.Context(), nil); err == nil {
		t.Error("no volume may be destroyed")
	}
}

func TestUsedVolumeIsKept(t *testing.T) {
	early := podWith("p", ofClaim("data"))
	early.CreationTimestamp = metav1.NewTime(start.Add(-time.Hour))
	sameSecond := podWith("p", ofClaim("data"))
	sameSecond.CreationTimestamp = metav1.NewTime(start)
	static, mirrored := podWith("p", ofClaim("data")), podWith("p", ofClaim("data"))
	static.Annotations = map[string]string{"kubernetes.io/config.source": "file"}
	mirrored.Annotations, mirrored.Spec.NodeName = map[string]string{v1.MirrorPodAnnotationKey: "x"}, ""
	terminating := podWith("p", ofClaim("data"))
	terminating.DeletionTimestamp = new(metav1.NewTime(start))
	terminating.Status.Phase = v1.PodRunning
	otherRecycler := podWith("p", ofExport("server", "/exports/pv1"))
	otherRecycler.Labels = map[string]string{recyclerpod.Label: "an earlier release"}
	otherRecycler.Annotations = map[string]string{recyclerpod.Annotation: "pv1"}
	lost := podWith("p", ofExport("server", "/exports/pv1"))
	lost.Status.Phase = v1.PodFailed
	lost.Status.ContainerStatuses = []v1.ContainerStatus{{State: v1.ContainerState{Running: &v1.ContainerStateRunning{}}}}
	ephemeral := podWith("da", v1.VolumeSource{Ephemeral: &v1.EphemeralVolumeSource{}})
	ephemeral.Spec.Volumes[0].Name = "ta"
	ephemeralClaim := claimOf("da-ta", "claim5", "pv1")
	clone := claimOf("copy", "claim6", "")
	clone.Finalizers = []string{"podvol.io/provisioning"}
	clone.Spec.DataSourceRef = &v1.TypedObjectReference{Kind: "PersistentVolumeClaim", Name: "data"}
	for name, tc := range map[string]struct {
		others []metav1.Object
		by     string
	}{
		"its own claim":                                       {[]metav1.Object{claimOf("data", "claim1", "pv1")}, "PersistentVolumeClaim ops/data"},
		"its own claim under another name":                    {[]metav1.Object{claimOf("renamed", "claim1", "")}, "PersistentVolumeClaim ops/renamed"},
		"another claim that names it":                         {[]metav1.Object{claimOf("other", "claim3", "pv1")}, "PersistentVolumeClaim ops/other"},
		"a pod of the claim that is gone":                     {[]metav1.Object{podWith("p", ofClaim("data"))}, "Pod ops/p"},
		"a pod that is called Failed while a container runs":  {[]metav1.Object{lost}, "Pod ops/p"},
		"a pod that is being deleted":                         {[]metav1.Object{terminating}, "Pod ops/p"},
		"a pod of the earlier claim":                          {[]metav1.Object{claimOf("data", "claim2", "pv2"), early}, "Pod ops/p"},
		"a pod of the second in which the new claim was made": {[]metav1.Object{claimOf("data", "claim2", "pv2"), sameSecond}, "Pod ops/p"},
		"a pod older than a new claim that is not bound":      {[]metav1.Object{claimOf("data", "claim2", ""), early}, "Pod ops/p"},
		"a static pod":                                        {[]metav1.Object{claimOf("data", "claim2", "pv2"), static}, "Pod ops/p"},
		"a static pod on a node that is not told":             {[]metav1.Object{mirrored}, "Pod ops/p"},
		"a pod of a claim that names it":                      {[]metav1.Object{claimOf("data", "claim2", "pv1"), podWith("p", ofClaim("data"))}, "PersistentVolumeClaim ops/data"},
		"an ephemeral volume":                                 {[]metav1.Object{ephemeralClaim, ephemeral}, "PersistentVolumeClaim ops/da-ta"},
		"a claim whose volume is being copied from it":        {[]metav1.Object{clone}, "PersistentVolumeClaim ops/copy"},
		"inline":                           {[]metav1.Object{podWith("p", ofExport("Server", "/exports/pv1/"))}, "Pod ops/p"},
		"inline, a directory of it":        {[]metav1.Object{podWith("p", ofExport("server", "/exports/pv1/sub"))}, "Pod ops/p"},
		"inline, the directory it is in":   {[]metav1.Object{podWith("p", ofExport("server", "/exports"))}, "Pod ops/p"},
		"another volume":                   {[]metav1.Object{exportVolume("pv2", "/exports/pv1")}, "PersistentVolume pv2"},
		"another volume in it":             {[]metav1.Object{exportVolume("pv2", "/exports/pv1/a")}, "PersistentVolume pv2"},
		"another volume around it":         {[]metav1.Object{exportVolume("pv2", "/")}, "PersistentVolume pv2"},
		"the recycler of an earlier claim": {[]metav1.Object{otherRecycler}, "Pod ops/p"},
	} {
		t.Run(name, func(t *testing.T) {
			pv := released()
			err := verifier(t, pvbuild.StoreOf(t, append(tc.others, pv)...)).VerifyReleased(t.Context(), pv)
			e, ok := errors.AsType[*release.InUseError](err)
			if !ok || e.Volume != "pv1" || e.Uses[0].By.String() != tc.by || !strings.Contains(err.Error(), tc.by) || volume.IsUncertain(err) {
				t.Errorf("err = %v, want a use by %s", err, tc.by)
			}
		})
	}
}

// Storage that nothing is stored for may go unless somebody else shows its data. The claim that
// it was made for, and that one's pods, do not.
func TestUnusedStorage(t *testing.T) {
	unstored := exportVolume("pv1", "/exports/pv1")
	for name, tc := range map[string]struct {
		others []metav1.Object
		by     string
	}{
		"nobody":                    {},
		"its claim and a pod of it": {others: []metav1.Object{claimOf("data", "claim1", ""), podWith("p", ofClaim("data"))}},
		"another export":            {others: []metav1.Object{exportVolume("pv2", "/exports/pv2")}},
		"another volume":            {[]metav1.Object{exportVolume("pv2", "/exports/pv1")}, "PersistentVolume pv2"},
		"inline":                    {[]metav1.Object{podWith("p", ofExport("server", "/exports/pv1"))}, "Pod ops/p"},
	} {
		t.Run(name, func(t *testing.T) {
			store := pvbuild.StoreOf(t, tc.others...)
			unused, ok := verifier(t, store).(volume.UnusedVerifier)
			if !ok {
				t.Fatal("it is no UnusedVerifier")
			}
			err := unused.VerifyUnused(t.Context(), unstored)
			if e, found := errors.AsType[*release.InUseError](err); found != (tc.by != "") || !found && err != nil || found && e.Uses[0].By.String() != tc.by {
				t.Errorf("err = %v, want a use by %q", err, tc.by)
			}
			cannot, _ := verifier(t, blind{store, "Pod"}).(volume.UnusedVerifier)
			if err := cannot.VerifyUnused(t.Context(), unstored); !errors.Is(err, errLookUp) || volume.IsUncertain(err) {
				t.Errorf("without a look-up: %v", err)
			}
		})
	}
}

// blind fails to look one kind up.
type blind struct {
	*objects.Store
	kind string
}

var errLookUp = errors.New("the API does not answer")

func (f blind) Get(ctx context.Context, ref volume.ObjectRef) (metav1.Object, error) {
	if ref.Kind == f.kind {
		return nil, errLookUp
	}
	return f.Store.Get(ctx, ref)
}

func (f blind) List(ctx context.Context, kind, namespace string) ([]metav1.Object, error) {
	if kind == f.kind {
		return nil, errLookUp
	}
	return f.Store.List(ctx, kind, namespace)
}

// A cache that has not heard of a use yet hides none.
func TestAStaleCacheHidesNoUse(t *testing.T) {
	for kind, user := range map[string]metav1.Object{
		"Pod":                   podWith("late", ofExport("server", "/exports/pv1")),
		"PersistentVolumeClaim": claimOf("late", "late", "pv1"),
		"PersistentVolume":      exportVolume("late", "/exports/pv1"),
	} {
		t.Run(kind, func(t *testing.T) {
			store := pvbuild.StoreOf(t, released())
			client := objectstest.NewClient(store)
			defer client.Close()
			defer client.Hold(kind)()
			if err := verifier(t, client).VerifyReleased(t.Context(), released()); err != nil {
				t.Fatalf("unused: %v", err)
			}
			if _, err := store.Create(t.Context(), user); err != nil {
				t.Fatal(err)
			}
			if _, err := client.Get(t.Context(), volume.NewObjectRef(kind, user.GetNamespace(), "late")); !errors.Is(err, volume.ErrNotFound) {
				t.Fatalf("the cache knows of it: %v", err)
			}
			inUse, ok := errors.AsType[*release.InUseError](verifier(t, client).VerifyReleased(t.Context(), released()))
			if !ok || inUse.Uses[0].By.Kind != kind {
				t.Errorf("uses: %v", inUse)
			}
		})
	}
}

func TestFailedLookUpCountsAsUse(t *testing.T) {
	pv := released()
	for _, kind := range []string{"Pod", "PersistentVolumeClaim", "PersistentVolume"} {
		err := verifier(t, blind{pvbuild.StoreOf(t, pv), kind}).VerifyReleased(t.Context(), pv)
		if !errors.Is(err, errLookUp) || !strings.Contains(err.Error(), "treating it as used") || volume.IsUncertain(err) {
			t.Errorf("without every %s: %v", kind, err)
		}
	}
	// What cannot be told apart counts as the same.
	for _, other := range []metav1.Object{podWith("p", ofExport("[server", "/exports")), exportVolume("pv2", "exports/pv1")} {
		if err := verifier(t, pvbuild.StoreOf(t, pv, other)).VerifyReleased(t.Context(), pv); err == nil || !strings.Contains(err.Error(), "treating it as used") {
			t.Errorf("with %s: %v", other.GetName(), err)
		}
	}
	unsupported := released(func(pv *v1.PersistentVolume) {
		pv.Spec.PersistentVolumeSource = v1.PersistentVolumeSource{HostPath: &v1.HostPathVolumeSource{Path: "/x"}}
	})
	if err := verifier(t, pvbuild.StoreOf(t, unsupported)).VerifyReleased(t.Context(), unsupported); err == nil {
		t.Error("a volume that no plugin knows may be destroyed")
	}
}

// changing is a store that somebody changes when one kind is listed.
type changing struct {
	*objects.Store
	kind   string
	change func()
}

func (c changing) List(ctx context.Context, kind, namespace string) ([]metav1.Object, error) {
	list, err := c.Store.List(ctx, kind, namespace)
	if kind == c.kind {
		c.change()
	}
	return list, err
}

// changesThatKeep are what somebody may do to a released volume whose data is to be
// kept from then on.
func changesThatKeep(t *testing.T, store objects.Writer) map[string]func() {
	update := func(change func(*v1.PersistentVolume)) func() {
		return func() {
			if _, err := store.Update(t.Context(), released(change)); err != nil {
				t.Error(err)
			}
		}
	}
	remove := func() {
		if err := store.Delete(t.Context(), volume.NewObjectRef("PersistentVolume", "", "pv1"), objects.Preconditions{}); err != nil {
			t.Error(err)
		}
	}
	return map[string]func(){
		"retained": update(func(pv *v1.PersistentVolume) {
			pv.Spec.PersistentVolumeReclaimPolicy = v1.PersistentVolumeReclaimRetain
		}),
		"claimed again": update(func(pv *v1.PersistentVolume) { pv.Spec.ClaimRef.UID = "claim2" }),
		"free again":    update(func(pv *v1.PersistentVolume) { pv.Spec.ClaimRef = nil }),
		"deleted":       remove,
		"made again": func() {
			remove()
			if _, err := store.Create(t.Context(), released(func(pv *v1.PersistentVolume) { pv.UID = "uid2" })); err != nil {
				t.Error(err)
			}
		},
	}
}

// Whatever the look at its users takes, the volume itself is read after that: who has
// kept it meanwhile has kept it.
func TestAVolumeIsReadLast(t *testing.T) {
	for name := range changesThatKeep(t, nil) {
		for _, last := range []string{"PersistentVolumeClaim", "PersistentVolume", "Pod", "other uses"} {
			t.Run(name+" after "+last, func(t *testing.T) {
				store := pvbuild.StoreOf(t, released())
				keep := sync.OnceFunc(changesThatKeep(t, store)[name])
				verify := verifier(t, changing{store, last, keep}).(*release.Verifier)
				if last == "other uses" {
					verify.OtherUses = func(context.Context, *v1.PersistentVolume) ([]release.Use, error) {
						keep()
						return nil, nil
					}
				}
				err := verify.VerifyReleased(t.Context(), released())
				if kept, ok := errors.AsType[*release.NotReleasedError](err); !ok || kept.Volume != "pv1" || volume.IsUncertain(err) {
					t.Errorf("err = %v", err)
				}
			})
		}
	}
}

// Uses that no object tells of are asked for after the objects, and count as these.
func TestOtherUsesKeepAVolume(t *testing.T) {
	listed := false
	verify := verifier(t, changing{pvbuild.StoreOf(t, released()), "Pod", func() { listed = true }}).(*release.Verifier)
	var uses []release.Use
	var failure error
	verify.OtherUses = func(_ context.Context, pv *v1.PersistentVolume) ([]release.Use, error) {
		if !listed || pv.Name != "pv1" {
			t.Errorf("asked for %s, after the pods: %v", pv.Name, listed)
		}
		return uses, failure
	}
	if err := verify.VerifyReleased(t.Context(), released()); err != nil {
		t.Errorf("no use: %v", err)
	}
	uses = []release.Use{{By: volume.NewObjectRef("Pod", "ops", "p"), How: "it is mounted"}}
	if err := verify.VerifyReleased(t.Context(), released()); !errors.Is(err, volume.ErrInUse) || !strings.Contains(err.Error(), "Pod ops/p (it is mounted)") || volume.IsUncertain(err) {
		t.Errorf("a use: %v", err)
	}
	uses, failure = nil, errLookUp
	if err := verify.VerifyReleased(t.Context(), released()); !errors.Is(err, errLookUp) || !strings.Contains(err.Error(), "treating it as used") || volume.IsUncertain(err) {
		t.Errorf("a failed look-up: %v", err)
	}
}

func TestUsesAreNamedWithinReason(t *testing.T) {
	pv := released()
	all := []metav1.Object{pv}
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		all = append(all, podWith(name, ofClaim("data")))
	}
	err := verifier(t, pvbuild.StoreOf(t, all...)).VerifyReleased(t.Context(), pv)
	if e, ok := errors.AsType[*release.InUseError](err); !ok || len(e.Uses) != 5 || !strings.Contains(err.Error(), "2 more") {
		t.Errorf("err = %v", err)
	}
}
