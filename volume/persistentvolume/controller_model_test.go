package persistentvolume_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/podvol/podvol/util/fault"
	"github.com/podvol/podvol/util/testenv/pvbuild"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/claimbinding"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/objects/objectstest"
	"github.com/podvol/podvol/volume/persistentvolume/index"
)

// action is one thing that happens to a cluster.
type action struct {
	Do         string
	Claim, Vol int
	Size       int
	Pause      time.Duration
}

// Whatever users, rivals, late caches and crashes do: no volume is ever shown
// to two claims, and once it is quiet every claim that can have a volume has one.
func TestControllerConverges(t *testing.T) {
	testConvergence(t, func(t *testing.T) *world { return newWorld(t, storageClass("made", made)).withStorage() })
}

// The same where the store forgets everything whenever the process ends.
func TestRecordedControllerConverges(t *testing.T) {
	testConvergence(t, func(t *testing.T) *world {
		return newForgetfulWorld(t, pvbuild.MemoryDir(t), storageClass("made", made))
	})
}

func testConvergence(t *testing.T, prepare func(*testing.T) *world) {
	one := rapid.Custom(func(t *rapid.T) action {
		return action{
			Do: rapid.SampledFrom(append(troublesOfTheAPI(), "claim", "claim", "volume", "volume", "recycled volume", "made claim", "made claim", "named claim", "meant volume", "delete claim", "delete volume", "destroy volume",
				"free volume", "rival", "annotate volume", "annotate claim", "resize volume", "resize claim", "bad volume", "mend volume", "crash", "restart", "lag", "catch up", "lose answer")).Draw(t, "do"),
			Claim: rapid.IntRange(0, 3).Draw(t, "claim"), Vol: rapid.IntRange(0, 3).Draw(t, "volume"),
			Size:  rapid.IntRange(1, 3).Draw(t, "size"),
			Pause: rapid.SampledFrom([]time.Duration{0, 0, time.Millisecond, time.Minute}).Draw(t, "pause"),
		}
	})
	rapid.Check(t, func(rt *rapid.T) {
		actions := rapid.SliceOfN(one, 15, 50).Draw(rt, "actions")
		var failure error
		synctest.Test(t, func(t *testing.T) { failure = play(t, prepare(t), actions) })
		if failure != nil {
			rt.Fatal(failure)
		}
	})
}

func play(t *testing.T, w *world, actions []action) error {
	w.start()
	defer func() { w.stop() }()
	var releases []func()
	catchUp := func() {
		for _, release := range releases {
			release()
		}
		releases = nil
	}
	for i, a := range actions {
		switch a.Do {
		case "crash":
			w.stop()
			catchUp()
			w.crashAt, w.crashAfter = a.Size*2+a.Claim, a.Vol%2 == 0
			w.start()
		case "restart":
			w.stop()
			catchUp()
			w.start()
		case "lag":
			releases = append(releases, w.client.Hold([]string{"PersistentVolume", "PersistentVolumeClaim"}[a.Vol%2]))
		case "catch up":
			catchUp()
		case "outage", "throttle", "drop watches", "expire", "lose answers":
			w.trouble(a)
		case "depose":
			w.lateFrom(a)
			w.stop()
			catchUp()
			w.start()
		case "lose answer":
			w.client.Inject(fault.Fault[objectstest.Call]{Match: isWrite, Nth: 1 + a.Claim, After: true, Err: errLost})
		default:
			w.happen(i, a)
		}
		time.Sleep(a.Pause)
	}
	catchUp()
	time.Sleep(time.Hour)
	synctest.Wait()
	w.stop()
	w.start() // the last process may have died
	time.Sleep(time.Hour)
	synctest.Wait()
	if err := errors.Join(w.law.broken(), w.compareRecords()); err != nil {
		return err
	}
	return w.quiet()
}

var errLost = errors.New("the connection broke")

func isWrite(call objectstest.Call) bool { return call.Verb != "get" && call.Verb != "list" }

// happen does what users and rivals do; what cannot be done is not.
func (w *world) happen(i int, a action) {
	ctx := w.t.Context()
	claimName, pvName := fmt.Sprintf("c%d", a.Claim), fmt.Sprintf("pv%d", a.Vol)
	claim := pvbuild.NewClaim(claimName, fmt.Sprintf("%dGi", a.Size), func(c *v1.PersistentVolumeClaim) { c.UID = types.UID(fmt.Sprintf("%s-%d", claimName, i)) })
	pv := pvbuild.NewPV(pvName, fmt.Sprintf("%dGi", a.Size))
	changePV := func(f func(*v1.PersistentVolume)) {
		if stored, err := objects.Get[*v1.PersistentVolume](ctx, w.store, volume.NewObjectRef("PersistentVolume", "", pvName)); err == nil {
			next := stored.DeepCopy()
			f(next)
			_, _ = w.api.Update(ctx, next)
		}
	}
	switch a.Do {
	case "claim":
		_, _ = w.api.Create(ctx, claim)
	case "made claim":
		pvbuild.OfClass("made")(claim)
		_, _ = w.api.Create(ctx, claim)
	case "recycled volume":
		withPolicy(v1.PersistentVolumeReclaimRecycle)(pv)
		_, _ = w.api.Create(ctx, pv)
	case "named claim":
		pvbuild.Naming(pvName)(claim)
		_, _ = w.api.Create(ctx, claim)
	case "volume":
		_, _ = w.api.Create(ctx, pv)
	case "meant volume":
		pvbuild.ForClaim(claimName, "")(pv)
		_, _ = w.api.Create(ctx, pv)
	case "delete claim":
		_ = w.api.Delete(ctx, volume.NewObjectRef("PersistentVolumeClaim", "ops", claimName), objects.Preconditions{})
	case "delete volume":
		_ = w.api.Delete(ctx, volume.NewObjectRef("PersistentVolume", "", pvName), objects.Preconditions{})
	case "destroy volume":
		_ = w.api.Delete(ctx, volume.NewObjectRef("PersistentVolume", "", pvName), objects.Preconditions{})
		changePV(func(pv *v1.PersistentVolume) { pv.Finalizers = nil })
	case "free volume": // as an administrator does once the data is gone
		changePV(func(pv *v1.PersistentVolume) {
			if pv.Status.Phase == v1.VolumeReleased {
				pv.Spec.ClaimRef = nil
				w.law.Emptied(pv)
			}
		})
	case "rival":
		changePV(func(pv *v1.PersistentVolume) {
			if pv.Spec.ClaimRef == nil {
				pvbuild.ForClaim("rival", "rival")(pv)
			}
		})
	case "annotate volume":
		changePV(func(pv *v1.PersistentVolume) { metav1.SetMetaDataAnnotation(&pv.ObjectMeta, "x", fmt.Sprint(i)) })
	case "bad volume":
		pvbuild.WithoutSource(pv)
		_, _ = w.api.Create(ctx, pv)
	case "mend volume":
		changePV(func(stored *v1.PersistentVolume) { stored.Spec.PersistentVolumeSource = pv.Spec.PersistentVolumeSource })
	case "resize claim": // which the API allows once it is bound
		if stored, err := objects.Get[*v1.PersistentVolumeClaim](ctx, w.store, volume.NewObjectRef("PersistentVolumeClaim", "ops", claimName)); err == nil && stored.Status.Phase == v1.ClaimBound {
			next := stored.DeepCopy()
			next.Spec.Resources = claim.Spec.Resources
			_, _ = w.api.Update(ctx, next)
		}
	case "resize volume":
		changePV(func(pv *v1.PersistentVolume) {
			pv.Spec.Capacity = pvbuild.NewPV("", fmt.Sprintf("%dGi", a.Size)).Spec.Capacity
		})
	case "annotate claim":
		if stored, err := objects.Get[*v1.PersistentVolumeClaim](ctx, w.store, volume.NewObjectRef("PersistentVolumeClaim", "ops", claimName)); err == nil {
			next := stored.DeepCopy()
			metav1.SetMetaDataAnnotation(&next.ObjectMeta, "x", fmt.Sprint(i))
			_, _ = w.api.Update(ctx, next)
		}
	}
}

// quiet checks that there is nothing left to do.
func (w *world) quiet() error {
	claims, err := objects.List[*v1.PersistentVolumeClaim](w.t.Context(), w.store, "PersistentVolumeClaim", "")
	if err != nil {
		return err
	}
	volumes, err := objects.List[*v1.PersistentVolume](w.t.Context(), w.store, "PersistentVolume", "")
	if err != nil {
		return err
	}
	all, byName, byUID := &pvbuild.Scan{Volumes: volumes, Claims: claims}, make(map[string]*v1.PersistentVolume), make(map[types.UID]*v1.PersistentVolumeClaim)
	for _, pv := range volumes {
		byName[pv.Name] = pv
	}
	for _, c := range claims {
		byUID[c.UID] = c
		pv := byName[c.Spec.VolumeName]
		switch c.Status.Phase {
		case v1.ClaimBound:
			if err := claimbinding.Check(c, pv); err != nil {
				return err
			}
			want, has, could := c.Spec.Resources.Requests[v1.ResourceStorage], c.Status.Capacity[v1.ResourceStorage], pv.Spec.Capacity[v1.ResourceStorage]
			bad := pv.Spec.PersistentVolumeSource == (v1.PersistentVolumeSource{}) // no plugin says whether a node has to do its part
			if want.Cmp(has) > 0 && want.Cmp(could) <= 0 && !bad {
				return fmt.Errorf("claim %s asks for %s, its status says %s, and its volume has %s", c.Name, want.String(), has.String(), could.String())
			}
		case v1.ClaimPending:
			if could, _ := all.Match(index.Wanted{Claim: c}); could != nil {
				return fmt.Errorf("claim %s waits and could have volume %s", c.Name, could.Name)
			}
		case v1.ClaimLost:
			if c.Annotations["pv.kubernetes.io/bind-completed"] == "" || pv != nil && pv.Spec.ClaimRef != nil && pv.Spec.ClaimRef.UID == c.UID {
				return fmt.Errorf("claim %s is lost, and its volume is %v", c.Name, pv)
			}
		default:
			return fmt.Errorf("claim %s is in phase %q", c.Name, c.Status.Phase)
		}
	}
	for _, name := range w.stored() {
		if byName[name] == nil {
			return fmt.Errorf("storage %s is left over", name)
		}
	}
	for _, pv := range volumes {
		want := v1.VolumeAvailable
		if pv.Spec.PersistentVolumeSource == (v1.PersistentVolumeSource{}) {
			want = v1.VolumePending
		}
		if ref := pv.Spec.ClaimRef; ref != nil && ref.UID != "" {
			want = v1.VolumeReleased
			if pv.Spec.PersistentVolumeReclaimPolicy == v1.PersistentVolumeReclaimRecycle {
				want = v1.VolumeAvailable // which it is without that claim
				if slices.ContainsFunc(claims, func(c *v1.PersistentVolumeClaim) bool { return c.Spec.VolumeName == pv.Name }) {
					want = v1.VolumeReleased // another claim names it, which may want its data
				}
			}
			if c := byUID[ref.UID]; c != nil {
				want = v1.VolumeBound
				if c.Spec.VolumeName == "" { // it has become too small for the claim
					want = pv.Status.Phase
				}
			}
		}
		if pv.Status.Phase != want {
			return fmt.Errorf("volume %s is %q and should be %q: claimRef %v", pv.Name, pv.Status.Phase, want, pv.Spec.ClaimRef)
		}
	}
	return nil
}
