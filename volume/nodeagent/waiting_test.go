package nodeagent

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/persistentvolume"
	"github.com/podvol/podvol/volume/persistentvolume/embedded"
	"github.com/podvol/podvol/volume/persistentvolume/index"
	"github.com/podvol/podvol/volume/standalone"
)

// TestAChangeConcernsThePodsThatWaitForIt counts the pods that are tried again after
// one change, on a node where few wait and on one where many do.
func TestAChangeConcernsThePodsThatWaitForIt(t *testing.T) {
	s := newWaitingClaims(t)
	concerned := map[string]volume.ObjectRef{
		"their claim": claimRef(7), "a claim of another": volume.NewObjectRef("PersistentVolumeClaim", "other", "c7"),
		"the volume of their claim": volume.NewObjectRef("PersistentVolume", "", "of-c7"),
		"a volume that is gone":     volume.NewObjectRef("PersistentVolume", "", "gone"),
		"a free one of their class": volume.NewObjectRef("PersistentVolume", "", "free"),
		"another pod":               volume.NewObjectRef("Pod", "ops-test", "p1"),
		"the node":                  volume.NewObjectRef("Node", "", "node1"),
	}
	for _, n := range []int{500, 4000} {
		waiting := newWaitingPods()
		for i := range n {
			w := s.waitingPod(i)
			waiting.put(w, s.awaited(t.Context(), w))
		}
		want := map[string]int{ // pods 0 to 3 wait for something else besides
			"their claim": 1 + 1, "a claim of another": 0 + 1, "the volume of their claim": 1 + 1, "a volume that is gone": 0 + 1,
			"a free one of their class": 1 + 1, "another pod": 1 + 1, "the node": n,
		}
		for what, ref := range concerned {
			found := waiting.waitingFor(s.concerned(t.Context(), map[volume.ObjectRef]bool{ref: true}))
			if len(found) != want[what] {
				t.Errorf("%d pods wait; %s concerns %d of them, want %d", n, what, len(found), want[what])
			}
		}
		for i := range n {
			waiting.remove(s.waitingPod(i).pod.UID)
		}
		if len(waiting.by)+len(waiting.refs)+len(waiting.all) > 0 {
			t.Errorf("left behind: %v", waiting.by)
		}
	}
}

type waitingClaims struct{ *claims }

func newWaitingClaims(t *testing.T) waitingClaims {
	root := filepath.Join(t.TempDir(), "root")
	s, err := openClaims(t.Context(), standalone.ClaimsConfig{
		RootDir: root, Node: standalone.NodeConfig{RootDir: root, NodeName: "node1", Mounter: fakemount.New()}, Manager: "test"}, "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.end = func() error { return nil }
		if err := s.stop(); err != nil {
			t.Error(err)
		}
	})
	class := "disks"
	claim := &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ops-test", Name: "c1", UID: "c1"}, Spec: v1.PersistentVolumeClaimSpec{StorageClassName: &class}}
	free := &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "free"}, Spec: v1.PersistentVolumeSpec{StorageClassName: class}}
	taken := &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "of-c7"}, Spec: v1.PersistentVolumeSpec{
		StorageClassName: class, ClaimRef: &v1.ObjectReference{Namespace: "ops-test", Name: "c7"}}}
	for _, o := range []metav1.Object{claim, free, taken} {
		if _, err := s.cluster.Objects().Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	return waitingClaims{s}
}

func claimRef(i int) volume.ObjectRef {
	return volume.NewObjectRef("PersistentVolumeClaim", "ops-test", fmt.Sprintf("c%d", i))
}

// waitingPod waits for its own claim; some do for something else too.
func (waitingClaims) waitingPod(i int) waitingPod {
	claim := claimRef(i).NamespacedName
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ops-test", Name: fmt.Sprintf("p%d", i), UID: types.UID(fmt.Sprintf("uid-%d", i))}}
	pod.Spec.Volumes = []v1.Volume{{Name: "data", VolumeSource: v1.VolumeSource{
		PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: claim.Name}}}}
	unbound := func(err error) error {
		return &embedded.BindError{Unbound: []*embedded.UnboundClaim{{Claim: claim, Err: err}}}
	}
	switch i {
	case 0:
		return waitingPod{pod: pod, err: objects.ErrConflict} // nobody knows for what
	case 1:
		return waitingPod{pod: pod, err: unbound(index.ErrWaitsForConsumer)} // for a volume of its claim's class
	case 2:
		return waitingPod{pod: pod, err: unbound(persistentvolume.ErrUsedByOtherPod)}
	}
	return waitingPod{pod: pod, err: unbound(volume.ErrNotFound)}
}

// A pod that waits for a claim has a row for each volume, which says why it waits.
func TestRowsOfAWaitingPod(t *testing.T) {
	w := waitingClaims{}.waitingPod(3)
	w.pod.Spec.NodeName = "node1"
	w.pod.Spec.Volumes = append(w.pod.Spec.Volumes, v1.Volume{Name: "cache"}, v1.Volume{Name: "spare"})
	w.pod.Spec.Containers = []v1.Container{{Name: "c", VolumeMounts: []v1.VolumeMount{{Name: "data"}, {Name: "cache"}}}}
	more := &embedded.UnboundClaim{Claim: types.NamespacedName{Namespace: "ops-test", Name: "more"}, Err: volume.ErrNotFound}
	for _, tc := range []struct {
		err  error
		want string
	}{
		{w.err, "not set up before the pod has claim ops-test/c3"},
		{&embedded.BindError{Unbound: append(w.err.(*embedded.BindError).Unbound, more)}, "not set up before the pod has claim ops-test/c3 and 1 more"},
		{objects.ErrConflict, "not set up before the pod has its claims"},
	} {
		w.err = tc.err
		var got []string
		for _, r := range w.rows() {
			text := r.Volume + " " + string(r.State)
			if r.Err != nil {
				text += ": " + r.Err.Error()
				if !errors.Is(r.Err, volume.ErrNotFound) && !errors.Is(r.Err, objects.ErrConflict) {
					t.Errorf("%s has no cause", text)
				}
			}
			if got = append(got, text); r.NodeName != "node1" || !r.Wanted {
				t.Errorf("%+v", r)
			}
		}
		if len(got) != 3 || !strings.HasPrefix(got[0], "data pending: ") || got[1] != "cache pending: "+tc.want || got[2] != "spare not used" {
			t.Errorf("%q", got)
		}
	}
}
