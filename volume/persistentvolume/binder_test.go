package persistentvolume_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/persistentvolume"
)

func storeOf(t testing.TB, all ...metav1.Object) *objects.Store {
	t.Helper()
	s := objects.NewStore()
	for _, o := range all {
		if _, err := s.Create(context.Background(), o); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

func podOf(claims ...string) *v1.Pod {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ops", Name: "pod", UID: "pod"}}
	for _, c := range claims {
		p.Spec.Volumes = append(p.Spec.Volumes, v1.Volume{Name: c, VolumeSource: v1.VolumeSource{
			PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: c},
		}})
	}
	return p
}

func binder(s persistentvolume.Objects, dir string) *persistentvolume.Binder {
	return &persistentvolume.Binder{Objects: s, LedgerDir: dir, NodeName: "node1"}
}

func getClaim(t testing.TB, s objects.Source, name string) *v1.PersistentVolumeClaim {
	t.Helper()
	c, err := objects.Get[*v1.PersistentVolumeClaim](context.Background(), s, volume.NewObjectRef("PersistentVolumeClaim", "ops", name))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func getPV(t testing.TB, s objects.Source, name string) *v1.PersistentVolume {
	t.Helper()
	pv, err := objects.Get[*v1.PersistentVolume](context.Background(), s, volume.NewObjectRef("PersistentVolume", "", name))
	if err != nil {
		t.Fatal(err)
	}
	return pv
}

func TestBindPods(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "bindings")
	s := storeOf(t, newPV("a", "1Gi"), newPV("b", "2Gi"), newClaim("first", "1Gi"), newClaim("second", "1Gi", naming("a")), newClaim("unused", "1Gi"))
	for range 2 { // the second call finds everything done
		if err := binder(s, dir).BindPods(t.Context(), []*v1.Pod{podOf("first", "second"), podOf("second")}); err != nil {
			t.Fatal(err)
		}
	}
	for claim, pv := range map[string]string{"first": "b", "second": "a"} {
		c, v := getClaim(t, s, claim), getPV(t, s, pv)
		if err := volume.CheckBinding(c, v); err != nil {
			t.Errorf("the node refuses it: %v", err)
		}
		if c.Annotations["pv.kubernetes.io/bind-completed"] != "yes" || (c.Annotations["pv.kubernetes.io/bound-by-controller"] == "yes") != (claim == "first") {
			t.Errorf("%s has annotations %v", claim, c.Annotations)
		}
		if v.Status.Phase != v1.VolumeBound || c.Status.Capacity.Storage().IsZero() || v.Annotations["pv.kubernetes.io/bound-by-controller"] != "yes" {
			t.Errorf("%s: status %v of the volume, %v of the claim", claim, v.Status, c.Status)
		}
		info, err := os.Stat(filepath.Join(dir, pv+".json"))
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("record: %v, %v", info, err)
		}
	}
	if c := getClaim(t, s, "unused"); c.Spec.VolumeName != "" {
		t.Error("a claim that no pod uses was bound")
	}
}

func TestEveryClaimGetsItsOwnError(t *testing.T) {
	s := storeOf(t, newPV("a", "1Gi"), newPV("taken", "9Gi", forClaim("other", "")),
		newClaim("fits", "1Gi"), newClaim("large", "5Gi"), newClaim("stolen", "1Gi", naming("taken")), newClaim("lost", "1Gi", naming("nix")))
	err := binder(s, t.TempDir()).BindPods(t.Context(), []*v1.Pod{podOf("missing", "large", "stolen", "lost", "fits")})
	failed, ok := errors.AsType[*persistentvolume.PodsError](err)
	if !ok {
		t.Fatalf("err = %v", err)
	}
	got := make(map[string]error)
	for _, unbound := range failed.Unbound {
		got[unbound.Claim.Name] = unbound
		if !errors.Is(err, unbound) || !strings.Contains(err.Error(), unbound.Error()) {
			t.Errorf("%v does not hold %v", err, unbound)
		}
	}
	for claim, want := range map[string]error{
		"missing": volume.ErrNotFound, "large": volume.ErrClaimUnbound, "stolen": volume.ErrBoundElsewhere, "lost": volume.ErrClaimLost,
	} {
		if !errors.Is(got[claim], want) {
			t.Errorf("%s: %v, want %v", claim, got[claim], want)
		}
	}
	if len(got) != 4 || getClaim(t, s, "fits").Spec.VolumeName != "a" {
		t.Errorf("errors %v; want the claim that fits to be bound beside them", got)
	}
}

func TestTheLedgerOutranksTheStore(t *testing.T) {
	dir := t.TempDir()
	manifests := func(uid types.UID) *objects.Store {
		return storeOf(t, newPV("a", "1Gi"), newPV("b", "2Gi"), newClaim("data", "1Gi", func(c *v1.PersistentVolumeClaim) { c.UID = uid }), newClaim("other", "1Gi"))
	}
	first := manifests("one")
	if err := binder(first, dir).BindPods(t.Context(), []*v1.Pod{podOf("data")}); err != nil {
		t.Fatal(err)
	}
	t.Run("the store forgets, the claim gets its volume again", func(t *testing.T) {
		s := manifests("one")
		if err := binder(s, dir).BindPods(t.Context(), []*v1.Pod{podOf("other", "data")}); err != nil {
			t.Fatal(err)
		}
		if data, other := getClaim(t, s, "data").Spec.VolumeName, getClaim(t, s, "other").Spec.VolumeName; data != "a" || other != "b" {
			t.Errorf("data has %q, other %q; want a and b as before", data, other)
		}
	})
	t.Run("a claim made again does not see the old data", func(t *testing.T) {
		s := manifests("two")
		err := binder(s, dir).BindPods(t.Context(), []*v1.Pod{podOf("data")})
		if !errors.Is(err, volume.ErrClaimUnbound) || getClaim(t, s, "data").Spec.VolumeName != "" {
			t.Errorf("err = %v; want no volume left for it", err)
		}
	})
	t.Run("not even by name", func(t *testing.T) {
		s := storeOf(t, newPV("a", "1Gi", forClaim("thief", "")), newClaim("thief", "1Gi", naming("a")))
		if err := binder(s, dir).BindPods(t.Context(), []*v1.Pod{podOf("thief")}); !errors.Is(err, volume.ErrBoundElsewhere) {
			t.Errorf("err = %v", err)
		}
	})
	t.Run("the volume is gone", func(t *testing.T) {
		s := storeOf(t, newPV("c", "1Gi"), newClaim("data", "1Gi", func(c *v1.PersistentVolumeClaim) { c.UID = "one" }))
		if err := binder(s, dir).BindPods(t.Context(), []*v1.Pod{podOf("data")}); !errors.Is(err, volume.ErrClaimLost) {
			t.Errorf("err = %v; want no other volume in its place", err)
		}
	})
	t.Run("a damaged record stops everything", func(t *testing.T) {
		damaged := filepath.Join(dir, "z.json")
		if err := os.WriteFile(damaged, []byte("{"), 0o600); err != nil {
			t.Fatal(err)
		}
		s := storeOf(t, newPV("c", "1Gi"), newClaim("new", "1Gi"))
		err := binder(s, dir).BindPods(t.Context(), []*v1.Pod{podOf("new")})
		if err == nil || !strings.Contains(err.Error(), damaged) || getClaim(t, s, "new").Spec.VolumeName != "" {
			t.Errorf("err = %v", err)
		}
	})
}

// failing is a store whose n-th write fails, and those after it.
type failing struct {
	*objects.Store
	left int
	err  error
}

func (f *failing) Update(ctx context.Context, o metav1.Object) (metav1.Object, error) {
	if f.left--; f.left < 0 {
		return nil, f.err
	}
	return f.Store.Update(ctx, o)
}

func (f *failing) UpdateStatus(ctx context.Context, o metav1.Object) (metav1.Object, error) {
	if f.left--; f.left < 0 {
		return nil, f.err
	}
	return f.Store.UpdateStatus(ctx, o)
}

func TestACrashBetweenAnyTwoWritesIsRepaired(t *testing.T) {
	crash := errors.New("power cut")
	for writes := range 4 {
		t.Run(fmt.Sprintf("after %d writes to the store", writes), func(t *testing.T) {
			dir := t.TempDir()
			s := storeOf(t, newPV("a", "2Gi"), newClaim("data", "1Gi"), newClaim("rival", "1Gi"))
			if err := binder(&failing{s, writes, crash}, dir).BindPods(t.Context(), []*v1.Pod{podOf("data")}); !errors.Is(err, crash) {
				t.Fatalf("err = %v", err)
			}
			// Meanwhile a smaller volume appears, and a rival asks first.
			if _, err := s.Create(t.Context(), newPV("smaller", "1Gi")); err != nil {
				t.Fatal(err)
			}
			if err := binder(s, dir).BindPods(t.Context(), []*v1.Pod{podOf("rival"), podOf("data")}); err != nil {
				t.Fatal(err)
			}
			if err := volume.CheckBinding(getClaim(t, s, "data"), getPV(t, s, "a")); err != nil {
				t.Errorf("the claim did not get the recorded volume: %v", err)
			}
		})
	}
}

func TestAVolumeThatIsTakenMeanwhileIsLeft(t *testing.T) {
	dir := t.TempDir()
	s := storeOf(t, newPV("a", "1Gi"), newPV("b", "2Gi"), newClaim("data", "1Gi"))
	thief := &racing{Store: s, steal: func() {
		pv := getPV(t, s, "a").DeepCopy()
		pv.Spec.ClaimRef = &v1.ObjectReference{Namespace: "ops", Name: "thief", UID: "thief"}
		if _, err := s.Update(t.Context(), pv); err != nil {
			t.Error(err)
		}
	}}
	if err := binder(thief, dir).BindPods(t.Context(), []*v1.Pod{podOf("data")}); err != nil {
		t.Fatal(err)
	}
	if got := getClaim(t, s, "data").Spec.VolumeName; got != "b" {
		t.Errorf("bound to %q, want b", got)
	}
	if _, err := os.Stat(filepath.Join(dir, "a.json")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the record of the binding that never was is still there: %v", err)
	}
}

func TestAVolumeThatAnotherClaimNamesIsLeft(t *testing.T) {
	s := storeOf(t, newPV("a", "1Gi"), newPV("b", "2Gi"), newClaim("data", "1Gi"), newClaim("later", "1Gi", naming("a")))
	if err := binder(s, t.TempDir()).BindPods(t.Context(), []*v1.Pod{podOf("data")}); err != nil {
		t.Fatal(err)
	}
	if got := getClaim(t, s, "data").Spec.VolumeName; got != "b" {
		t.Errorf("bound to %q, want b", got)
	}
}

func TestAVolumeThatVanishesMeanwhileIsLeft(t *testing.T) {
	dir := t.TempDir()
	s := storeOf(t, newPV("a", "1Gi"), newPV("b", "2Gi"), newClaim("data", "1Gi"))
	deleted := &racing{Store: s, steal: func() {
		if err := s.Delete(t.Context(), volume.NewObjectRef("PersistentVolume", "", "a"), objects.Preconditions{}); err != nil {
			t.Error(err)
		}
	}}
	if err := binder(deleted, dir).BindPods(t.Context(), []*v1.Pod{podOf("data")}); err != nil {
		t.Fatal(err)
	}
	if got := getClaim(t, s, "data").Spec.VolumeName; got != "b" {
		t.Errorf("bound to %q, want b", got)
	}
	if got := records(t, dir); len(got) != 1 || got[0] != filepath.Join(dir, "b.json") {
		t.Errorf("records %v", got)
	}
}

// racing is a store in which somebody else is faster, once.
type racing struct {
	*objects.Store
	once  sync.Once
	steal func()
}

func (r *racing) Update(ctx context.Context, o metav1.Object) (metav1.Object, error) {
	r.once.Do(r.steal)
	return r.Store.Update(ctx, o)
}

func TestBindersWaitForEachOther(t *testing.T) {
	dir := t.TempDir()
	stores := make([]*objects.Store, 8)
	var wg sync.WaitGroup
	for i := range stores {
		claim := newClaim(fmt.Sprintf("c%d", i), "1Gi")
		stores[i] = storeOf(t, claim)
		for n := range stores {
			if _, err := stores[i].Create(t.Context(), newPV(fmt.Sprintf("pv%d", n), "1Gi")); err != nil {
				t.Fatal(err)
			}
		}
		wg.Go(func() {
			if err := binder(stores[i], dir).BindPods(t.Context(), []*v1.Pod{podOf(claim.Name)}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	seen := make(map[string]bool)
	for i, s := range stores {
		name := getClaim(t, s, fmt.Sprintf("c%d", i)).Spec.VolumeName
		if name == "" || seen[name] {
			t.Errorf("claim %d has volume %q, which is nobody's or another's", i, name)
		}
		seen[name] = true
	}
}

func TestEndedContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	s := storeOf(t, newPV("a", "1Gi"), newClaim("data", "1Gi"))
	if err := binder(s, t.TempDir()).BindPods(ctx, []*v1.Pod{podOf("data")}); !errors.Is(err, context.Canceled) {
		t.Errorf("err = %v", err)
	}
}

// Whatever is asked for in whatever order, with stores that forget and
// binders that die: no volume ever has two claims.
func TestNoVolumeEverHasTwoClaims(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		dir, err := os.MkdirTemp("", "ledger")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(dir)
		owner := make(map[string]types.UID)
		for range rapid.IntRange(1, 6).Draw(t, "rounds") {
			round(t, dir, owner)
		}
	})
}

func round(t *rapid.T, dir string, owner map[string]types.UID) {
	ctx := context.Background()
	s := objects.NewStore()
	for i := range rapid.IntRange(0, 4).Draw(t, "volumes") {
		size := fmt.Sprintf("%dGi", rapid.IntRange(1, 3).Draw(t, "size"))
		var options []pvOption
		if rapid.Bool().Draw(t, "pre-bound") {
			options = append(options, forClaim(fmt.Sprintf("c%d", rapid.IntRange(0, 3).Draw(t, "for")), ""))
		}
		if _, err := s.Create(ctx, newPV(fmt.Sprintf("pv%d", i), size, options...)); err != nil {
			t.Fatal(err)
		}
	}
	var names []string
	for i := range rapid.IntRange(0, 4).Draw(t, "claims") {
		c := newClaim(fmt.Sprintf("c%d", i), fmt.Sprintf("%dGi", rapid.IntRange(1, 3).Draw(t, "request")))
		c.UID = types.UID(fmt.Sprintf("%s-%d", c.Name, rapid.IntRange(0, 1).Draw(t, "generation")))
		if rapid.Bool().Draw(t, "names a volume") {
			c.Spec.VolumeName = fmt.Sprintf("pv%d", rapid.IntRange(0, 3).Draw(t, "named"))
		}
		if _, err := s.Create(ctx, c); err != nil {
			t.Fatal(err)
		}
		names = append(names, c.Name)
	}
	store := &failing{s, rapid.IntRange(0, 20).Draw(t, "writes"), errors.New("power cut")}
	_ = binder(store, dir).BindPods(ctx, []*v1.Pod{podOf(names...)}) // what cannot be bound is not the point here
	claims, err := objects.List[*v1.PersistentVolumeClaim](ctx, s, "PersistentVolumeClaim", "")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range claims {
		if c.Status.Phase != v1.ClaimBound {
			continue
		}
		if uid, had := owner[c.Spec.VolumeName]; had && uid != c.UID {
			t.Fatalf("volume %s was %s's and is now %s's", c.Spec.VolumeName, uid, c.UID)
		}
		owner[c.Spec.VolumeName] = c.UID
	}
}
