package describe

import (
	"bytes"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/examples/podvol/internal/fields"
	"github.com/podvol/podvol/examples/podvol/internal/nodeserver"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// example is a claim that grows, with its volume and its users.
func example() Storage {
	before, class := metav1.NewTime(now.Add(-3*time.Minute)), "fast"
	claim := &v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "data", Namespace: "shop", UID: "u", CreationTimestamp: before},
		Spec: v1.PersistentVolumeClaimSpec{VolumeName: "pv1", StorageClassName: &class, AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce, v1.ReadOnlyMany},
			Resources: v1.VolumeResourceRequirements{Requests: v1.ResourceList{v1.ResourceStorage: resource.MustParse("2Gi")}}},
		Status: v1.PersistentVolumeClaimStatus{Phase: v1.ClaimBound, Capacity: v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")},
			AllocatedResourceStatuses: map[v1.ResourceName]v1.ClaimResourceStatus{v1.ResourceStorage: v1.PersistentVolumeClaimNodeResizePending},
			Conditions:                []v1.PersistentVolumeClaimCondition{{Type: v1.PersistentVolumeClaimFileSystemResizePending, Status: v1.ConditionTrue, LastTransitionTime: before, Message: "waits\x1b[31m"}}},
	}
	pv := &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "pv1", Annotations: map[string]string{"pv.kubernetes.io/provisioned-by": "x.example.com"}},
		Spec: v1.PersistentVolumeSpec{Capacity: v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")}, PersistentVolumeReclaimPolicy: v1.PersistentVolumeReclaimDelete,
			ClaimRef: &v1.ObjectReference{Namespace: "shop", Name: "data"}, MountOptions: []string{"password=s3cr3t"}, StorageClassName: "fast"},
		Status: v1.PersistentVolumeStatus{Phase: v1.VolumeFailed, Reason: "VolumeFailedDelete"},
	}
	users := []nodeserver.Volume{
		{Namespace: "shop", Pod: "web", Volume: "v", Claim: "shop/data", PersistentVolume: "pv1", State: "mounted", Since: before.Time},
		{Namespace: "shop", Pod: "api", Volume: "v", Claim: "shop/data", State: "pending", WaitsFor: "the other pod"},
		{Namespace: "shop", Pod: "other", Volume: "v", Claim: "shop/other", PersistentVolume: "pv2", State: "mounted"},
	}
	return Storage{Claim: claim, Volume: pv, Why: []string{"it cannot be deleted"}, Source: "nas1:/x", OnDelete: "its data would be deleted", Node: users}
}

func assertSays(t *testing.T, all []fields.Field, wants ...string) {
	t.Helper()
	var out bytes.Buffer
	if err := fields.Print(&out, all); err != nil {
		t.Fatal(err)
	}
	got := strings.Join(strings.Fields(out.String()), " ")
	for _, want := range wants {
		if !strings.Contains(got, want) {
			t.Errorf("it does not say %q:\n%s", want, out.String())
		}
	}
	if strings.Contains(got, "s3cr3t") || strings.Contains(got, "shop/other") || strings.Contains(got, "\x1b") {
		t.Errorf("it says\n%s", out.String())
	}
}

func TestClaims(t *testing.T) {
	s := example()
	assertSays(t, s.ClaimFields(now), "Name: data Namespace: shop UID: u Created: 2026-01-02T03:01:05Z (3m ago) Status: Bound Why: it cannot be deleted StorageClass: fast Volume: pv1 Data: nas1:/x",
		"Capacity: 1Gi, and 2Gi asked for: NodeResizePending Access Modes: ReadWriteOnce, ReadOnlyMany Volume Mode: Filesystem Reclaim Policy: Delete If it is deleted: its data would be deleted",
		`Conditions: FileSystemResizePending is True since 2026-01-02T03:01:05Z (3m ago): waits\u001b[31m`,
		"Used By: shop/api (volume v): pending, waits for the other pod shop/web (volume v): mounted since 2026-01-02T03:01:05Z (3m ago)")
	s.Claim.DeletionTimestamp = &metav1.Time{Time: now}
	s.Claim.Spec.VolumeName, s.Claim.Spec.StorageClassName, s.Volume, s.Node = "", nil, nil, nil
	assertSays(t, s.ClaimFields(now), "Status: Terminating since 2026-01-02T03:04:05Z", "StorageClass: none is named", "Volume: none yet", "Capacity: 2Gi asked for", "Used By: no pod on this machine")
}

func TestVolumes(t *testing.T) {
	s := example()
	assertSays(t, s.VolumeFields(now), "Name: pv1", "Status: Failed Reason: VolumeFailedDelete Why: it cannot be deleted StorageClass: fast Claim: shop/data Data: nas1:/x Capacity: 1Gi",
		"Mount Options: 1; podvol pv pv1 -o yaml prints them Reclaim Policy: Delete If its claim goes: its data would be deleted Provisioned By: x.example.com", "shop/web (volume v): mounted")
	s.Claim, s.Volume.Spec.MountOptions = nil, nil
	assertSays(t, s.VolumeFields(now), "Claim: shop/data, which does not exist", "Mount Options: none")
}
