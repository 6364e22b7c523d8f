package clusterhost_test

import (
	"errors"
	"fmt"
	"net/http"
	"testing"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/clusterhost"
)

func gi(n int64) resource.Quantity { return *resource.NewQuantity(n<<30, resource.BinarySI) }

func storage(n int64) v1.ResourceList { return v1.ResourceList{v1.ResourceStorage: gi(n)} }

// growingClaim is a claim of 2 GiB whose volume has 1 GiB on its node.
func growingClaim() *v1.PersistentVolumeClaim {
	return &v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ops", Name: "data"},
		Spec: v1.PersistentVolumeClaimSpec{AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}, VolumeName: "pv-data",
			Resources: v1.VolumeResourceRequirements{Requests: storage(2)}},
		Status: growingStatus(),
	}
}

func growingStatus() v1.PersistentVolumeClaimStatus {
	return v1.PersistentVolumeClaimStatus{
		Phase: v1.ClaimBound, Capacity: storage(1), AllocatedResources: storage(2), AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
		AllocatedResourceStatuses: map[v1.ResourceName]v1.ClaimResourceStatus{v1.ResourceStorage: v1.PersistentVolumeClaimNodeResizePending},
		Conditions:                []v1.PersistentVolumeClaimCondition{{Type: v1.PersistentVolumeClaimFileSystemResizePending, Status: v1.ConditionTrue}},
	}
}

func TestNodeResizes(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.add(growingClaim())
		mustAll(t, w.api.DirectStatus(t.Context(), growingClaim()))
		r := clusterhost.NewNodeResizes(w.clientset)
		name := types.NamespacedName{Namespace: "ops", Name: "data"}
		uid := stored[*v1.PersistentVolumeClaim](w, "PersistentVolumeClaim", "ops", "data").UID
		infeasible := fmt.Errorf("%w: quota", volume.ErrResizeInfeasible)
		mustAll(t, r.ReportNodeResize(t.Context(), name, "another", gi(2), nil),
			r.ReportNodeResize(t.Context(), types.NamespacedName{Namespace: "ops", Name: "missing"}, uid, gi(2), nil))
		if n := w.asked("patch PersistentVolumeClaim"); n != 0 {
			t.Errorf("%d patches for claims that are not this one", n)
		}
		mustAll(t, r.ReportNodeResizeStarted(t.Context(), name, "another"), r.ReportNodeResizeStarted(t.Context(), name, uid), r.ReportNodeResizeStarted(t.Context(), name, uid))
		begun := stored[*v1.PersistentVolumeClaim](w, "PersistentVolumeClaim", "ops", "data").Status
		if begun.AllocatedResourceStatuses[v1.ResourceStorage] != v1.PersistentVolumeClaimNodeResizeInProgress || len(begun.Conditions) != 1 || w.asked("patch PersistentVolumeClaim") != 1 {
			t.Errorf("begun: %+v", begun)
		}
		mustAll(t, r.ReportNodeResize(t.Context(), name, uid, gi(2), infeasible), r.ReportNodeResize(t.Context(), name, uid, gi(2), infeasible))
		s := stored[*v1.PersistentVolumeClaim](w, "PersistentVolumeClaim", "ops", "data").Status
		if got := s.Capacity[v1.ResourceStorage]; got.Cmp(gi(1)) != 0 || s.AllocatedResourceStatuses[v1.ResourceStorage] != v1.PersistentVolumeClaimNodeResizeInfeasible || len(s.Conditions) != 2 {
			t.Errorf("infeasible: %+v", s)
		}
		conflicts := 2
		w.api.Refuse(func(q *http.Request) *metav1.Status {
			if q.Method != http.MethodPatch || conflicts == 0 {
				return nil
			}
			conflicts--
			status := apierrors.NewConflict(v1.Resource("persistentvolumeclaims"), "data", errors.New("changed")).Status()
			return &status
		})
		mustAll(t, r.ReportNodeResize(t.Context(), name, uid, gi(2), nil))
		s = stored[*v1.PersistentVolumeClaim](w, "PersistentVolumeClaim", "ops", "data").Status
		if got := s.Capacity[v1.ResourceStorage]; got.Cmp(gi(2)) != 0 || len(s.AllocatedResourceStatuses) != 0 || len(s.Conditions) != 0 || s.Phase != v1.ClaimBound {
			t.Errorf("grown, after conflicts: %+v", s)
		}
		w.api.Refuse(func(*http.Request) *metav1.Status {
			status := apierrors.NewInternalError(errors.New("x")).Status()
			return &status
		})
		if err := r.ReportNodeResize(t.Context(), name, uid, gi(3), nil); !apierrors.IsInternalError(err) {
			t.Errorf("of an API that fails: %v", err)
		}
	})
}

// A node may write this much of the claims of its pods.
func growthOnANode(t *testing.T, n *realNode) {
	core, options := n.admin.CoreV1(), metav1.CreateOptions{}
	pv := &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv-data"}, Spec: v1.PersistentVolumeSpec{
		Capacity: storage(2), AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
		ClaimRef:               &v1.ObjectReference{Namespace: "ops", Name: "data"},
		PersistentVolumeSource: v1.PersistentVolumeSource{NFS: &v1.NFSVolumeSource{Server: "s", Path: "/p"}}}}
	_, err := core.PersistentVolumes().Create(t.Context(), pv, options)
	must(t, err)
	claim, err := core.PersistentVolumeClaims("ops").Create(t.Context(), growingClaim(), options)
	must(t, err)
	claim.Status = growingStatus()
	claim, err = core.PersistentVolumeClaims("ops").UpdateStatus(t.Context(), claim, metav1.UpdateOptions{})
	must(t, err)
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ops", Name: "writer"}, Spec: v1.PodSpec{
		NodeName: "node1", Containers: []v1.Container{{Name: "c", Image: "i"}}, ServiceAccountName: "app",
		Volumes: []v1.Volume{{Name: "v", VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}}}}}
	_, err = core.Pods("ops").Create(t.Context(), pod, options)
	must(t, err)
	r := clusterhost.NewNodeResizes(n.clientset)
	name := types.NamespacedName{Namespace: "ops", Name: "data"}
	for _, refused := range []error{volume.ErrResizeInUse, volume.ErrResizeInfeasible, nil} {
		until(t, "the authorizer has seen the pod", func() bool {
			err := errors.Join(r.ReportNodeResizeStarted(t.Context(), name, claim.UID), r.ReportNodeResize(t.Context(), name, claim.UID, gi(2), refused))
			if !apierrors.IsForbidden(err) {
				must(t, err)
			}
			return err == nil
		})
		claim, err = core.PersistentVolumeClaims("ops").Get(t.Context(), "data", metav1.GetOptions{})
		must(t, err)
		state, has := claim.Status.AllocatedResourceStatuses[v1.ResourceStorage], claim.Status.Capacity[v1.ResourceStorage]
		want, size := v1.PersistentVolumeClaimNodeResizeInProgress, gi(1)
		switch {
		case refused == nil:
			want, size = "", gi(2)
		case errors.Is(refused, volume.ErrResizeInfeasible):
			want = v1.PersistentVolumeClaimNodeResizeInfeasible
		}
		if state != want || has.Cmp(size) != 0 || refused == nil && len(claim.Status.Conditions) != 0 {
			t.Errorf("after %v: %+v", refused, claim.Status)
		}
	}
}
