package volumetest

import (
	"context"
	"errors"
	"fmt"

	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/util/fault"
	"github.com/podvol/podvol/volume/fakehost"
)

// errInjected is what a call fails with that a check lets fail.
var errInjected = errors.New("a fault that the check injected")

// point is a place in an operation where the outside world can act: a call of
// the mounter or of a role, before its effect or after it.
type point struct {
	role bool
	// n is the call's number among those of its kind, from 1.
	n     int
	after bool
}

// beforeAll is before the operation, which plugins have that make no calls.
var beforeAll = point{}

func (p point) String() string {
	if p == beforeAll {
		return "its beginning"
	}
	kind, when := "mounter", "before"
	if p.role {
		kind = "roles"
	}
	if p.after {
		when = "after"
	}
	return fmt.Sprintf("call %d of the %s, %s its effect", p.n, kind, when)
}

// operation is one of SetUp and TearDown as a check disturbs it.
type operation struct {
	name string
	// prepare brings the volume into the state that the operation begins with.
	prepare func(*podVolume)
	run     func(context.Context, *podVolume) error
}

func setUpOperation() operation {
	return operation{
		name:    "SetUp",
		prepare: func(*podVolume) {},
		run:     func(ctx context.Context, v *podVolume) error { return v.setUp(ctx) },
	}
}

func tearDownOperation() operation {
	return operation{
		name:    "TearDown",
		prepare: (*podVolume).mustSetUp,
		run:     func(ctx context.Context, v *podVolume) error { return v.tearDown(ctx) },
	}
}

// refreshOperation is SetUp of what is set up already.
func refreshOperation() operation {
	op := setUpOperation()
	op.name, op.prepare = "another SetUp", (*podVolume).mustSetUp
	return op
}

// points counts the calls of an undisturbed run and returns all points.
func (k *kit) points(c Case, op operation) []point {
	k.Helper()
	return k.pointsOf(op.name, func(k *kit) (*Node, func(context.Context) error) {
		v := k.node(c).volume("a")
		op.prepare(v)
		return v.node, func(ctx context.Context) error { return op.run(ctx, v) }
	})
}

// pointsOf is points of whatever begin makes ready to run.
func (k *kit) pointsOf(name string, begin func(*kit) (*Node, func(context.Context) error)) []point {
	k.Helper()
	var mounter, roles int
	k.bubble(func(k *kit) {
		n, run := begin(k)
		n.mounter.ResetCalls()
		n.ResetRoleCalls()
		if err := run(k.Context()); err != nil {
			k.Fatalf("%s without any fault: %v", name, err)
		}
		mounter, roles = len(n.mounter.Calls()), len(n.RoleCalls())
	})
	if mounter+roles == 0 {
		k.Logf("%s makes no calls of the mounter and the roles: there is nothing to disturb", name)
	} else {
		k.Logf("%s makes %d calls of the mounter and %d of the roles, each disturbed before and after its effect", name, mounter, roles)
	}
	var all []point
	for _, after := range []bool{false, true} {
		for i := range mounter {
			all = append(all, point{n: i + 1, after: after})
		}
		for i := range roles {
			all = append(all, point{role: true, n: i + 1, after: after})
		}
	}
	return all
}

// disturbance is what happens at a point.
type disturbance struct {
	err     error
	release <-chan struct{} // if not nil, the call hangs until it is closed
	// hook, if not nil, is called at the point, before all else.
	hook func()
	// onward disturbs the later calls, of mounter and roles, as well.
	onward bool
}

// disturb arms the point; calls count from now on. reached is closed when the
// point's call is made.
func (n *Node) disturb(p point, d disturbance) (reached chan struct{}, remove func()) {
	reached = make(chan struct{})
	var removeMounter, removeRole func()
	if p.role {
		removeRole = n.InjectRole(faultAt[fakehost.RoleCall](p, d, reached))
		removeMounter = n.mounter.Inject(faultOnward[fakemount.Call](d, reached))
	} else {
		removeMounter = n.mounter.Inject(faultAt[fakemount.Call](p, d, reached))
		removeRole = n.InjectRole(faultOnward[fakehost.RoleCall](d, reached))
	}
	return reached, func() { removeMounter(); removeRole() }
}

// faultAt hits the point's call.
func faultAt[C any](p point, d disturbance, reached chan struct{}) fault.Fault[C] {
	seen := 0
	match := func(C) bool {
		seen++
		if seen == p.n {
			close(reached)
		}
		return seen == p.n || seen > p.n && d.onward
	}
	return fault.Fault[C]{Match: match, After: p.after, Hook: d.hook, Err: d.err, Release: d.release}
}

// faultOnward hits calls of the other kind after the point was reached.
func faultOnward[C any](d disturbance, reached chan struct{}) fault.Fault[C] {
	match := func(C) bool {
		select {
		case <-reached:
			return d.onward
		default:
			return false
		}
	}
	return fault.Fault[C]{Match: match, Err: d.err, Release: d.release}
}
