package manifest_test

import (
	"fmt"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/objects/manifest"
)

// statefulSet is the StatefulSet ops/db with one claim for each pod; policy is
// the text of its retention policy.
func statefulSet(replicas int, policy string) string {
	text := fmt.Sprintf(`replicas: %d
  volumeClaimTemplates:
  - metadata: {name: data, annotations: {podvol.io/statefulset: another, mine: "yes"}}
    spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}`, replicas)
	if policy != "" {
		text += "\n  persistentVolumeClaimRetentionPolicy: " + policy
	}
	return workload("apps/v1", "StatefulSet", "db", text)
}

func TestClaimsOfStatefulSetsAreKeptAsItSays(t *testing.T) {
	for policy, want := range map[string]struct{ scaled, deleted bool }{
		"":                      {true, true},
		"{}":                    {true, true},
		"{whenDeleted: Delete}": {true, false},
		"{whenScaled: Delete}":  {false, true},
		"{whenScaled: Delete, whenDeleted: Delete}": {false, false},
		"{whenScaled: Retain, whenDeleted: Retain}": {true, true},
	} {
		claim, err := objects.Get[*v1.PersistentVolumeClaim](t.Context(), decode(t, statefulSet(1, policy)),
			volume.NewObjectRef("PersistentVolumeClaim", "ops", "data-db-0"))
		if err != nil {
			t.Fatal(err)
		}
		kept, ok := manifest.RetentionOf(claim)
		if !ok || kept.StatefulSet != (types.NamespacedName{Namespace: "ops", Name: "db"}) || claim.Annotations["mine"] != "yes" {
			t.Errorf("%q: the claim has annotations %v", policy, claim.Annotations)
		}
		if kept.Keeps(true) != want.scaled || kept.Keeps(false) != want.deleted {
			t.Errorf("%q: it is kept when scaled: %t, when deleted: %t; want %+v", policy, kept.Keeps(true), kept.Keeps(false), want)
		}
	}
}

func TestOnlyDeleteMeansDelete(t *testing.T) {
	claim := &v1.PersistentVolumeClaim{}
	if _, ok := manifest.RetentionOf(claim); ok {
		t.Error("a claim without annotations came with a StatefulSet")
	}
	claim.Annotations = map[string]string{manifest.StatefulSetAnnotation: "db", manifest.WhenDeletedAnnotation: "delete", manifest.WhenScaledAnnotation: ""}
	if kept, ok := manifest.RetentionOf(claim); !ok || !kept.Keeps(true) || !kept.Keeps(false) {
		t.Errorf("a policy that nobody knows is %+v, %t", kept, ok)
	}
}

// Of a set that is scaled to nothing, the claims are not those of a deleted one.
func TestStatefulSetsAreToldApartFromDeletedOnes(t *testing.T) {
	set := decode(t, statefulSet(0, "")+"---\n"+strings.ReplaceAll(statefulSet(2, ""), "name: db", "name: web")+"---\n"+workload("apps/v1", "Deployment", "front", "replicas: 1"))
	want := "[ops/db ops/web]"
	if got := fmt.Sprint(set.StatefulSets); got != want {
		t.Errorf("StatefulSets %s, want %s", got, want)
	}
}

func TestStatefulSetWithAnUnknownPolicy(t *testing.T) {
	for _, field := range []string{"whenScaled", "whenDeleted"} {
		_, err := manifest.Loader{NodeName: "node1"}.Decode("db.yaml", []byte(statefulSet(1, "{"+field+": Recycle}")))
		if err == nil || !strings.Contains(err.Error(), "spec.persistentVolumeClaimRetentionPolicy."+field) || !strings.Contains(err.Error(), "ops/db") {
			t.Errorf("%s: %v", field, err)
		}
	}
}
