package persistentvolume_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/podvol/podvol/volume/objects/cluster/clustertest"
)

// The same as [persistentvolume.TestControllerConverges] where two processes campaign, and whoever
// leads is cut off, killed or stopped at any time.
func TestElectedControllersConverge(t *testing.T) {
	one := rapid.Custom(func(t *rapid.T) action {
		return action{
			Do: rapid.SampledFrom([]string{"nothing is taken", "the answers are lost", "nothing is answered", "what it writes is late", "what it writes is late",
				"its plugin does not end, and what it writes is late", "kill", "stop", "claim", "claim", "volume", "volume", "recycled volume", "recycled volume", "made claim", "made claim",
				"named claim", "meant volume", "delete claim", "delete claim", "delete volume", "destroy volume", "free volume", "rival", "annotate volume", "annotate claim"}).Draw(t, "do"),
			Claim: rapid.IntRange(0, 2).Draw(t, "claim"), Vol: rapid.IntRange(0, 2).Draw(t, "volume"),
			Size:  rapid.IntRange(1, 3).Draw(t, "size"),
			Pause: rapid.SampledFrom([]time.Duration{0, 0, time.Millisecond, 10 * time.Second, time.Minute}).Draw(t, "pause"),
		}
	})
	rapid.Check(t, func(rt *rapid.T) {
		actions := rapid.SliceOfN(one, 10, 30).Draw(rt, "actions")
		var failure error
		synctest.Test(t, func(t *testing.T) { failure = newElected(t, storageClass("made", made)).play(actions) })
		if failure != nil {
			rt.Fatal(failure)
		}
	})
}

func (e *elected) play(actions []action) error {
	replicas := []*replica{e.start("r0"), e.start("r1")}
	for i, a := range actions {
		leader := 0
		if replicas[1].health.State().Leading {
			leader = 1
		}
		r := replicas[leader]
		cutOff, isCut := cuts()[a.Do]
		switch {
		case isCut:
			cutOff(r, a.Claim+1, func() {})
			time.AfterFunc(time.Duration(a.Size)*renewDeadline, r.heal)
		case a.Do == "kill":
			r.kill()
			replicas[leader] = e.start(fmt.Sprint("r", leader, " after ", i))
		case a.Do == "stop":
			r.cancel()
			replicas[leader] = e.start(fmt.Sprint("r", leader, " after ", i))
		default:
			e.happen(i, a)
		}
		time.Sleep(a.Pause)
	}
	time.Sleep(3 * renewDeadline)
	for i, r := range replicas {
		r.heal()
		if r.dead.Load() {
			replicas[i] = e.start(fmt.Sprint("r", i, " in the end"))
		}
	}
	time.Sleep(20 * time.Minute)
	synctest.Wait()
	if err := e.law.broken(); err != nil {
		return err
	}
	return e.quiet()
}

// kill ends a process at once: nothing that it does has any effect any more.
func (r *replica) kill() {
	r.dead.Store(true)
	r.SetDown(clustertest.ErrUnreachable)
	r.cancel()
}
