package volumetest

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"sync"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/volumetest/internal/specs"
	"github.com/podvol/podvol/volume/volumetest/internal/tree"
)

// provisionChecks are about storage that the plugin makes and deletes. Beside it
// lies the storage of another claim, which must never change.
func provisionChecks() []check {
	makes := capable("ProvisionableVolumePlugin", volume.AsProvisionable)
	made := func(f func(deed, *kit)) func(*kit, StorageCase) {
		return func(k *kit, c StorageCase) { f(provisionDeed(c), k) }
	}
	return []check{
		{
			name:    "provision/made",
			proves:  "Provision makes storage that the plugin supports and mounts, of at least the size and under the name that was asked for; repeating it, also by a new process, returns the same with its data.",
			needs:   makes,
			storage: checkProvision,
		},
		{
			name:     "provision/refused",
			proves:   "NewProvisioner refuses parameters that it does not know.",
			fakeOnly: true,
			needs:    makes,
			storage:  checkUnknownParameter,
		},
		{
			name:    "provision/faults",
			proves:  "Whichever call fails during Provision, the error keeps its cause, and another Provision makes the storage; no more is made than Delete deletes, and no mount is left.",
			needs:   makes,
			storage: made(deed.sweepFaults),
		},
		{
			name:    "provision/crash",
			proves:  "At whichever call the process dies during Provision, Provision of a new process makes the storage; no more is made than Delete deletes, and no mount is left.",
			needs:   makes,
			storage: made(deed.sweepCrashes),
		},
		{
			name:    "provision/cancel",
			proves:  "When the context ends before Provision, during it or while calls hang, it returns half a minute later at the latest with the cause, and another Provision makes the storage.",
			needs:   makes,
			storage: made(deed.sweepEnds),
		},
		{
			name:    "provision/same-claim",
			proves:  "Provision for one claim may be called several times at once, also by a controller of another node: at least one call succeeds, what succeeds returns the same storage, and no more is made than Delete deletes.",
			needs:   makes,
			storage: checkSameClaim,
		},
		{
			name:    "provision/several-claims",
			proves:  "Several claims are provisioned and deleted at once; each has storage of its own, and the deletion of one leaves the others.",
			needs:   makes,
			storage: checkSeveralClaims,
		},
	}
}

// deleteChecks are those of Delete, with what Provision has made.
func deleteChecks() []check {
	makes := capable("ProvisionableVolumePlugin", volume.AsProvisionable)
	both := &capability{name: "DeletableVolumePlugin and ProvisionableVolumePlugin", has: func(p volume.VolumePlugin) bool {
		_, deletes := volume.AsDeletable(p)
		return makes.has(p) && deletes
	}}
	deleted := func(f func(deed, *kit)) func(*kit, StorageCase) {
		return func(k *kit, c StorageCase) { f(deleteDeed(c), k) }
	}
	return []check{
		{
			name:    "delete/provisioned",
			proves:  "Delete deletes what Provision has made and nothing beside it; deleting what is gone, also by a new process, succeeds and deletes nothing.",
			needs:   both,
			storage: checkDelete,
		},
		{
			name:    "delete/released",
			proves:  "Delete deletes nothing where the host's ReleaseVerifier says that the data must not be destroyed, and keeps its reason.",
			needs:   both,
			storage: checkDeleteNotReleased,
		},
		{
			name:   "delete/given",
			proves: "Delete of a volume that another provisioner has made either refuses it, which leaves all its data, or deletes it; it never touches anything outside, and may be repeated.",
			needs:  capable("DeletableVolumePlugin", volume.AsDeletable),
			each:   checkDeleteGiven,
		},
		{
			name:    "delete/faults",
			proves:  "Whichever call fails during Delete, the error keeps its cause, and another Delete deletes the rest, nothing of others, and leaves no mount.",
			needs:   both,
			storage: deleted(deed.sweepFaults),
		},
		{
			name:    "delete/crash",
			proves:  "At whichever call the process dies during Delete, Delete of a new process deletes the rest, nothing of others, and leaves no mount.",
			needs:   both,
			storage: deleted(deed.sweepCrashes),
		},
		{
			name:    "delete/cancel",
			proves:  "When the context ends before Delete, during it or while calls hang, it returns half a minute later at the latest with the cause, and another Delete deletes the rest.",
			needs:   both,
			storage: deleted(deed.sweepEnds),
		},
	}
}

func (n *Node) canDelete() bool {
	_, ok := volume.AsDeletable(n.sim.Plugin)
	return ok
}

func checkProvision(k *kit, c StorageCase) {
	n := k.storageNode(c)
	s := n.claimed(c, "claim")
	s.mustProvision(k)
	if want := s.Options().PVName; s.PV.Name != want {
		k.Errorf("the PersistentVolume is named %q, want %q", s.PV.Name, want)
	}
	if got, want := s.PV.Spec.Capacity[v1.ResourceStorage], resource.MustParse(oldSize); got.Cmp(want) < 0 {
		k.Errorf("the PersistentVolume has a capacity of %v, want at least %v", &got, &want)
	}
	if diff := cmp.Diff(s.Options().PVC.Spec.AccessModes, s.PV.Spec.AccessModes); diff != "" {
		k.Errorf("the PersistentVolume has other access modes (-claim +volume):\n%s", diff)
	}
	if !n.sim.Plugin.CanSupport(volume.NewSpecFromPersistentVolume(s.PV, false)) {
		k.Errorf("the plugin does not support what it has provisioned")
	}
	s.write(k)
	for _, again := range []*Node{n, n.restart()} {
		s.on(again).mustProvision(k)
		s.on(again).assertData(k)
		again.sim.AssertNothingHeld(k)
	}
}

func checkUnknownParameter(k *kit, c StorageCase) {
	n := k.storageNode(c)
	p, _ := volume.AsProvisionable(n.sim.Plugin)
	options := n.claimed(c, "claim").Options()
	if _, err := p.NewProvisioner(options); err != nil {
		k.Fatalf("NewProvisioner with the case's own parameters: %v", err)
	}
	if options.Parameters == nil {
		options.Parameters = map[string]string{}
	}
	options.Parameters["no-such-parameter"] = "value"
	if _, err := p.NewProvisioner(options); err == nil {
		k.Errorf("NewProvisioner accepts the parameter no-such-parameter")
	}
	assertUntouched(k, n.Host)
}

func provisionDeed(c StorageCase) deed {
	return deed{name: "Provision", begin: func(k *kit) *trial {
		n := k.storageNode(c)
		other := n.neighbour(k, c)
		before := tree.Snapshot(k, n.Dir)
		s := n.claimed(c, "claim")
		return &trial{
			node: n,
			run: func(ctx context.Context) error {
				pv, err := s.Provision(ctx)
				if err == nil {
					s.PV = pv
				}
				return err
			},
			converge: func(n *Node) {
				k.Helper()
				s := s.on(n)
				s.mustProvision(k)
				s.write(k)
				s.mustProvision(k)
				s.assertData(k)
				n.sim.AssertNothingHeld(k)
				if n.canDelete() {
					s.mustDelete(k)
					s.assertDeleted(k, before)
				}
				other.on(n).assertData(k)
			},
		}
	}}
}

func deleteDeed(c StorageCase) deed {
	return deed{name: "Delete", begin: func(k *kit) *trial {
		n := k.storageNode(c)
		other := n.neighbour(k, c)
		before := tree.Snapshot(k, n.Dir)
		s := n.claimed(c, "claim")
		s.mustProvision(k)
		s.write(k)
		return &trial{
			node: n,
			run:  s.Delete,
			converge: func(n *Node) {
				k.Helper()
				s := s.on(n)
				s.mustDelete(k)
				s.assertDeleted(k, before)
				other.on(n).assertData(k)
				n.sim.AssertNothingHeld(k)
			},
		}
	}}
}

func checkDelete(k *kit, c StorageCase) {
	t := deleteDeed(c).begin(k)
	if err := t.run(k.Context()); err != nil {
		k.Fatalf("Delete: %v", err)
	}
	t.converge(t.node)
	t.converge(t.node.restart())
	s := t.node.claimed(c, "later")
	s.mustProvision(k)
	s.write(k)
	s.mustDelete(k)
	if !c.Keeps {
		s.assertNoData(k)
	}
	// Another life of the same claim's storage, of which a pod never used any.
	before := tree.Snapshot(k, t.node.Dir)
	unused := t.node.claimed(c, "unused")
	for range 2 {
		unused.mustProvision(k)
		unused.mustDelete(k)
		if !c.Keeps {
			unused.assertDeleted(k, before)
		}
	}
}

func checkDeleteNotReleased(k *kit, c StorageCase) {
	n := k.storageNode(c)
	s := n.claimed(c, "claim")
	s.mustProvision(k)
	s.write(k)
	n.Releases = refuser{}
	before := tree.Snapshot(k, n.Dir)
	assertInUse(k, "Delete", s.Delete(k.Context()))
	tree.AssertSame(k, "storage in use", before, tree.Snapshot(k, n.Dir))
	s.assertData(k)
	n.sim.AssertNothingHeld(k)
}

func checkSameClaim(k *kit, c StorageCase) {
	n := k.storageNode(c)
	peer := n.peer(k, c)
	before := tree.Snapshot(k, n.Dir)
	results := make([]*v1.PersistentVolume, workers)
	var group sync.WaitGroup
	for i := range workers {
		s := n.claimed(c, "claim")
		if i%2 == 1 {
			s = s.on(peer)
		}
		group.Go(func() {
			defer k.Catch()
			pv, err := s.Provision(k.Context())
			if err != nil {
				k.Logf("Provision at once with others: %v", err)
				return
			}
			results[i] = pv
		})
	}
	group.Wait()
	if !slices.ContainsFunc(results, func(pv *v1.PersistentVolume) bool { return pv != nil }) {
		k.Errorf("none of %d concurrent calls of Provision succeeds", workers)
	}
	s := n.claimed(c, "claim")
	s.mustProvision(k)
	for _, pv := range results {
		if diff := cmp.Diff(s.PV, pv); pv != nil && diff != "" {
			k.Errorf("Provision at once with others has returned another PersistentVolume (-last +another):\n%s", diff)
		}
	}
	s.write(k)
	s.assertData(k)
	n.sim.AssertNothingHeld(k)
	if n.canDelete() {
		s.mustDelete(k)
		s.assertDeleted(k, before)
	}
}

func checkSeveralClaims(k *kit, c StorageCase) {
	n := k.storageNode(c)
	other := n.neighbour(k, c)
	before := tree.Snapshot(k, n.Dir)
	all := make([]*claimed, workers)
	atOnce := func(what string, f func(*claimed) error) {
		k.Helper()
		var group sync.WaitGroup
		for _, s := range all {
			group.Go(func() {
				defer k.Catch()
				if err := f(s); err != nil {
					k.Errorf("%s of claim %s at once with others: %v", what, s.Name, err)
				}
			})
		}
		group.Wait()
		if k.Failed() {
			k.FailNow()
		}
	}
	for i := range all {
		all[i] = n.claimed(c, fmt.Sprintf("claim%d", i))
	}
	atOnce("Provision", func(s *claimed) (err error) {
		s.PV, err = s.Provision(k.Context())
		return err
	})
	for _, s := range all {
		s.write(k)
	}
	for _, s := range all {
		s.assertData(k)
	}
	n.sim.AssertNothingHeld(k)
	if n.canDelete() {
		all[0].mustDelete(k)
		for _, s := range all[1:] {
			s.assertData(k)
		}
		atOnce("Delete", func(s *claimed) error { return s.Delete(k.Context()) })
		if !c.Keeps {
			tree.AssertSame(k, "after Delete, what lies where the storage was", before, tree.Snapshot(k, n.Dir))
		}
	}
	other.assertData(k)
}

func checkDeleteGiven(k *kit, c Case) {
	n := k.node(c)
	v := n.volume("a")
	if v.Spec.PersistentVolume == nil || v.GetAttributes().ReadOnly {
		return // reclaim policies are for others
	}
	outside := k.outside()
	beforeOutside := tree.Snapshot(k, outside)
	v.litter(k, outside)
	before := tree.Snapshot(k, n.Dir)
	p, _ := volume.AsDeletable(n.sim.Plugin)
	refused := false
	for range 2 {
		d, err := p.NewDeleter(specs.ToDelete(v.Spec))
		if err == nil {
			err = d.Delete(k.Context())
		}
		if err != nil {
			k.Logf("refused: %v", err)
			tree.AssertSame(k, "a volume whose deletion was refused", before, tree.Snapshot(k, n.Dir))
			refused = true
		} else if refused {
			k.Errorf("Delete succeeds after it was refused")
		}
		n.sim.AssertNothingHeld(k)
		n.assertUntouchedOutside(k, outside, beforeOutside)
	}
	if refused {
		v.MustSetUp()
		v.assertFile(filepath.Join(v.GetPath(), own("deep/er/file")), File{Content: "data"})
		v.MustTearDown()
	}
}
