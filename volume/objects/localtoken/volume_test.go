package localtoken_test

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/volume/objects/localtoken"
	"github.com/podvol/podvol/volume/validation"
)

// What admission adds, and to which containers.
func TestWithServiceAccountVolume(t *testing.T) {
	own := []v1.VolumeMount{{Name: "own", MountPath: localtoken.MountPath}}
	beside := []v1.VolumeMount{{Name: "own", MountPath: localtoken.MountPath + "/x"}}
	for name, tc := range map[string]struct {
		spec    v1.PodSpec
		account string
		mounts  []string // for each init container and container: the volume at the path
		volumes int
	}{
		"plain":                {v1.PodSpec{Containers: []v1.Container{{}}}, "default", []string{"kube-api-access-local"}, 1},
		"an account":           {v1.PodSpec{ServiceAccountName: "app", Containers: []v1.Container{{}}}, "app", []string{"kube-api-access-local"}, 1},
		"asked for":            {v1.PodSpec{AutomountServiceAccountToken: new(true), Containers: []v1.Container{{}}}, "default", []string{"kube-api-access-local"}, 1},
		"not asked for":        {v1.PodSpec{AutomountServiceAccountToken: new(false), Containers: []v1.Container{{}}}, "default", []string{""}, 0},
		"init containers":      {v1.PodSpec{InitContainers: []v1.Container{{}}, Containers: []v1.Container{{}, {}}}, "default", []string{"kube-api-access-local", "kube-api-access-local", "kube-api-access-local"}, 1},
		"a mount of its own":   {v1.PodSpec{Containers: []v1.Container{{VolumeMounts: own}}}, "default", []string{"own"}, 0},
		"one of two has one":   {v1.PodSpec{Containers: []v1.Container{{VolumeMounts: own}, {VolumeMounts: beside}}}, "default", []string{"own", "kube-api-access-local"}, 1},
		"the volume is there":  {v1.PodSpec{Volumes: []v1.Volume{{Name: "kube-api-access-x7k2p"}}, Containers: []v1.Container{{}}}, "default", []string{"kube-api-access-x7k2p"}, 1},
		"no containers at all": {v1.PodSpec{}, "default", nil, 0},
	} {
		t.Run(name, func(t *testing.T) {
			pod := &v1.Pod{Spec: tc.spec}
			before := pod.DeepCopy()
			got := localtoken.WithServiceAccountVolume(pod)
			if !equality.Semantic.DeepEqual(pod, before) {
				t.Errorf("the pod was changed: %+v", pod.Spec)
			}
			if again := localtoken.WithServiceAccountVolume(got); !equality.Semantic.DeepEqual(again, got) {
				t.Errorf("once more: %+v", again.Spec)
			}
			var mounts []string
			for _, c := range append(got.Spec.InitContainers, got.Spec.Containers...) {
				at := ""
				for _, m := range c.VolumeMounts {
					if m.MountPath == localtoken.MountPath {
						at = m.Name
						if m.Name != "own" && !m.ReadOnly {
							t.Errorf("mount %+v", m)
						}
					}
				}
				mounts = append(mounts, at)
			}
			if !equality.Semantic.DeepEqual(mounts, tc.mounts) || got.Spec.ServiceAccountName != tc.account || len(got.Spec.Volumes) != tc.volumes {
				t.Errorf("account %q, mounts %q, %d volumes", got.Spec.ServiceAccountName, mounts, len(got.Spec.Volumes))
			}
		})
	}
}

// The volume is the one of Kubernetes, and a valid one.
func TestServiceAccountVolume(t *testing.T) {
	pod := localtoken.WithServiceAccountVolume(&v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "uid-web"}, Spec: v1.PodSpec{Containers: []v1.Container{{Name: "c"}}}})
	if err := validation.PodVolumes(pod); err != nil {
		t.Error(err)
	}
	p := pod.Spec.Volumes[0].Projected
	if p == nil || len(p.Sources) != 3 || *p.DefaultMode != 0o644 {
		t.Fatalf("volume %+v", pod.Spec.Volumes[0])
	}
	token, ca, namespace := p.Sources[0].ServiceAccountToken, p.Sources[1].ConfigMap, p.Sources[2].DownwardAPI
	if token == nil || token.Path != "token" || token.Audience != "" || *token.ExpirationSeconds != 3607 {
		t.Errorf("token %+v", token)
	}
	if ca == nil || ca.Name != "kube-root-ca.crt" || len(ca.Items) != 1 || ca.Items[0].Key != "ca.crt" || ca.Items[0].Path != "ca.crt" {
		t.Errorf("ca %+v", ca)
	}
	if namespace == nil || namespace.Items[0].Path != "namespace" || namespace.Items[0].FieldRef.FieldPath != "metadata.namespace" {
		t.Errorf("namespace %+v", namespace)
	}
}
