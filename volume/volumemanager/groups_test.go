package volumemanager_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
)

func TestExtraSupplementalGroups(t *testing.T) {
	w := newWorld(t)
	pod := newPod("web", emptyDirVolume("scratch", ""))
	pod.Spec.SecurityContext = &v1.PodSecurityContext{SupplementalGroups: []int64{7}}
	for name, group := range map[string]string{"a": "2000", "b": "1000", "c": "2000", "d": "7", "e": "staff", "f": "-1", "g": ""} {
		claim, pv := boundPair(name, "pv-"+name)
		pv.Annotations = map[string]string{"pv.beta.kubernetes.io/gid": group}
		w.add(claim, pv)
		withVolumes(pod, claimVolume(name, name, false))
	}
	manager, stop := w.start()
	if got := manager.ExtraSupplementalGroups(pod.UID); got != nil {
		t.Errorf("of a pod that nobody knows: %v", got)
	}
	mustSetUp(t, manager, pod)
	want := []int64{1000, 2000}
	if diff := cmp.Diff(want, manager.ExtraSupplementalGroups(pod.UID)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	stop()
	again, _ := w.start()
	mustSetUp(t, again, pod)
	if diff := cmp.Diff(want, again.ExtraSupplementalGroups(pod.UID)); diff != "" {
		t.Errorf("after a restart (-want +got):\n%s", diff)
	}
	mustTearDown(t, again, pod)
	if got := again.ExtraSupplementalGroups(pod.UID); got != nil {
		t.Errorf("of a pod that is gone: %v", got)
	}
}
