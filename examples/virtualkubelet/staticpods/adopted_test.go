package staticpods

import (
	"os"
	"path/filepath"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// The UID of a kubelet's pod is that of the manifest that was there first, also after a
// restart. Another version of the manifest is another pod.
func TestAdoptedUIDs(t *testing.T) {
	file, web := filepath.Join(t.TempDir(), "adopted"), types.NamespacedName{Namespace: "shop", Name: "web-node1"}
	running := map[types.NamespacedName]types.UID{web: "kubelets"}
	for i, running := range []map[types.NamespacedName]types.UID{running, running, nil} {
		a, err := readAdopted(file, running)
		if err != nil {
			t.Fatal(err)
		}
		if uid, err := a.uid(web, "first"); uid != "kubelets" || err != nil {
			t.Errorf("start %d: %s, %v", i, uid, err)
		}
		if uid, err := a.uid(web, "second"); uid != "second" || err != nil {
			t.Errorf("start %d: another version is %s, %v", i, uid, err)
		}
		other := types.NamespacedName{Namespace: "shop", Name: "other-node1"}
		if uid, err := a.uid(other, "other"); uid != "other" || err != nil {
			t.Errorf("start %d: another pod is %s, %v", i, uid, err)
		}
	}
	if err := os.WriteFile(file, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := readAdopted(file, nil); err == nil {
		t.Error("a damaged file is read")
	}
}

// A manifest is the same pod whenever an agent reads it.
func TestUIDAfterARestart(t *testing.T) {
	known, err := readAdopted(filepath.Join(t.TempDir(), "adopted"), nil)
	if err != nil {
		t.Fatal(err)
	}
	f := &Follower{config: Config{NodeName: "node1"}, adopted: known}
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", CreationTimestamp: metav1.Unix(1, 0)}}
	first := f.static(pod)
	pod.CreationTimestamp = metav1.Unix(2, 0)
	if second := f.static(pod); len(first.UID) != 32 || second.UID != first.UID || second.CreationTimestamp != pod.CreationTimestamp {
		t.Errorf("it was %s, and is %s of %v", first.UID, second.UID, second.CreationTimestamp)
	}
	pod.Labels = map[string]string{"colour": "red"}
	if other := f.static(pod); other.UID == first.UID {
		t.Error("another manifest is the same pod")
	}
}
