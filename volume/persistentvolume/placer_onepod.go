package persistentvolume

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/pvapi"
	"github.com/podvol/podvol/volume/objects"
)

// onePod keeps claims with access mode ReadWriteOncePod for the pods that were
// placed with them, until these are seen on their nodes.
type onePod struct {
	mu   sync.Mutex
	kept map[types.NamespacedName]podKeep // by claim
}

// podKeep is for which pod a claim is kept, and by which call.
type podKeep struct {
	pod types.NamespacedName
	uid types.UID
	by  *podHold
}

// podHold is what one call of Place keeps.
type podHold struct {
	one    *onePod
	claims []types.NamespacedName
}

// take reserves a claim for a pod. A reservation for another pod wins and is returned,
// unless it is the stale one that is given.
func (o *onePod) take(claim types.NamespacedName, want podKeep, stale *podKeep) (other podKeep, ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	has, is := o.kept[claim]
	if is && (has.pod != want.pod || has.uid != want.uid) && (stale == nil || has != *stale) {
		return has, false
	}
	if o.kept == nil {
		o.kept = make(map[types.NamespacedName]podKeep)
	}
	o.kept[claim] = want
	return podKeep{}, true
}

// drop says that a claim is kept for no pod, or not for this one.
func (o *onePod) drop(claim types.NamespacedName, pod *types.NamespacedName) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if pod == nil || o.kept[claim].pod == *pod {
		delete(o.kept, claim)
	}
}

// release gives back what a call has kept and no other has since.
func (h *podHold) release() {
	if h == nil {
		return
	}
	h.one.mu.Lock()
	defer h.one.mu.Unlock()
	for _, claim := range h.claims {
		if h.one.kept[claim].by == h {
			delete(h.one.kept, claim)
		}
	}
	h.claims = nil
}

// keepForPod keeps a ReadWriteOncePod claim for a pod that is being placed, if no
// other has it.
func (c *placer) keepForPod(ctx context.Context, pod *v1.Pod, claim types.NamespacedName, hold *podHold) error {
	name := types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
	user, err := c.usedByOther(ctx, pod, claim)
	if err == nil && user != "" {
		c.onePod.drop(claim, &name)
		err = usedBy(user)
	}
	if err != nil {
		return err
	}
	want, gone := podKeep{name, pod.UID, hold}, (*podKeep)(nil)
	for {
		other, ok := c.onePod.take(claim, want, gone)
		if ok {
			hold.claims = append(hold.claims, claim)
			return nil
		}
		placed, err := objects.Get[*v1.Pod](ctx, objects.Live(c.objects), volume.ObjectRef{Kind: pvapi.KindPod, NamespacedName: other.pod})
		if err != nil && !errors.Is(err, volume.ErrNotFound) {
			return err
		}
		if err == nil && placed.UID == other.uid && !hasTerminalPhase(placed) {
			return usedBy(other.pod.Name)
		}
		gone = &other
	}
}

func usedBy(pod string) error { return fmt.Errorf("%w: pod %q", ErrUsedByOtherPod, pod) }

// hasTerminalPhase is less than [volume.HasEnded]: as with Kubernetes' scheduler and
// its condition Unused, the phase alone says whether a pod counts for placing others
// and for that condition, though its node may not have let go of its volumes. What
// destroys data, or gives it to another pod on a node, does not go by it.
func hasTerminalPhase(pod *v1.Pod) bool {
	return pod.Status.Phase == v1.PodSucceeded || pod.Status.Phase == v1.PodFailed
}

// usedByOther returns the other pod that has a claim, if there is one. The API
// itself is asked: two must not be placed because one was not heard of, and after
// one has gone it is asked only once.
func (c *placer) usedByOther(ctx context.Context, pod *v1.Pod, claim types.NamespacedName) (string, error) {
	pods, err := objects.List[*v1.Pod](ctx, objects.Live(c.objects), pvapi.KindPod, claim.Namespace)
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
