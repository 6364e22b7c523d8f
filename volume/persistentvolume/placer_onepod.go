package persistentvolume

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/pvapi"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/persistentvolume/internal/reservation"
)

// reserveForPod keeps a claim with access mode ReadWriteOncePod for a pod that is being
// placed, until the pod is seen on its node, if no other pod has the claim.
func (c *placer) reserveForPod(ctx context.Context, pod *v1.Pod, claim types.NamespacedName) (*reservation.Entry, error) {
	name := types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
	user, err := c.usedByOther(ctx, pod, claim)
	if err == nil && user != "" {
		c.table.ForgetPod(claim, name)
		err = usedBy(user)
	}
	if err != nil {
		return nil, err
	}
	for {
		e, other := c.table.ReserveForPod(claim, reservation.Pod{NamespacedName: name, UID: pod.UID})
		if other == nil {
			return e, nil
		}
		placed, err := objects.Get[*v1.Pod](ctx, objects.Live(c.cluster.objects), volume.ObjectRef{Kind: pvapi.KindPod, NamespacedName: other.Pod().NamespacedName})
		if err != nil && !errors.Is(err, volume.ErrNotFound) {
			return nil, err
		}
		if err == nil && placed.UID == other.Pod().UID && !hasTerminalPhase(placed) {
			return nil, usedBy(other.Pod().Name)
		}
		other.Forget() // its pod has gone or ended
	}
}

func usedBy(pod string) error { return fmt.Errorf("%w: pod %q", ErrUsedByOtherPod, pod) }

// usedByOther returns the other pod that has a claim, if there is one. The API
// itself is asked: two must not be placed because one was not heard of, and after
// one has gone it is asked only once.
func (c *placer) usedByOther(ctx context.Context, pod *v1.Pod, claim types.NamespacedName) (string, error) {
	pods, err := objects.List[*v1.Pod](ctx, objects.Live(c.cluster.objects), pvapi.KindPod, claim.Namespace)
	return userAmong(pods, pod, claim), err
}

// userAmong returns the pod that keeps another from a claim: one that is on a
// node. Of several that were made with a node, one that runs comes first, then
// the one that was made first.
func userAmong(pods []*v1.Pod, pod *v1.Pod, claim types.NamespacedName) string {
	if i := slices.IndexFunc(pods, func(p *v1.Pod) bool { return p.Name == pod.Name && p.UID == pod.UID }); i >= 0 {
		pod = pods[i] // as it is by now
	}
	for _, other := range pods {
		if other.Name == pod.Name || other.Spec.NodeName == "" || hasTerminalPhase(other) || !slices.Contains(claimsOfPod(other), claim) {
			continue
		}
		if pod.Spec.NodeName == "" || isBefore(other, pod) {
			return other.Name
		}
	}
	return ""
}

func isBefore(a, b *v1.Pod) bool {
	if runs := a.Status.Phase == v1.PodRunning; runs != (b.Status.Phase == v1.PodRunning) {
		return runs
	}
	if by := a.CreationTimestamp.Compare(b.CreationTimestamp.Time); by != 0 {
		return by < 0
	}
	return strings.Compare(a.Name, b.Name) < 0
}
