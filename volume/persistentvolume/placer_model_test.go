package persistentvolume_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/podvol/podvol/util/testenv/pvbuild"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/claimbinding"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/persistentvolume"
	"github.com/podvol/podvol/volume/persistentvolume/index"
)

// The same as [persistentvolume.TestControllerConverges] among pods that are placed, or are not
// after all, and users who pin claims, change policies and take finalizers away.
// No process is started anew at the end unless the last has died: nobody must have
// been forgotten.
func TestPlacementsConverge(t *testing.T) {
	do := []string{"claim", "made claim", "named claim", "waiting claim", "waiting claim", "waiting made claim", "waiting named claim", "local volume", "local volume", "recycled volume",
		"place", "place", "commit", "rollback", "place and commit", "place and commit", "pod", "delete pod", "name", "change policy", "change policy", "drop finalizers", "pre-bind",
		"delete claim", "delete volume", "delete made volume", "free volume", "annotate claim", "break storage", "mend storage", "crash", "restart", "lag", "catch up"}
	do = append(do, troublesOfTheAPI()...)
	one := rapid.Custom(func(t *rapid.T) action {
		return action{
			Do:    rapid.SampledFrom(do).Draw(t, "do"),
			Claim: rapid.IntRange(0, 2).Draw(t, "claim"), Vol: rapid.IntRange(0, 2).Draw(t, "volume"),
			Size:  rapid.IntRange(1, 2).Draw(t, "size"),
			Pause: rapid.SampledFrom([]time.Duration{0, 0, time.Millisecond, time.Minute}).Draw(t, "pause"),
		}
	})
	rapid.Check(t, func(rt *rapid.T) {
		actions := rapid.SliceOfN(one, 25, 60).Draw(rt, "actions")
		var failure error
		synctest.Test(t, func(t *testing.T) {
			p := &placements{world: newWorld(t, storageClass("made", made), storageClass("wait", waitForConsumer), storageClass("wait-made", made, waitForConsumer),
				newNode("node1"), newNode("node2")).withStorage()}
			failure = p.play(actions)
		})
		if failure != nil {
			rt.Fatal(failure)
		}
	})
}

// placements is a cluster in which one pod at most is being placed.
type placements struct {
	*world
	held     *persistentvolume.Placement
	releases []func() // of the cache, where it is behind
}

func (p *placements) play(actions []action) error {
	p.start()
	defer func() { p.stop() }()
	for i, a := range actions {
		p.do(i, a)
		time.Sleep(a.Pause)
	}
	p.rollBack()
	p.catchUp()
	p.storage.fail(nil)
	for i := range 3 {
		_ = p.api.Delete(p.t.Context(), volume.NewObjectRef("Pod", "ops", fmt.Sprintf("pod%d", i)), objects.Preconditions{})
	}
	time.Sleep(time.Hour)
	synctest.Wait()
	select {
	case <-p.died:
		p.restart()
		time.Sleep(time.Hour)
		synctest.Wait()
	default:
	}
	return errors.Join(p.law.broken(), p.rest())
}

// restart ends the process, and with it what it knows of placements.
func (p *placements) restart() {
	p.rollBack()
	p.stop()
	p.catchUp()
	p.start()
}

func (p *placements) rollBack() {
	if p.held != nil {
		p.held.Rollback()
		p.held = nil
	}
}

func (p *placements) catchUp() {
	for _, release := range p.releases {
		release()
	}
	p.releases = nil
}

func (p *placements) place(a action) *persistentvolume.Placement {
	ctx, cancel := context.WithTimeout(p.t.Context(), time.Second)
	defer cancel()
	placed, err := p.controller.Place(ctx, pvbuild.PodOf(fmt.Sprintf("c%d", a.Claim)), []*v1.Node{newNode(fmt.Sprintf("node%d", a.Size))})
	if err != nil {
		return nil
	}
	return placed
}

func (p *placements) do(i int, a action) {
	ctx, pvName := p.t.Context(), fmt.Sprintf("pv%d", a.Vol)
	claim := pvbuild.NewClaim(fmt.Sprintf("c%d", a.Claim), fmt.Sprintf("%dGi", a.Size), func(c *v1.PersistentVolumeClaim) { c.UID = types.UID(fmt.Sprintf("c%d-%d", a.Claim, i)) })
	pod := pvbuild.PodOf(claim.Name)
	pod.Name, pod.UID, pod.Spec.NodeName = fmt.Sprintf("pod%d", a.Vol), "", "node1"
	switch a.Do {
	case "waiting claim":
		p.try(claim, pvbuild.OfClass("wait"))
	case "waiting made claim":
		p.try(claim, pvbuild.OfClass("wait-made"))
	case "waiting named claim":
		p.try(claim, pvbuild.OfClass("wait"), pvbuild.Naming(pvName))
	case "local volume":
		_, _ = p.api.Create(ctx, pvbuild.NewPV(pvName, "2Gi", pvbuild.Class("wait"), pvbuild.OnHost(fmt.Sprintf("node%d", a.Size))))
	case "place":
		if p.held == nil {
			p.held = p.place(a)
		}
	case "commit":
		if p.held != nil {
			_ = p.held.Commit(ctx)
			p.held = nil
		}
	case "rollback":
		p.rollBack()
	case "place and commit":
		if placed := p.place(a); placed != nil {
			_ = placed.Commit(ctx)
		}
	case "pod":
		_, _ = p.api.Create(ctx, pod)
	case "delete pod":
		_ = p.api.Delete(ctx, volume.NewObjectRef("Pod", "ops", pod.Name), objects.Preconditions{})
	case "break storage":
		p.storage.fail(errors.New("it is broken"))
	case "mend storage":
		p.storage.fail(nil)
	case "crash":
		p.crashAt, p.crashAfter = a.Size*2+a.Claim, a.Vol%2 == 0
		p.restart()
	case "restart":
		p.restart()
	case "outage", "throttle", "drop watches", "expire", "lose answers":
		p.trouble(a)
	case "depose":
		p.lateFrom(a)
		p.restart()
	case "lag":
		p.releases = append(p.releases, p.client.Hold([]string{"PersistentVolume", "PersistentVolumeClaim", "Pod"}[a.Vol%3]))
	case "catch up":
		p.catchUp()
	default:
		p.edit(i, a)
	}
}

func (p *placements) try(claim *v1.PersistentVolumeClaim, options ...pvbuild.ClaimOption) {
	for _, option := range options {
		option(claim)
	}
	_, _ = p.api.Create(p.t.Context(), claim)
}

// edit is what users do to what is there.
func (p *placements) edit(i int, a action) {
	ctx, pvName, claimName := p.t.Context(), fmt.Sprintf("pv%d", a.Vol), fmt.Sprintf("c%d", a.Claim)
	pv, noPV := objects.Get[*v1.PersistentVolume](ctx, p.store, volume.NewObjectRef("PersistentVolume", "", pvName))
	claim, noClaim := objects.Get[*v1.PersistentVolumeClaim](ctx, p.store, volume.NewObjectRef("PersistentVolumeClaim", "ops", claimName))
	pv, claim = pv.DeepCopy(), claim.DeepCopy()
	switch {
	case a.Do == "name" && noClaim == nil && claim.Spec.VolumeName == "":
		claim.Spec.VolumeName = pvName
		_, _ = p.api.Update(ctx, claim)
	case a.Do == "drop finalizers" && noClaim == nil:
		claim.Finalizers = slices.DeleteFunc(claim.Finalizers, func(f string) bool { return f != persistentvolume.ProvisioningFinalizer })
		_, _ = p.api.Update(ctx, claim)
	case a.Do == "delete made volume" && noClaim == nil:
		_ = p.api.Delete(ctx, volume.NewObjectRef("PersistentVolume", "", persistentvolume.ProvisionedName(claim)), objects.Preconditions{})
	case a.Do == "change policy" && noPV == nil:
		pv.Spec.PersistentVolumeReclaimPolicy = []v1.PersistentVolumeReclaimPolicy{"Recycle", "Retain", "Delete"}[a.Claim]
		_, _ = p.api.Update(ctx, pv)
	case a.Do == "pre-bind" && noPV == nil && pv.Status.Phase != v1.VolumeBound && pv.Spec.ClaimRef != nil:
		pv.Spec.ClaimRef.Name, pv.Spec.ClaimRef.UID = claimName, ""
		p.law.Emptied(pv)
		_, _ = p.api.Update(ctx, pv)
	default:
		p.happen(i, a)
	}
}

// rest checks that there is nothing left to do.
func (p *placements) rest() error {
	claims, err := objects.List[*v1.PersistentVolumeClaim](p.t.Context(), p.store, "PersistentVolumeClaim", "")
	if err != nil {
		return err
	}
	volumes, err := objects.List[*v1.PersistentVolume](p.t.Context(), p.store, "PersistentVolume", "")
	if err != nil {
		return err
	}
	all, byName, byUID := &pvbuild.Scan{Volumes: volumes, Claims: claims}, make(map[string]*v1.PersistentVolume), make(map[types.UID]*v1.PersistentVolumeClaim)
	for _, pv := range volumes {
		byName[pv.Name] = pv
	}
	for _, c := range claims {
		byUID[c.UID] = c
		if err := claimRests(c, byName[c.Spec.VolumeName], all); err != nil {
			return err
		}
	}
	for _, name := range p.stored() {
		owed := slices.ContainsFunc(claims, func(c *v1.PersistentVolumeClaim) bool {
			return slices.Contains(c.Finalizers, persistentvolume.ProvisioningFinalizer) && persistentvolume.ProvisionedName(c) == name
		})
		if byName[name] == nil && !owed {
			return fmt.Errorf("storage %s is left over", name)
		}
	}
	for _, pv := range volumes {
		var uid types.UID
		if pv.Spec.ClaimRef != nil {
			uid = pv.Spec.ClaimRef.UID
		}
		claim := byUID[uid]
		if pv.DeletionTimestamp != nil && (claim == nil || claim.Spec.VolumeName != pv.Name) {
			return fmt.Errorf("volume %s does not go: %v", pv.Name, pv.Finalizers)
		}
		if uid != "" && claim == nil && pv.Status.Phase != v1.VolumeReleased && pv.Status.Phase != v1.VolumeFailed {
			return fmt.Errorf("volume %s, whose claim has gone, is %q", pv.Name, pv.Status.Phase)
		}
	}
	return nil
}

func claimRests(c *v1.PersistentVolumeClaim, pv *v1.PersistentVolume, all *pvbuild.Scan) error {
	class := ""
	if c.Spec.StorageClassName != nil {
		class = *c.Spec.StorageClassName
	}
	switch {
	case c.DeletionTimestamp != nil:
		return fmt.Errorf("claim %s does not go: %v", c.Name, c.Finalizers)
	case c.Status.Phase == v1.ClaimBound:
		return claimbinding.Check(c, pv)
	case c.Status.Phase == v1.ClaimLost:
		return nil
	case c.Status.Phase != v1.ClaimPending:
		return fmt.Errorf("claim %s is in phase %q", c.Name, c.Status.Phase)
	case c.Spec.VolumeName == "" && c.Annotations["volume.kubernetes.io/selected-node"] != "":
		return fmt.Errorf("claim %s has a node and no volume", c.Name)
	case c.Spec.VolumeName == "" && class == "made":
		return fmt.Errorf("claim %s has no volume", c.Name)
	}
	if could, _ := all.Match(index.Wanted{Claim: c, Delayed: strings.HasPrefix(class, "wait")}); could != nil {
		return fmt.Errorf("claim %s waits and could have volume %s", c.Name, could.Name)
	}
	return nil
}
