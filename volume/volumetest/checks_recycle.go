package volumetest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/volumetest/internal/specs"
	"github.com/podvol/podvol/volume/volumetest/internal/tree"
)

// recycleChecks are about Recycle, of cases that are PersistentVolumes which
// can be written to.
func recycleChecks() []check {
	of := func(f func(deed, *kit)) func(*kit, Case) {
		return func(k *kit, c Case) {
			if isRecyclable(k, c) {
				f(recycleDeed(c), k)
			}
		}
	}
	recyclable := capable("RecyclableVolumePlugin", volume.AsRecyclable)
	return []check{
		{
			name:   "recycle/empties",
			proves: "Recycle removes everything below the volume and never a step outside it, and may be repeated.",
			needs:  recyclable,
			each: of(func(d deed, k *kit) {
				t := d.begin(k)
				if err := t.run(k.Context()); err != nil {
					k.Fatalf("Recycle: %v", err)
				}
				t.converge(t.node)
			}),
		},
		{
			name:   "recycle/released",
			proves: "Recycle removes nothing where the host's ReleaseVerifier says that the data must not be destroyed, and keeps its reason.",
			needs:  recyclable,
			each:   checkNotReleased,
		},
		{
			name:   "recycle/faults",
			proves: "Whichever call fails during Recycle, the error keeps its cause, and another Recycle empties the volume and leaves no mount.",
			needs:  recyclable,
			each:   of(deed.sweepFaults),
		},
		{
			name:   "recycle/crash",
			proves: "At whichever call the process dies during Recycle, Recycle of a new process empties the volume and leaves no mount.",
			needs:  recyclable,
			each:   of(deed.sweepCrashes),
		},
		{
			name:   "recycle/cancel",
			proves: "When the context ends before Recycle, during it or while calls hang, it returns half a minute later at the latest with the cause, and another Recycle empties the volume.",
			needs:  recyclable,
			each:   of(deed.sweepEnds),
		},
	}
}

// isRecyclable is false of cases that no reclaim policy is for.
func isRecyclable(k *kit, c Case) bool {
	v := k.node(c).volume("a")
	return v.Spec.PersistentVolume != nil && !v.GetAttributes().ReadOnly
}

// litter gives the volume what a claim left in it.
func (v *podVolume) litter(k *kit, outside string) {
	k.Helper()
	v.MustSetUp()
	tree.Write(k, v.GetPath(), map[string]string{own(".hidden"): "data", own("deep/er/file"): "data"})
	for _, name := range []string{own("link"), own("deep/link")} {
		if err := os.Symlink(outside, filepath.Join(v.GetPath(), name)); err != nil {
			k.Fatal(err)
		}
	}
	v.MustTearDown()
}

func recycleDeed(c Case) deed {
	return deed{name: "Recycle", begin: func(k *kit) *trial {
		n := k.node(c)
		outside := k.outside()
		before := tree.Snapshot(k, outside)
		v := n.volume("a")
		v.litter(k, outside)
		spec := specs.ToRecycle(v.Spec)
		given := specs.Copy(spec)
		return &trial{
			node: n,
			run:  func(ctx context.Context) error { return n.sim.Recycle(ctx, spec) },
			converge: func(n *Node) {
				k.Helper()
				for range 2 {
					if err := n.sim.Recycle(k.Context(), given); err != nil {
						k.Fatalf("Recycle: %v", err)
					}
					n.sim.AssertNothingHeld(k)
				}
				v.same(n).assertEmpty(k)
				n.assertUntouchedOutside(k, outside, before)
			},
		}
	}}
}

// assertEmpty looks at the volume as its next claim's pod does.
func (v *podVolume) assertEmpty(k *kit) {
	k.Helper()
	v.MustSetUp()
	entries, err := os.ReadDir(v.GetPath())
	if err != nil || len(entries) > 0 {
		k.Errorf("after Recycle the volume contains %v, %v", entries, err)
	}
	v.MustTearDown()
}

func checkNotReleased(k *kit, c Case) {
	if !isRecyclable(k, c) {
		return
	}
	n := k.node(c)
	n.Releases = refuser{}
	v := n.volume("a")
	v.MustSetUp()
	tree.Write(k, v.GetPath(), map[string]string{own("data/of-a-pod"): "data"})
	before := tree.Snapshot(k, v.GetPath())
	assertInUse(k, "Recycle", n.sim.Recycle(k.Context(), specs.ToRecycle(v.Spec)))
	tree.AssertSame(k, "a volume in use", before, tree.Snapshot(k, v.GetPath()))
	v.MustTearDown()
	n.sim.AssertNothingHeld(k)
}

// inUseError says that data is in use that was to be destroyed.
type inUseError struct{ pv string }

func (e *inUseError) Error() string { return fmt.Sprintf("a pod uses %s", e.pv) }

// refuser lets nothing be destroyed.
type refuser struct{}

// VerifyReleased implements [volume.ReleaseVerifier].
func (refuser) VerifyReleased(_ context.Context, pv *v1.PersistentVolume) error {
	return &inUseError{pv.Name}
}

// assertInUse fails unless the error is the refuser's.
func assertInUse(k *kit, what string, err error) {
	k.Helper()
	if _, ok := errors.AsType[*inUseError](err); !ok {
		k.Errorf("%s of a volume that is in use = %v, want the reason of the ReleaseVerifier", what, err)
	}
}
