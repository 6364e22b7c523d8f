package csitest

import (
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// enlarge is a controller's part of a larger claim: the node's is still to be done. The caller
// sees it at its next start.
func (k *check) enlarge(size string) {
	list := func(size string) v1.ResourceList {
		return v1.ResourceList{v1.ResourceStorage: resource.MustParse(size)}
	}
	for i, o := range k.node.Objects {
		switch o := o.(type) {
		case *v1.PersistentVolume:
			next := o.DeepCopy()
			next.Spec.Capacity = list(size)
			k.node.Objects[i] = next
		case *v1.PersistentVolumeClaim:
			next := o.DeepCopy()
			next.Status.Capacity, next.Status.AllocatedResources = list("1Mi"), list(size)
			next.Status.AllocatedResourceStatuses = map[v1.ResourceName]v1.ClaimResourceStatus{v1.ResourceStorage: v1.PersistentVolumeClaimNodeResizePending}
			next.Status.Conditions = []v1.PersistentVolumeClaimCondition{{Type: v1.PersistentVolumeClaimFileSystemResizePending, Status: v1.ConditionTrue}}
			k.node.Objects[i] = next
		}
	}
}

// grown are the sizes that the driver was asked to grow to, and where: at the staged or at the
// published path.
func (k *check) grown() (calls []string) {
	for _, c := range k.driver.CallsOf("NodeExpandVolume") {
		r, place := c.Request.(*csi.NodeExpandVolumeRequest), "staged"
		if r.VolumePath != r.StagingTargetPath {
			place = "published"
		}
		calls = append(calls, place+" "+resource.NewQuantity(r.GetCapacityRange().GetRequiredBytes(), resource.BinarySI).String())
	}
	return calls
}

func (k *check) wantGrown(want ...string) {
	k.t.Helper()
	if got := k.grown(); !slices.Equal(got, want) {
		k.wrong("the driver was asked to grow to %q, want %q", got, want)
	}
}

// again ends the caller, and starts it anew.
func (k *check) again() {
	k.t.Helper()
	k.caller.Kill()
	k.begin()
}

// expansion: a volume grows on the node once its claim says so, staged and before it is
// published, or while it is; once for all pods, and again only where the outcome is not known.
func (k *check) expansion() {
	k.enlarge("2Mi")
	k.begin()
	k.setUp(pod("u1"))
	k.setUp(pod("u2"))
	k.wantGrown("staged 2Mi")
	if i := slices.IndexFunc(k.driver.Calls(), func(c Call) bool { return c.Method == "NodePublishVolume" }); i >= 0 {
		if !slices.ContainsFunc(k.driver.Calls()[:i], func(c Call) bool { return c.Method == "NodeExpandVolume" }) {
			k.wrong("it is published before it has grown")
		}
	}
	k.again()
	k.setUp(pod("u1"))
	k.wantGrown("staged 2Mi")
	k.caller.Kill()
	k.enlarge("3Mi")
	k.begin()
	k.setUp(pod("u1"))
	k.setUp(pod("u2"))
	k.wantGrown("staged 2Mi", "published 3Mi")
	// It dies at the call, before and after the effect: nobody knows whether that was had.
	for i, after := range []bool{false, true} {
		k.caller.Kill()
		k.enlarge([]string{"4Mi", "5Mi"}[i])
		k.begin()
		remove := k.driver.Inject(Fault{Match: Method("NodeExpandVolume"), Nth: 1, After: after, Hook: k.caller.Kill, Err: status.Error(codes.Unavailable, "too late")})
		ctx, cancel := k.patience()
		_, _ = k.caller.SetUp(ctx, pod("u1"))
		cancel()
		remove()
		k.begin()
		k.setUp(pod("u1"))
		k.setUp(pod("u2"))
	}
	var sizes []string
	for _, c := range k.grown() {
		_, size, _ := strings.Cut(c, " ") // a volume that was published may be asked for at either path
		sizes = append(sizes, size)
	}
	if want := []string{"2Mi", "3Mi", "4Mi", "4Mi", "5Mi", "5Mi"}; !slices.Equal(sizes, want) {
		k.wrong("with its deaths the driver was asked to grow to %q, want %q", sizes, want)
	}
	k.tearDown("u1")
	k.tearDown("u2")
	k.wantNothing()
}

// expansionRefused: a size that is infeasible, or that a volume in use cannot get, keeps no pod
// from the volume, and is not asked for again while the volume is there.
func (k *check) expansionRefused() {
	for i, code := range []codes.Code{codes.OutOfRange, codes.FailedPrecondition} {
		k.enlarge([]string{"2Mi", "3Mi"}[i])
		n := len(k.grown())
		remove := k.driver.Inject(Fault{Match: Method("NodeExpandVolume"), Err: status.Error(code, "no")})
		k.begin()
		k.setUp(pod("u1"))
		k.setUp(pod("u1"))
		k.setUp(pod("u2"))
		if got := k.grown()[n:]; len(got) != 1 {
			k.wrong("after %v the driver was asked to grow by %q", code, got)
		}
		remove()
		k.tearDown("u1")
		k.tearDown("u2")
		k.wantNothing()
		if code == codes.FailedPrecondition {
			n := len(k.grown())
			k.setUp(pod("u3"))
			if got := k.grown()[n:]; !slices.Equal(got, []string{"staged 3Mi"}) {
				k.wrong("at the next mount of what was in use the driver was asked to grow by %q", got)
			}
			k.tearDown("u3")
		}
		k.caller.Kill()
	}
}
