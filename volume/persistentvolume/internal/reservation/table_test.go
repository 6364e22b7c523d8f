package reservation_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/util/testenv/pvbuild"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/claimbinding"
	"github.com/podvol/podvol/volume/persistentvolume/index"
	"github.com/podvol/podvol/volume/persistentvolume/internal/reservation"
)

// enqueued is a queue that only notes what it is told.
type enqueued struct {
	mu  sync.Mutex
	all []string
}

func (q *enqueued) note(how string, ref volume.ObjectRef) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.all = append(q.all, how+" "+ref.Name)
}

func (q *enqueued) Enqueue(ref volume.ObjectRef)           { q.note("enqueue", ref) }
func (q *enqueued) EnqueueAfterPause(ref volume.ObjectRef) { q.note("enqueue after pause", ref) }
func (q *enqueued) EnqueueIfChanged(ref volume.ObjectRef)  { q.note("enqueue if changed", ref) }

// take returns what was enqueued since the last call, in order of names.
func (q *enqueued) take() []string {
	q.mu.Lock()
	defer q.mu.Unlock()
	all := q.all
	q.all = nil
	slices.Sort(all)
	return all
}

func (q *enqueued) want(t *testing.T, when string, want ...string) {
	t.Helper()
	if got := q.take(); !slices.Equal(got, want) {
		t.Errorf("%s: enqueued %q, want %q", when, got, want)
	}
}

func newTable(x *index.Index) (*reservation.Table, *enqueued) {
	q := new(enqueued)
	return reservation.New(reservation.Config{Index: x, Waiting: index.NewWaiting(), Queue: q}), q
}

func claimName(name string) types.NamespacedName {
	return types.NamespacedName{Namespace: "ops", Name: name}
}

func podOf(name, uid string) reservation.Pod {
	return reservation.Pod{NamespacedName: claimName(name), UID: types.UID(uid)}
}

// Each pair of entries, of which the second is refused where they would share a thing.
func TestWhoIsInTheWayOfWhom(t *testing.T) {
	type world struct{ *reservation.Table }
	got := func(_ *reservation.Entry, err error) bool { return err == nil }
	asks := map[string]func(w world) bool{
		"claim a assumes the volume": func(w world) bool {
			return got(w.Reserve(index.Wanted{Claim: pvbuild.NewClaim("a", "1Gi")}))
		},
		"claim b assumes the volume": func(w world) bool {
			return got(w.Reserve(index.Wanted{Claim: pvbuild.NewClaim("b", "1Gi")}))
		},
		"claim a is provisioned": func(w world) bool {
			return got(w.ReserveProvisioning(index.IDOf(pvbuild.NewClaim("a", "1Gi"))))
		},
		"claim a is for pod 1": func(w world) bool {
			_, other := w.ReserveForPod(claimName("a"), podOf("pod", "1"))
			return other == nil
		},
		"claim a is for pod 2": func(w world) bool {
			_, other := w.ReserveForPod(claimName("a"), podOf("pod", "2"))
			return other == nil
		},
		"the volume is written": func(w world) bool { _, ok := w.TryWriting("pv"); return ok },
		"storage is made": func(w world) bool {
			_, ok := w.ReserveStorage("pv", false, volume.NewObjectRef("PersistentVolumeClaim", "ops", "a"))
			return ok
		},
		"data is removed": func(w world) bool {
			_, ok := w.ReserveStorage("pv", true, volume.NewObjectRef("PersistentVolume", "", "pv"))
			return ok
		},
	}
	inTheWay := map[string][]string{
		"claim a assumes the volume": {"claim a assumes the volume", "claim b assumes the volume", "claim a is provisioned", "data is removed"},
		"claim b assumes the volume": {"claim a assumes the volume", "claim b assumes the volume", "data is removed"},
		"claim a is provisioned":     {"claim a assumes the volume", "claim a is provisioned"},
		"claim a is for pod 1":       {"claim a is for pod 2"},
		"claim a is for pod 2":       {"claim a is for pod 1"},
		"the volume is written":      {"the volume is written"},
		"storage is made":            {"storage is made", "data is removed"},
		"data is removed":            {"claim a assumes the volume", "claim b assumes the volume", "storage is made", "data is removed"},
	}
	for first, begin := range asks {
		for second, ask := range asks {
			table, _ := newTable(index.New(pvbuild.NewPV("pv", "1Gi")))
			if w := (world{table}); !begin(w) {
				t.Errorf("%s: refused by an empty table", first)
			} else if want := !slices.Contains(inTheWay[first], second); ask(w) != want {
				t.Errorf("while %s: %s: %v, want %v", first, second, !want, want)
			}
		}
	}
}

// What was asked for in vain is looked at once it is free, and at no other time.
func TestWhoAskedInVainIsLookedAtAgain(t *testing.T) {
	pv, claim := volume.NewObjectRef("PersistentVolume", "", "pv"), pvbuild.NewClaim("a", "1Gi")
	table, q := newTable(index.New(pvbuild.NewPV("pv", "1Gi")))

	turn, _ := table.TryReading("pv")
	table.TryReading("pv")
	q.want(t, "while it is written")
	turn.Forget()
	q.want(t, "after it was written", "enqueue if changed pv")
	turn.Forget()
	q.want(t, "after it was forgotten twice")

	turn, _ = table.TryWriting("pv")
	table.TryWriting("pv")
	table.TryReading("pv")
	turn.Forget()
	q.want(t, "after a sync and a change were missed", "enqueue pv")
	turn, _ = table.TryWriting("pv")
	turn.Forget()
	q.want(t, "after none has asked in vain")

	assumed, err := table.Reserve(index.Wanted{Claim: claim})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := table.Reserve(index.Wanted{Claim: claim}); !errors.Is(err, index.ErrReserved) {
		t.Errorf("err = %v", err)
	}
	if _, ok := table.ReserveStorage("pv", true, pv); ok {
		t.Error("the data of a volume is removed that a claim takes")
	}
	bound := assumed.Volume().DeepCopy()
	pvbuild.ForClaim("a", claim.UID)(bound)
	assumed.Assume(bound)
	q.want(t, "after the binding was assumed", "enqueue a", "enqueue pv")
}

// While data is removed no claim gets the volume, not even one that names it; then these
// are looked at.
func TestNoClaimGetsAVolumeWhoseDataIsRemoved(t *testing.T) {
	named := pvbuild.NewClaim("named", "1Gi", pvbuild.Naming("pv"))
	x := index.New(pvbuild.NewPV("pv", "1Gi"))
	x.PutClaim(named)
	table, q := newTable(x)
	removing, _ := table.ReserveStorage("pv", true, volume.NewObjectRef("PersistentVolume", "", "pv"))
	for _, claim := range []*v1.PersistentVolumeClaim{named, pvbuild.NewClaim("free", "1Gi")} {
		if e, err := table.Reserve(index.Wanted{Claim: claim}); err == nil {
			t.Errorf("%s gets %v", claim.Name, e)
		}
	}
	err := table.May(index.IDOf(named), "pv")
	if err == nil || !strings.Contains(err.Error(), "data is being removed") {
		t.Errorf("it may have it: %v", err)
	}
	removing.Forget()
	q.want(t, "after it was removed", "enqueue named")
	if err := table.May(index.IDOf(named), "pv"); err != nil {
		t.Error(err)
	}
}

// A volume that a claim gives back goes to the claims that mean it, then to the one that
// waits for it, else it is looked at itself.
func TestAVolumeIsGivenBack(t *testing.T) {
	for _, waits := range []bool{true, false} {
		x := index.New(pvbuild.NewPV("pv", "1Gi"))
		table, q := newTable(x)
		assumed, err := table.Reserve(index.Wanted{Claim: pvbuild.NewClaim("first", "1Gi")})
		if err != nil {
			t.Fatal(err)
		}
		if waits {
			table.Waiting.Add(index.Wanted{Claim: pvbuild.NewClaim("second", "1Gi")})
		}
		if table.EnqueueClaimFor("pv") {
			t.Error("it is offered while it is reserved")
		}
		assumed.Forget()
		assumed.Forget()
		if !waits {
			q.want(t, "if no claim waits", "enqueue pv")
			continue
		}
		q.want(t, "if a claim waits", "enqueue second")
		if got := table.Candidates(claimName("second")); !slices.Equal(got, []string{"pv"}) {
			t.Errorf("offered %v", got)
		}
		if got := table.Candidates(claimName("second")); len(got) > 0 {
			t.Errorf("offered %v twice", got)
		}
	}
}

// Claims that mean a volume are reminded when another claim does not take it.
func TestClaimsThatMeanAVolumeAreReminded(t *testing.T) {
	first, second := pvbuild.NewClaim("first", "1Gi", pvbuild.Naming("pv")), pvbuild.NewClaim("second", "1Gi", pvbuild.Naming("pv"))
	x := index.New(pvbuild.NewPV("pv", "1Gi"))
	x.PutClaim(first)
	x.PutClaim(second)
	table, q := newTable(x)
	for what, end := range map[string]func(*reservation.Entry){"retried": table.Retry, "forgotten": (*reservation.Entry).Forget} {
		assumed, err := table.Reserve(index.Wanted{Claim: first})
		if err != nil {
			t.Fatal(err)
		}
		end(assumed)
		if got := q.take(); !slices.Contains(got, "enqueue after pause second") || slices.Contains(got, "enqueue after pause first") {
			t.Errorf("%s: enqueued %v", what, got)
		}
	}
}

// A claim that was woken and has not looked yet may have a further volume, and none after it
// has looked.
func TestAWokenClaimIsOfferedMoreUntilItLooks(t *testing.T) {
	table, _ := newTable(index.New(pvbuild.NewPV("pv0", "1Gi"), pvbuild.NewPV("pv1", "1Gi"), pvbuild.NewPV("pv2", "1Gi")))
	table.Waiting.Add(index.Wanted{Claim: pvbuild.NewClaim("a", "1Gi")})
	if !table.EnqueueClaimFor("pv0") || !table.EnqueueClaimFor("pv1") {
		t.Error("a volume is for no claim")
	}
	if got := table.Candidates(claimName("a")); !slices.Equal(got, []string{"pv0", "pv1"}) {
		t.Errorf("offered %v", got)
	}
	if table.EnqueueClaimFor("pv2") {
		t.Error("a volume is offered to a claim that has looked and does not wait")
	}
}

// A claim that could not take its volume is offered it again if no other waits for it.
func TestAClaimThatTriesAgainKeepsItsOffer(t *testing.T) {
	for _, other := range []bool{false, true} {
		table, q := newTable(index.New(pvbuild.NewPV("pv", "1Gi")))
		assumed, err := table.Reserve(index.Wanted{Claim: pvbuild.NewClaim("first", "1Gi")})
		if err != nil {
			t.Fatal(err)
		}
		want := []string{"pv"}
		if other {
			table.Waiting.Add(index.Wanted{Claim: pvbuild.NewClaim("second", "1Gi")})
			want = nil
		}
		table.Retry(assumed)
		if table.IsAssumed("pv") {
			t.Error("it is still reserved")
		}
		if got := table.Candidates(claimName("first")); !slices.Equal(got, want) {
			t.Errorf("another waits: %v: offered %v, want %v", other, got, want)
		}
		if got := q.take(); (len(got) > 0) != other {
			t.Errorf("another waits: %v: enqueued %v", other, got)
		}
	}
}

// The later call of one pod counts, and a pod's entry ends with its claim or by its name.
func TestAClaimForOnePod(t *testing.T) {
	table, _ := newTable(index.New())
	early, _ := table.ReserveForPod(claimName("a"), podOf("pod", "1"))
	late, other := table.ReserveForPod(claimName("a"), podOf("pod", "1"))
	if other != nil {
		t.Fatalf("refused for %v", other)
	}
	early.Forget()
	if _, other := table.ReserveForPod(claimName("a"), podOf("rival", "2")); other != late || other.Pod() != podOf("pod", "1") {
		t.Errorf("the earlier call has ended the later one: %v", other)
	}
	table.ForgetPod(claimName("a"), claimName("rival"))
	if _, other := table.ReserveForPod(claimName("a"), podOf("pod", "of another UID")); other != late {
		t.Errorf("kept for %v", other)
	}
	table.ForgetPod(claimName("a"), claimName("pod"))
	if _, other := table.ReserveForPod(claimName("a"), podOf("rival", "2")); other != nil {
		t.Errorf("still kept for %v", other)
	}
	table.ForgetPods(claimName("a"))
	if _, other := table.ReserveForPod(claimName("a"), podOf("third", "3")); other != nil {
		t.Errorf("still kept for %v, whose claim is gone", other)
	}
}

// Turns come in order; a call that gives up leaves the line, and its volume is free for the
// next.
func TestTurnsComeInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table, q := newTable(index.New())
		first, err := table.ReserveWriting(t.Context(), "pv")
		if err != nil {
			t.Fatal(err)
		}
		var order []string
		impatient, giveUp := context.WithCancelCause(t.Context())
		tired := errors.New("tired")
		wait := func(ctx context.Context, name string) {
			go func() {
				turn, err := table.ReserveWriting(ctx, "pv")
				if err != nil {
					order = append(order, fmt.Sprintf("%s: %v", name, err))
					return
				}
				order = append(order, name)
				turn.Forget()
			}()
			synctest.Wait()
		}
		wait(t.Context(), "second")
		wait(impatient, "third")
		wait(t.Context(), "fourth")
		if _, ok := table.TryWriting("pv"); ok {
			t.Error("two turns at once")
		}
		giveUp(tired)
		synctest.Wait()
		first.Forget()
		synctest.Wait()
		if want := []string{"third: tired", "second", "fourth"}; !slices.Equal(order, want) {
			t.Errorf("order %q, want %q", order, want)
		}
		q.want(t, "after the last turn", "enqueue pv")
		if turn, err := table.ReserveWriting(impatient, "pv"); err != nil || turn == nil {
			t.Errorf("a free turn is not taken after the end of its context: %v", err)
		}
	})
}

// Binders that choose at the same time, some of which give up, while events
// arrive: no volume is ever in two hands.
func TestConcurrentBindersNeverShareAVolume(t *testing.T) {
	const binders, each = 8, 50
	volumes := pvbuild.Pool(binders * each)
	x := index.New(volumes...)
	table, _ := newTable(x)
	var owners sync.Map
	var wg sync.WaitGroup
	for b := range binders {
		wg.Go(func() {
			for i := range each {
				w := index.Wanted{Claim: pvbuild.NewClaim(fmt.Sprintf("c%d-%d", b, i), "1Gi", pvbuild.OfClass("pool"))}
				for try := range 3 {
					r, err := table.Reserve(w)
					if err != nil {
						t.Error(err)
						return
					}
					name := r.Volume().Name
					if other, taken := owners.LoadOrStore(name, w.Claim.Name); taken {
						t.Errorf("%s reserved %s of %v", w.Claim.Name, name, other)
					}
					x.Put(r.Volume()) // an event that changes nothing
					if try < 2 {
						owners.Delete(name)
						r.Forget()
						continue
					}
					pv := r.Volume().DeepCopy()
					pvbuild.ForClaim(w.Claim.Name, w.Claim.UID)(pv)
					r.Assume(pv)
				}
			}
		})
	}
	wg.Wait()
	if _, err := x.Match(index.Wanted{Claim: pvbuild.NewClaim("late", "1Gi", pvbuild.OfClass("pool"))}); !errors.Is(err, claimbinding.ErrUnbound) {
		t.Errorf("err = %v; want every volume to be taken", err)
	}
}

// A volume that goes and comes while it is reserved stays reserved.
func TestAReservationOutlivesItsVolume(t *testing.T) {
	x := index.New(pvbuild.NewPV("a", "1Gi"))
	table, _ := newTable(x)
	first := index.Wanted{Claim: pvbuild.NewClaim("first", "1Gi")}
	r, err := table.Reserve(first)
	if err != nil {
		t.Fatal(err)
	}
	x.Delete("a")
	x.Put(pvbuild.NewPV("a", "1Gi"))
	_, err = table.Reserve(index.Wanted{Claim: pvbuild.NewClaim("second", "1Gi")})
	if !errors.Is(err, claimbinding.ErrUnbound) || !strings.Contains(err.Error(), `belongs to another claim (a: ops/first, for which it is reserved)`) {
		t.Errorf("err = %v", err)
	}
	if _, err := table.Reserve(first); !errors.Is(err, index.ErrReserved) || !strings.Contains(err.Error(), "ops/first") {
		t.Errorf("a second reservation: err = %v", err)
	}
	r.Forget()
	if pv, err := x.Match(index.Wanted{Claim: pvbuild.NewClaim("second", "1Gi")}); err != nil || pv.Name != "a" {
		t.Errorf("after it was forgotten: %v, %v", pvbuild.VolumeName(pv), err)
	}
}

// An event that was on its way when a binding was assumed does not undo it.
func TestALateEventDoesNotUndoAnAssumedBinding(t *testing.T) {
	at := func(version string) pvbuild.Option {
		return func(pv *v1.PersistentVolume) { pv.UID, pv.ResourceVersion = "a", version }
	}
	x := index.New(pvbuild.NewPV("a", "1Gi", at("9")))
	table, _ := newTable(x)
	r, err := table.Reserve(index.Wanted{Claim: pvbuild.NewClaim("first", "1Gi")})
	if err != nil {
		t.Fatal(err)
	}
	r.Assume(pvbuild.NewPV("a", "1Gi", at("11"), pvbuild.ForClaim("first", "uid-first")))
	x.Put(pvbuild.NewPV("a", "1Gi", at("10")))
	second := index.Wanted{Claim: pvbuild.NewClaim("second", "1Gi")}
	if pv, err := x.Match(second); err == nil {
		t.Errorf("another claim gets %s", pv.Name)
	}
	x.Put(pvbuild.NewPV("a", "1Gi", at("12"))) // its claimRef was taken away
	if _, err := x.Match(second); err != nil {
		t.Error(err)
	}
	if pv, ok := x.Volume("a"); !ok || pv.ResourceVersion != "12" {
		t.Errorf("Volume = %v, %v", pv, ok)
	}
}
