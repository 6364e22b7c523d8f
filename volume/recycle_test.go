package volume_test

import (
	"errors"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/podvol/podvol/volume"
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
		id := volume.ReleaseID(pv)
		if problems := validation.IsValidLabelValue(id); id == "" || seen[id] || len(problems) > 0 {
			t.Errorf("ReleaseID = %q, %v", id, problems)
		}
		seen[id] = true
		if again := volume.ReleaseID(pv.DeepCopy()); again != id {
			t.Errorf("ReleaseID = %q, then %q", id, again)
		}
	}
	unclaimed := released("pv", "claim")
	unclaimed.Spec.ClaimRef = nil
	for _, pv := range []*v1.PersistentVolume{nil, unclaimed, released("", "claim"), released("pv", "")} {
		if id := volume.ReleaseID(pv); id != "" {
			t.Errorf("ReleaseID of %v = %q", pv, id)
		}
	}
}

func TestPodResult(t *testing.T) {
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
			ended, err := volume.PodResult(pod)
			if ended != tc.ended {
				t.Errorf("ended = %v", ended)
			}
			if errors.Is(err, volume.ErrPodFailed) != (len(tc.want) > 0) {
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

func TestSharesData(t *testing.T) {
	for name, tc := range map[string]struct {
		plugin volume.VolumePlugin
		a, b   string
		want   bool
	}{
		"same name":    {plugin: namedBySpec{&basic{}}, a: "x", b: "x", want: true},
		"other name":   {plugin: namedBySpec{&basic{}}, a: "x", b: "x/y"},
		"its own idea": {plugin: nesting{namedBySpec{&basic{}}}, a: "x", b: "x/y", want: true},
	} {
		got, err := volume.SharesData(tc.plugin, named(tc.a), named(tc.b))
		if err != nil || got != tc.want {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
	failing := &basic{nameErr: errors.New("no name")}
	if got, err := volume.SharesData(failing, named("x"), named("x")); err == nil || got {
		t.Errorf("without names: %v, %v", got, err)
	}
}

func named(name string) *volume.Spec { return volume.NewSpecFromVolume(&v1.Volume{Name: name}) }

// namedBySpec is a plugin whose data is named like the volume.
type namedBySpec struct{ volume.VolumePlugin }

func (namedBySpec) GetVolumeName(spec *volume.Spec) (string, error) { return spec.Name(), nil }

// nesting is one whose volumes lie within one another by their names.
type nesting struct{ namedBySpec }

func (nesting) SharesData(a, b *volume.Spec) (bool, error) {
	return strings.HasPrefix(b.Name(), a.Name()), nil
}
