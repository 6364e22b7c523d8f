package csitest

import (
	"context"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"
)

// StatsCaller is an optional part of a [Caller], which asks for a volume's numbers and retries as
// it does. A caller without it is not killed at NodeGetVolumeStats.
type StatsCaller interface {
	VolumeStats(ctx context.Context, pod types.UID, volume string) error
}

// canMeasure reports whether a caller asks for volumes' numbers.
func canMeasure(c Caller) bool {
	_, ok := c.(StatsCaller)
	return ok
}

// measure asks for the numbers of a pod's volume. A caller that cannot asks nothing.
func measure(ctx context.Context, c Caller, pod types.UID) error {
	if m, ok := c.(StatsCaller); ok {
		return m.VolumeStats(ctx, pod, "data")
	}
	return nil
}

// mortalLife is a life of a volume at whose calls the caller and the driver are killed.
type mortalLife struct {
	name string
	// prepare makes the volume one of this life; false: it needs what is not here.
	prepare func(*check) bool
	pod     func(types.UID) *v1.Pod
	// use is what comes between set-up and teardown. struck is closed once a kill has come.
	use     func(k *check, c Caller, struck <-chan struct{}) error
	methods []string
	// nth call of a method is struck; 0: the first.
	nth int
}

// mortalLives are the kinds of volumes, and what may happen to them on a node.
func mortalLives() []mortalLife {
	always := func(*check) bool { return true }
	idle := func(*check, Caller, <-chan struct{}) error { return nil }
	return []mortalLife{
		{name: "", prepare: always, pod: pod, use: idle, methods: methodsOfLife()},
		{name: "-inline", prepare: (*check).asInline, pod: inlinePod, use: idle, methods: []string{"NodePublishVolume", "NodeUnpublishVolume"}},
		{name: "-block", prepare: (*check).asBlock, pod: func(uid types.UID) *v1.Pod { return blockPod(pod(uid)) }, use: (*check).wantBlock, methods: methodsOfLife()},
		{name: "-republish", prepare: (*check).asRepublished, pod: pod, use: (*check).awaitStruck, methods: []string{"NodePublishVolume"}, nth: 2},
		{name: "-expand", prepare: (*check).asGrowing, pod: pod, use: idle, methods: []string{"NodeExpandVolume"}},
		{name: "-stats", prepare: (*check).asMeasured, pod: pod, methods: []string{"NodeGetVolumeStats"}, use: func(k *check, c Caller, _ <-chan struct{}) error {
			ctx, cancel := k.patience()
			defer cancel()
			return measure(ctx, c, "u1")
		}},
	}
}

// mortalChecks are the checks with kills by their names.
func mortalChecks() map[string]func(*check) {
	all := make(map[string]func(*check))
	for _, l := range mortalLives() {
		all["killed-caller"+l.name] = func(k *check) { k.mortal(l, k.killCaller) }
		all["killed-driver"+l.name] = func(k *check) { k.mortal(l, k.killDriver) }
	}
	return all
}

// asInline gives pods volumes of their own.
func (k *check) asInline() bool {
	k.describe(storagev1.CSIDriverSpec{PodInfoOnMount: new(true), VolumeLifecycleModes: []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecycleEphemeral}})
	return true
}

func inlinePod(uid types.UID) *v1.Pod {
	p := pod(uid)
	p.Spec.Volumes[0].VolumeSource = v1.VolumeSource{CSI: &v1.CSIVolumeSource{Driver: DefaultName}}
	return p
}

// asRepublished has the driver want NodePublishVolume again and again.
func (k *check) asRepublished() bool {
	k.describe(storagev1.CSIDriverSpec{RequiresRepublish: new(true)})
	k.node.Republish = time.Millisecond
	return true
}

// asGrowing has the volume grow where it is staged.
func (k *check) asGrowing() bool {
	k.enlarge("2Mi")
	return true
}

// asMeasured begins a caller to see whether it asks for numbers.
func (k *check) asMeasured() bool {
	k.begin()
	k.caller.Kill()
	k.absent = !canMeasure(k.caller)
	return !k.absent
}

func (k *check) wantBlock(Caller, <-chan struct{}) error {
	if r := k.lastPublish(); r.VolumeCapability.GetBlock() == nil {
		k.wrong("published with %v", r)
	}
	return nil
}

// awaitStruck waits for a kill that comes while nobody asks for anything.
func (k *check) awaitStruck(_ Caller, struck <-chan struct{}) error {
	k.await(struck, 1)
	return nil
}

// mortal strikes at each call of a life, before and after its effect.
func (k *check) mortal(l mortalLife, strike func(l mortalLife, method string, after bool)) {
	if !l.prepare(k) {
		return
	}
	k.begin()
	for _, method := range l.methods {
		for _, after := range []bool{false, true} {
			if strike(l, method, after); k.hasFaults() {
				return
			}
		}
	}
}

func (k *check) hasFaults() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.faults) > 0
}

// live is a whole life, of which nothing is left.
func (k *check) live(l mortalLife, struck <-chan struct{}) {
	k.setUp(l.pod("u1"))
	if err := l.use(k, k.caller, struck); err != nil {
		k.wrong("using the volume: %v", err)
	}
	k.tearDown("u1")
}

// killCaller: a caller that was killed at a call forgets nothing.
func (k *check) killCaller(l mortalLife, method string, after bool) {
	killed, caller := make(chan struct{}), k.caller
	remove := k.driver.Inject(Fault{Match: Method(method), Nth: max(l.nth, 1), After: after, Hook: func() { close(killed); caller.Kill() }})
	ctx, cancel := k.patience()
	defer cancel()
	if _, err := caller.SetUp(ctx, l.pod("u1")); err == nil {
		_ = l.use(k, caller, killed)
	}
	_ = caller.TearDown(ctx, "u1")
	remove()
	if k.wantStruck(killed, method); k.hasFaults() {
		return
	}
	k.again()
	k.live(l, killed)
	k.wantNothing()
	k.again()
}

// wantStruck notes a call at which no kill came.
func (k *check) wantStruck(struck <-chan struct{}, method string) {
	select {
	case <-struck:
	default:
		k.wrong("there was no call of %s", method)
	}
}

// killDriver: a driver that was killed at a call, and comes back, loses nothing.
func (k *check) killDriver(l mortalLife, method string, after bool) {
	killed := make(chan struct{})
	remove := k.driver.Inject(Fault{Match: Method(method), Nth: max(l.nth, 1), After: after, Hook: func() { k.driver.Kill(); close(killed) }})
	done := make(chan struct{})
	go func() {
		defer close(done)
		k.live(l, killed)
	}()
	select {
	case <-killed:
		k.startDriver()
	case <-done:
	}
	<-done
	remove()
	k.wantStruck(killed, method)
	k.wantNothing()
}
