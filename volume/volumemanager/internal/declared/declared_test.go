package declared

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
)

func pod() *v1.Pod {
	return &v1.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "ops", Name: "web", UID: "uid", Labels: map[string]string{"app": "web"}, Annotations: map[string]string{},
			CreationTimestamp: metav1.NewTime(time.Unix(1_700_000_000, 0)), ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "m", FieldsV1: &metav1.FieldsV1{Raw: []byte(`{"f:spec":{}}`)}}}},
		Spec: v1.PodSpec{
			SecurityContext: &v1.PodSecurityContext{FSGroup: ptr.To(int64(2000)), SupplementalGroups: []int64{1, 2}},
			Containers: []v1.Container{{Name: "c", Image: "i", Env: []v1.EnvVar{{Name: "A", ValueFrom: &v1.EnvVarSource{FieldRef: &v1.ObjectFieldSelector{FieldPath: "metadata.name"}}}},
				Resources:       v1.ResourceRequirements{Limits: v1.ResourceList{"cpu": resource.MustParse("100m"), "memory": resource.MustParse("1.5Gi")}},
				LivenessProbe:   &v1.Probe{ProbeHandler: v1.ProbeHandler{HTTPGet: &v1.HTTPGetAction{Port: intstr.FromString("http")}}},
				VolumeMounts:    []v1.VolumeMount{{Name: "e", MountPath: "/e", MountPropagation: ptr.To(v1.MountPropagationHostToContainer)}},
				VolumeDevices:   []v1.VolumeDevice{{Name: "d", DevicePath: "/dev/d"}},
				SecurityContext: &v1.SecurityContext{Privileged: ptr.To(false)}}},
			Volumes: []v1.Volume{
				{Name: "e", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{SizeLimit: ptr.To(resource.MustParse("500Mi"))}}},
				{Name: "p", VolumeSource: v1.VolumeSource{Projected: &v1.ProjectedVolumeSource{Sources: []v1.VolumeProjection{{ServiceAccountToken: &v1.ServiceAccountTokenProjection{Path: "t", ExpirationSeconds: ptr.To(int64(3600))}}}}}},
			},
		},
		Status: v1.PodStatus{Phase: v1.PodRunning, PodIPs: []v1.PodIP{{IP: "10.0.0.1"}}},
	}
}

func TestAPackedPodIsTheSame(t *testing.T) {
	want := pod()
	p := Of(want)
	if !p.IsSet() || p.Get() == want {
		t.Error("it is not a copy")
	}
	for range 2 {
		p.Pack()
		if got := p.Get(); !p.IsSet() || p.pod != nil || !equality.Semantic.DeepEqual(want, got) {
			t.Errorf("packed: %+v", got)
		}
	}
	if one, other := p.Get(), p.Get(); one == other {
		t.Error("two calls have one pod")
	}
}

func TestNoPod(t *testing.T) {
	var p Pod
	p.Pack()
	if p.IsSet() || p.Get() != nil {
		t.Errorf("%+v", p)
	}
	empty := Of(&v1.Pod{})
	empty.Pack()
	if !empty.IsSet() || !equality.Semantic.DeepEqual(empty.Get(), &v1.Pod{}) {
		t.Errorf("%+v", empty)
	}
}

// What it takes to pack a pod, and to read it packed, beside the copy of each declaration.
func BenchmarkPod(b *testing.B) {
	p := pod()
	b.Run("copy", func(b *testing.B) {
		for b.Loop() {
			Of(p)
		}
	})
	b.Run("pack", func(b *testing.B) {
		for b.Loop() {
			(&Pod{pod: p}).Pack()
		}
	})
	packed := Of(p)
	packed.Pack()
	b.Run("get", func(b *testing.B) {
		for b.Loop() {
			packed.Get()
		}
	})
}
