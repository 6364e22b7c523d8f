package localtoken

import (
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
)

const (
	// MountPath is where client libraries look for a pod's token.
	MountPath = "/var/run/secrets/kubernetes.io/serviceaccount"
	// RootCAConfigMap is the name of the config map that the volume of
	// [WithServiceAccountVolume] needs in the pod's namespace, with the key
	// "ca.crt": who serves the API to the pods signs for it. In a cluster a
	// controller makes it.
	RootCAConfigMap = "kube-root-ca.crt"

	volumePrefix = "kube-api-access-"
	lifetime     = 60*60 + 7 // seconds; Kubernetes' own, odd so that it is recognised
)

// WithServiceAccountVolume returns a copy of the pod with what an API server's
// admission adds (plugin/pkg/admission/serviceaccount of Kubernetes), for an agent
// that has none: the service account's name, "default" where the pod names none,
// and in each container and init container that has no mount at [MountPath] one
// there, read-only, of a projected volume with
//
//   - token, of the service account, which lives 3607 seconds and is renewed;
//   - ca.crt, from the config map [RootCAConfigMap], without which the volume fails;
//   - namespace, the pod's.
//
// A pod with automountServiceAccountToken: false gets no mount; what its
// ServiceAccount says of that is the caller's to look at, before. Ephemeral
// containers get none either. The volume's name is always the same, that of the
// pod's own volume if it has one beginning with "kube-api-access-", so that calling
// it again changes nothing and a restart finds what is mounted. The pod is only
// read.
func WithServiceAccountVolume(pod *v1.Pod) *v1.Pod {
	pod = pod.DeepCopy()
	if pod.Spec.ServiceAccountName == "" {
		pod.Spec.ServiceAccountName = "default"
	}
	if automount := pod.Spec.AutomountServiceAccountToken; automount != nil && !*automount {
		return pod
	}
	name, has := tokenVolume(pod)
	mounted := mountToken(pod.Spec.InitContainers, name)
	mounted = mountToken(pod.Spec.Containers, name) || mounted
	if mounted && !has {
		pod.Spec.Volumes = append(pod.Spec.Volumes, v1.Volume{Name: name, VolumeSource: v1.VolumeSource{Projected: tokenSource()}})
	}
	return pod
}

// tokenVolume is the name of the pod's volume, and whether it has it already.
func tokenVolume(pod *v1.Pod) (name string, has bool) {
	for _, v := range pod.Spec.Volumes {
		if strings.HasPrefix(v.Name, volumePrefix) {
			return v.Name, true
		}
	}
	return volumePrefix + "local", false
}

// mountToken mounts the volume where nothing is mounted, and reports whether it has.
func mountToken(containers []v1.Container, name string) (mounted bool) {
	for i := range containers {
		c := &containers[i]
		if slices.ContainsFunc(c.VolumeMounts, func(m v1.VolumeMount) bool { return m.MountPath == MountPath }) {
			continue
		}
		c.VolumeMounts = append(c.VolumeMounts, v1.VolumeMount{Name: name, ReadOnly: true, MountPath: MountPath})
		mounted = true
	}
	return mounted
}

func tokenSource() *v1.ProjectedVolumeSource {
	return &v1.ProjectedVolumeSource{
		DefaultMode: new(v1.ProjectedVolumeSourceDefaultMode),
		Sources: []v1.VolumeProjection{
			{ServiceAccountToken: &v1.ServiceAccountTokenProjection{Path: "token", ExpirationSeconds: new(int64(lifetime))}},
			{ConfigMap: &v1.ConfigMapProjection{
				LocalObjectReference: v1.LocalObjectReference{Name: RootCAConfigMap},
				Items:                []v1.KeyToPath{{Key: "ca.crt", Path: "ca.crt"}},
			}},
			{DownwardAPI: &v1.DownwardAPIProjection{Items: []v1.DownwardAPIVolumeFile{
				{Path: "namespace", FieldRef: &v1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "metadata.namespace"}},
			}}},
		},
	}
}
