package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/podvol/podvol/examples/podvol/internal/kubectlget"
	"github.com/podvol/podvol/volume/claimbinding"
	"github.com/podvol/podvol/volume/persistentvolume"
	"github.com/podvol/podvol/volume/persistentvolume/embedded"
	"github.com/podvol/podvol/volume/persistentvolume/index"
)

// explainClaims says of each claim that is shown and cannot be used why that is.
func explainClaims(w io.Writer, found stored, shown []*v1.PersistentVolumeClaim, users kubectlget.ClaimUsers) {
	whys := claimWhys{found: found, users: users}
	for _, claim := range shown {
		for _, why := range whys.of(claim) {
			printNote(w, nameOfClaim(claim).String(), why)
		}
	}
}

// claimWhys say why claims cannot be used.
type claimWhys struct {
	found stored
	users kubectlget.ClaimUsers
	index *index.Index // made once there is a claim that it is for
}

// of returns the reasons of one claim; none: it can be used.
func (w *claimWhys) of(claim *v1.PersistentVolumeClaim) (whys []string) {
	name := nameOfClaim(claim)
	switch {
	case claim.DeletionTimestamp != nil:
		return []string{whyStillThere(w.users[name])}
	case claim.Status.Phase == v1.ClaimBound || claim.Status.Phase == v1.ClaimLost:
		if err := claimbinding.Check(claim, w.found.volume(claim.Spec.VolumeName)); err != nil {
			whys = append(whys, err.Error())
		}
		for _, c := range claim.Status.Conditions {
			whys = append(whys, string(c.Type)+": "+c.Message)
		}
		return whys
	case w.found.reasons[name.String()].UID == claim.UID:
		return []string{asFound(w.found.reasons[name.String()], time.Now())}
	}
	if w.index == nil {
		w.index = indexOf(w.found)
	}
	return []string{whyPending(w.index, claim)}
}

func whyStillThere(users []string) string {
	if len(users) == 0 {
		return "it is being deleted, which podvol run-node does once it has read all manifests; podvol pvc delete does it now"
	}
	return "it is being deleted, once no pod uses it: " + strings.Join(users, ", ")
}

// asFound is what podvol run-node or podvol mount has said, and when, if that has
// ended since.
func asFound(reason embedded.Reason, now time.Time) string {
	if reason.Ended == nil {
		return reason.Text
	}
	return fmt.Sprintf("%s (as it was %s ago)", reason.Text, duration.HumanDuration(now.Sub(*reason.Ended)))
}

// indexOf returns what the controller sees when it looks for a claim's volume.
func indexOf(found stored) *index.Index {
	index := index.New(found.volumes...)
	for _, claim := range found.claims {
		index.PutClaim(claim)
	}
	return index
}

// whyPending is for a claim that is pending for a reason not told. It asks the
// controller's own rules. Storage classes are not recorded: what they do for the
// claim, only those can say who have read them.
func whyPending(volumes *index.Index, claim *v1.PersistentVolumeClaim) string {
	if slices.Contains(claim.Finalizers, persistentvolume.ProvisioningFinalizer) {
		return "its volume is being made; podvol run-node and podvol mount say why, if that fails"
	}
	pv, err := volumes.Match(index.Wanted{Claim: claim})
	if err == nil {
		return fmt.Sprintf("PersistentVolume %q fits, if its class does not make it wait for a pod that uses it; podvol run-node and podvol mount bind it", pv.Name)
	}
	unbound, ok := errors.AsType[*index.UnboundError](err)
	if !ok {
		return err.Error()
	}
	why := unbound.Why()
	class := claim.Annotations[v1.BetaStorageClassAnnotation]
	if named := claim.Spec.StorageClassName; named != nil {
		class = cmp.Or(class, *named)
	}
	if class == "" || unbound.Volume != "" || !errors.Is(err, claimbinding.ErrUnbound) {
		return why
	}
	return fmt.Sprintf("%s; podvol run-node and podvol mount say whether storage class %q waits for a pod, or makes a volume", why, class)
}
