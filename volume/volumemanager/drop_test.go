package volumemanager

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/plugins/emptydir"
)

// A volume that was dropped is not set up beside its successor, where its pod is declared
// anew before the last decision about it, and had a reason for another operation.
func TestADroppedVolumeIsNotSetUp(t *testing.T) {
	m, err := New(Config{RootDir: t.TempDir(), NodeName: "node1", Objects: objects.NewStore(), Plugins: []volume.VolumePlugin{emptydir.New()}, Mounter: fakemount.New()})
	if err != nil {
		t.Fatal(err)
	}
	disk := v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "uid"}, Spec: v1.PodSpec{
		Volumes:    []v1.Volume{{Name: "a", VolumeSource: disk}, {Name: "b", VolumeSource: disk}},
		Containers: []v1.Container{{Name: "c", VolumeMounts: []v1.VolumeMount{{Name: "a", MountPath: "/a"}, {Name: "b", MountPath: "/b"}}}},
	}}
	m.entries.Lock()
	defer m.entries.Unlock()
	p := m.desired.declare(pod)
	first := p.volumes[0]
	m.desired.deletePod(pod.UID, true)
	first.attempted = first.generation - 1
	m.actual.drop(first)
	m.desired.declare(pod)
	if p != m.entries.pods[pod.UID] || len(p.volumes) != 2 || p.volumes[0] == first || p.volumes[1] == first {
		t.Fatalf("the pod has %d volumes, the dropped one among them", len(p.volumes))
	}
	if op := m.reconciler.decide(first); op != opNone {
		t.Errorf("its %v was decided on", op)
	}
	for _, s := range p.volumes {
		if op := m.reconciler.decide(s); op != opSetUp {
			t.Errorf("for volume %v it was decided on %q", s.names, op)
		}
	}
}
