package recyclerpod_test

import (
	"errors"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/podvol/podvol/volume/recyclerpod"
)

func released(uid, claim string) *v1.PersistentVolume {
	pv := &v1.PersistentVolume{}
	pv.Name, pv.UID = "pv1", types.UID(uid)
	pv.Spec.ClaimRef = &v1.ObjectReference{Namespace: "default", Name: "claim", UID: types.UID(claim)}
	return pv
}

// One release is never taken for another one, since what emptied the volume
// for one claim says nothing about the next.
func TestReleaseID(t *testing.T) {
	seen := map[string]bool{}
	for _, pv := range []*v1.PersistentVolume{released("pv", "claim"), released("pv", "claim2"), released("pv2", "claim")} {
		id := recyclerpod.ReleaseID(pv)
		if problems := validation.IsValidLabelValue(id); id == "" || seen[id] || len(problems) > 0 {
			t.Errorf("ReleaseID = %q, %v", id, problems)
		}
		seen[id] = true
		if again := recyclerpod.ReleaseID(pv.DeepCopy()); again != id {
			t.Errorf("ReleaseID = %q, then %q", id, again)
		}
	}
	unclaimed := released("pv", "claim")
	unclaimed.Spec.ClaimRef = nil
	for _, pv := range []*v1.PersistentVolume{nil, unclaimed, released("", "claim"), released("pv", "")} {
		if id := recyclerpod.ReleaseID(pv); id != "" {
			t.Errorf("ReleaseID of %v = %q", pv, id)
		}
	}
}

func TestResult(t *testing.T) {
	failed := func(change func(*v1.PodStatus)) v1.PodStatus {
		s := v1.PodStatus{Phase: v1.PodFailed}
		change(&s)
		return s
	}
	terminated := v1.ContainerStatus{Name: "recycler", State: v1.ContainerState{Terminated: &v1.ContainerStateTerminated{ExitCode: 1, Message: "no space"}}}
	for name, tc := range map[string]struct {
		status v1.PodStatus
		ended  bool
		want   []string
	}{
		"new":       {},
		"running":   {status: v1.PodStatus{Phase: v1.PodRunning}},
		"unknown":   {status: v1.PodStatus{Phase: v1.PodUnknown}},
		"succeeded": {status: v1.PodStatus{Phase: v1.PodSucceeded}, ended: true},
		"deadline": {failed(func(s *v1.PodStatus) { s.Reason, s.Message = "DeadlineExceeded", "too long" }), true,
			[]string{`"ops/p"`, "DeadlineExceeded", "too long"}},
		"container": {failed(func(s *v1.PodStatus) { s.ContainerStatuses = []v1.ContainerStatus{{Name: "ok"}, terminated} }), true,
			[]string{`"recycler"`, "exit code 1", "no space"}},
		"init container": {failed(func(s *v1.PodStatus) { s.InitContainerStatuses = []v1.ContainerStatus{terminated} }), true,
			[]string{`"recycler"`}},
		"nothing said": {failed(func(*v1.PodStatus) {}), true, []string{"without a message"}},
	} {
		t.Run(name, func(t *testing.T) {
			pod := &v1.Pod{Status: tc.status}
			pod.Namespace, pod.Name = "ops", "p"
			ended, err := recyclerpod.Result(pod)
			if ended != tc.ended {
				t.Errorf("ended = %v", ended)
			}
			if errors.Is(err, recyclerpod.ErrFailed) != (len(tc.want) > 0) {
				t.Fatalf("err = %v", err)
			}
			for _, want := range tc.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q lacks %q", err, want)
				}
			}
		})
	}
}
