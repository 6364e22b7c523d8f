package containertest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/sandbox"
	"github.com/podvol/podvol/util/testenv/testtool"
)

// OfPod returns the container of a pod with one, as a manifest has it: arguments, environment,
// hostPath volumes with their mount propagation, process ids. fields are what fieldRefs tell.
// Other kinds of volume, and subPaths, fail the test. In its image the program is the
// test binary.
func OfPod(t testing.TB, pod v1.PodSpec, fields map[string]string) sandbox.Config {
	t.Helper()
	if len(pod.Containers) != 1 {
		t.Fatalf("the pod has %d containers", len(pod.Containers))
	}
	container := pod.Containers[0]
	var mounts []sandbox.Mount
	for _, m := range container.VolumeMounts {
		mounts = append(mounts, sandbox.Mount{
			Volume: m.Name, Source: hostPath(t, pod, m), Destination: m.MountPath, ReadOnly: m.ReadOnly, Propagation: propagation(m),
		})
	}
	config := Config(t, mounts...)
	config.PIDNamespace = !pod.HostPID
	config.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	var names []string // $(NAME) and its value
	for _, e := range container.Env {
		value := e.Value
		if e.ValueFrom != nil {
			if value = fields[e.ValueFrom.FieldRef.FieldPath]; value == "" {
				t.Fatalf("the test does not know the field of %s", e.Name)
			}
		}
		config.Env = append(config.Env, e.Name+"="+value)
		names = append(names, "$("+e.Name+")", value)
	}
	for _, arg := range container.Args {
		config.Args = append(config.Args, strings.NewReplacer(names...).Replace(arg))
	}
	return config
}

// hostPath is a mount's directory on the host, which is made as its type says.
func hostPath(t testing.TB, pod v1.PodSpec, m v1.VolumeMount) string {
	t.Helper()
	for _, v := range pod.Volumes {
		if v.Name != m.Name || v.HostPath == nil || m.SubPath != "" {
			continue
		}
		if v.HostPath.Type != nil && *v.HostPath.Type == v1.HostPathDirectoryOrCreate {
			testtool.Must(t, os.MkdirAll(v.HostPath.Path, 0o755))
		}
		return filepath.Clean(v.HostPath.Path)
	}
	t.Fatalf("the volume %s is no hostPath volume of the pod", m.Name)
	return ""
}

func propagation(m v1.VolumeMount) mount.Propagation {
	if m.MountPropagation == nil {
		return mount.PropagationPrivate
	}
	switch *m.MountPropagation {
	case v1.MountPropagationHostToContainer:
		return mount.PropagationSlave
	case v1.MountPropagationBidirectional:
		return mount.PropagationShared
	}
	return mount.PropagationPrivate
}
