package embedded

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/podvol/podvol/volume/internal/pvapi"
	"github.com/podvol/podvol/volume/objects"
)

// AwaitChanges waits until the bound claims of pods have the size and the attributes that they
// ask for, as far as that is not a node's work, and returns by claim why others have not. The
// cluster must run meanwhile.
//
//   - It waits for these claims only, and for no further attempt after one has failed.
//   - Waiting, unless nil, is called once, with the claims that are waited for.
//   - If ctx ends, that is the reason for each claim that is still waited for. Its volume is
//     changed all the same.
func (c *Cluster) AwaitChanges(ctx context.Context, waiting func([]types.NamespacedName), pods ...*v1.Pod) map[types.NamespacedName]error {
	changed, stop := c.watch(kindClaim)
	defer stop()
	explained, stop := c.reasons.heard()
	defer stop()
	for {
		asked, missing := changesOf(c, pods)
		if len(asked) == 0 {
			return missing
		}
		if waiting != nil {
			waiting(slices.SortedFunc(maps.Keys(asked), byName))
			waiting = nil
		}
		select {
		case <-changed:
		case <-explained:
		case <-ctx.Done():
			for name, what := range asked {
				missing[name] = fmt.Errorf("%s, which is not done yet: %w", what, context.Cause(ctx))
			}
			return missing
		}
	}
}

func byName(a, b types.NamespacedName) int { return strings.Compare(a.String(), b.String()) }

// changesOf returns what the controller has still to do for the bound claims of pods, and why it
// does not do the rest.
func changesOf(c *Cluster, pods []*v1.Pod) (asked map[types.NamespacedName]string, missing map[types.NamespacedName]error) {
	asked, missing = make(map[types.NamespacedName]string), make(map[types.NamespacedName]error)
	for _, pod := range onlyUsed(pods) {
		for _, name := range claimsOf(pod) {
			claim, err := objects.Get[*v1.PersistentVolumeClaim](context.Background(), c.objects, pvapi.ClaimRef(name))
			if err != nil || claim.Status.Phase != v1.ClaimBound || claim.DeletionTimestamp != nil {
				continue
			}
			what := wishOf(claim)
			if why := c.controller.ExplainChanges(name); what != "" && why != nil {
				missing[name] = why
			} else if what != "" {
				asked[name] = what
			}
		}
	}
	return asked, missing
}

// wishOf says what the controller is to change of a claim's volume; empty: nothing.
func wishOf(claim *v1.PersistentVolumeClaim) string {
	want, has := pvapi.RequestOf(claim), claim.Status.Capacity[v1.ResourceStorage]
	if want.Cmp(has) > 0 && !pvapi.IsNodeResizing(&claim.Status) {
		return fmt.Sprintf("its volume is made larger, to %s", want.String())
	}
	if class := ptr.Deref(claim.Spec.VolumeAttributesClassName, ""); class != "" && class != ptr.Deref(claim.Status.CurrentVolumeAttributesClassName, "") {
		return fmt.Sprintf("its volume is given the VolumeAttributesClass %q", class)
	}
	return ""
}
