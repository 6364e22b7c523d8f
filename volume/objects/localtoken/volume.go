package localtoken

import (
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
)

const (
	// MountPath is the directory of a pod's token for client libraries.
	MountPath = "/var/run/secrets/kubernetes.io/serviceaccount"
	// RootCAConfigMap is a config map in the pod's namespace. The volume of
	// [WithServiceAccountVolume] needs it, with the key "ca.crt": the authority
	// that signs for the API that the pods use. In a cluster a controller makes
	// it.
	RootCAConfigMap = "kube-root-ca.crt"

	volumePrefix = "kube-api-access-"
	lifetime     = 60*60 + 7 // seconds; Kubernetes' own, odd so that it is recognised
)

// WithServiceAccountVolume returns a copy of the pod with the additions of an API
// server's admission (plugin/pkg/admission/serviceaccount of Kubernetes), for an
// agent without one. It adds the service account's name, "default" if the pod
// names none. It adds a read-only mount at [MountPath] to each container and init
// container that has none there. The mounted projected volume has
//
//   - token, of the service account, which lives 3607 seconds and is renewed;
//   - ca.crt, from the config map [RootCAConfigMap], without which the volume
//     fails;
//   - namespace, the pod's.
//
// The limits:
//
//   - A pod with automountServiceAccountToken: false gets no mount. The caller
//     must check the same field of the pod's ServiceAccount before.
//   - Ephemeral containers get no mount.
//   - The volume's name is always the same. If the pod has a volume whose name
//     begins with "kube-api-access-", that name is used. So a second call changes
//     nothing, and a restart finds the mounted volume.
//   - The pod is only read.
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

// tokenVolume returns the name of the pod's volume, and whether the pod has it
// already.
func tokenVolume(pod *v1.Pod) (name string, has bool) {
	for _, v := range pod.Spec.Volumes {
		if strings.HasPrefix(v.Name, volumePrefix) {
			return v.Name, true
		}
	}
	return volumePrefix + "local", false
}

// mountToken mounts the volume if nothing is mounted there, and reports whether
// it did.
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
