package sim

import (
	"errors"
	"fmt"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/util/fault"
	"github.com/podvol/podvol/volume/fakehost"
)

// ErrInjected is what a call fails with that a check lets fail.
var ErrInjected = errors.New("a fault that the check injected")

// Point is a place in an operation where the outside world can act: a call of
// the mounter or of a role, before its effect or after it.
type Point struct {
	Role bool
	// N is the call's number among those of its kind, from 1.
	N     int
	After bool
}

// BeforeAll is before the operation, which plugins have that make no calls.
var BeforeAll = Point{}

func (p Point) String() string {
	if p == BeforeAll {
		return "its beginning"
	}
	kind, when := "mounter", "before"
	if p.Role {
		kind = "roles"
	}
	if p.After {
		when = "after"
	}
	return fmt.Sprintf("call %d of the %s, %s its effect", p.N, kind, when)
}

// Disturbance is the effect at a point.
type Disturbance struct {
	Err     error
	Release <-chan struct{} // if not nil, the call hangs until it is closed
	// Hook, if not nil, is called at the point, before all else.
	Hook func()
	// Onward disturbs the later calls, of mounter and roles, as well.
	Onward bool
}

// Disturb arms the point; calls count from now on. reached is closed when the
// point's call is made.
func (n *Node) Disturb(p Point, d Disturbance) (reached chan struct{}, remove func()) {
	reached = make(chan struct{})
	var removeMounter, removeRole func()
	if p.Role {
		removeRole = n.InjectRole(faultAt[fakehost.RoleCall](p, d, reached))
		removeMounter = n.mounter.Inject(faultOnward[fakemount.Call](d, reached))
	} else {
		removeMounter = n.mounter.Inject(faultAt[fakemount.Call](p, d, reached))
		removeRole = n.InjectRole(faultOnward[fakehost.RoleCall](d, reached))
	}
	return reached, func() { removeMounter(); removeRole() }
}

// faultAt hits the point's call.
func faultAt[C any](p Point, d Disturbance, reached chan struct{}) fault.Fault[C] {
	seen := 0
	match := func(C) bool {
		seen++
		if seen == p.N {
			close(reached)
		}
		return seen == p.N || seen > p.N && d.Onward
	}
	return fault.Fault[C]{Match: match, After: p.After, Hook: d.Hook, Err: d.Err, Release: d.Release}
}

// faultOnward hits calls of the other kind after the point was reached.
func faultOnward[C any](d Disturbance, reached chan struct{}) fault.Fault[C] {
	match := func(C) bool {
		select {
		case <-reached:
			return d.Onward
		default:
			return false
		}
	}
	return fault.Fault[C]{Match: match, Err: d.Err, Release: d.Release}
}

// Count runs something that makes calls, undisturbed, and returns how many calls of the
// mounter and of the roles these are.
func (n *Node) Count(run func() error) (mounter, roles int, err error) {
	n.ResetCalls()
	err = run()
	return len(MounterCalls(n.Host)), len(n.RoleCalls()), err
}

// Points returns all points of so many calls, those before an effect first.
func Points(mounter, roles int) []Point {
	var all []Point
	for _, after := range []bool{false, true} {
		for i := range mounter {
			all = append(all, Point{N: i + 1, After: after})
		}
		for i := range roles {
			all = append(all, Point{Role: true, N: i + 1, After: after})
		}
	}
	return all
}

// TroubleAll lets every call of the mounter and the roles hang, or fail as those
// of a server that does not answer, until end.
func (n *Node) TroubleAll(hang bool) (end func()) {
	var err error
	release := make(chan struct{})
	if !hang {
		err = &mount.Error{Op: mount.OpMount, Cause: mount.ErrTimedOut, Uncertain: true, Err: ErrInjected}
		close(release)
	}
	removeMounter := n.mounter.Inject(fakemount.Fault{Err: err, Release: release})
	removeRole := n.InjectRole(fakehost.RoleFault{Err: err, Release: release})
	return func() {
		removeMounter()
		removeRole()
		if hang {
			close(release)
		}
	}
}
