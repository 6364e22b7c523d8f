//go:build linux

package containermounts_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/containermounts"
	"github.com/podvol/podvol/volume/fakehost"
	"github.com/podvol/podvol/volume/mountrecord"
	"github.com/podvol/podvol/volume/plugins/hostpath"
)

var errNotMounted = errors.New("it is not mounted")

// volumes is a role that has some volumes of one pod mounted, by their names. The
// directories of the pod are its own until all whom it has admitted are done.
type volumes struct {
	pod      *v1.Pod
	records  map[string]*mountrecord.Record
	admitted int
	kept     int
}

func (r *volumes) DeclaredPod(podUID types.UID) (*v1.Pod, error) {
	if podUID != r.pod.UID {
		return nil, errors.New("another pod")
	}
	return r.pod, nil
}

func (r *volumes) MountedVolume(_ types.UID, name string) (*mountrecord.Record, error) {
	if record := r.records[name]; record != nil {
		return record, nil
	}
	return nil, errNotMounted
}

func (r *volumes) KeepRoot() (func(), error) {
	r.kept++
	return func() { r.kept-- }, nil
}

func (r *volumes) Admit(ctx context.Context, _ *mountrecord.Record) (context.Context, func(), error) {
	r.admitted++
	return context.WithoutCancel(ctx), func() { r.admitted-- }, nil
}

// newBinder returns a binder for a pod with hostPath volumes "data", a directory with the
// file "conf", and "absent", which is not mounted.
func newBinder(t *testing.T, container v1.Container, change ...func(*v1.Pod)) (*containermounts.Binder, *volumes, string) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "conf"), []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	node := fakehost.New(t)
	plugins := &volume.VolumePluginMgr{}
	if err := plugins.InitPlugins([]volume.VolumePlugin{hostpath.New(hostpath.Config{})}, node); err != nil {
		t.Fatal(err)
	}
	source := func(path string) v1.VolumeSource {
		return v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: path}}
	}
	container.Name = "c"
	pod := fakehost.Pod("web", v1.Volume{Name: "data", VolumeSource: source(dir)}, v1.Volume{Name: "absent", VolumeSource: source("/absent")})
	pod.Spec.Containers = []v1.Container{container}
	for _, f := range change {
		f(pod)
	}
	role := &volumes{pod: pod, records: map[string]*mountrecord.Record{"data": {
		PodUID: pod.UID, Volumes: []string{"data"}, Plugin: hostpath.PluginName, Path: dir, InlineVolume: &pod.Spec.Volumes[0],
	}}}
	return containermounts.New(&node.Host, plugins, role), role, dir
}

// Each volumeMount becomes one bind of what it asks for, or an error that says which rule
// it breaks; nothing of the role is held afterwards.
func TestMountsOfAContainer(t *testing.T) {
	at := func(change func(*v1.VolumeMount)) v1.Container {
		m := v1.VolumeMount{Name: "data", MountPath: "/data"}
		if change != nil {
			change(&m)
		}
		return v1.Container{VolumeMounts: []v1.VolumeMount{m}}
	}
	privileged, both, slave := true, v1.MountPropagationBidirectional, v1.MountPropagationHostToContainer
	recursive := v1.RecursiveReadOnlyEnabled
	for name, tc := range map[string]struct {
		container v1.Container
		options   containermounts.Options
		want      func(*containermounts.Mount)
		err       func(error) bool
	}{
		"whole":        {container: at(nil)},
		"read-only":    {container: at(func(m *v1.VolumeMount) { m.ReadOnly = true }), want: func(m *containermounts.Mount) { m.ReadOnly = true }},
		"clean":        {container: at(func(m *v1.VolumeMount) { m.MountPath = "data/" })},
		"slave":        {container: at(func(m *v1.VolumeMount) { m.MountPropagation = &slave }), want: func(m *containermounts.Mount) { m.Propagation = mount.PropagationSlave }},
		"shared":       {container: at(func(m *v1.VolumeMount) { m.MountPropagation = &both }), err: isInvalid},
		"not mounted":  {container: at(func(m *v1.VolumeMount) { m.Name = "absent" }), err: func(err error) bool { return errors.Is(err, errNotMounted) }},
		"no recursion": {container: at(func(m *v1.VolumeMount) { m.ReadOnly, m.RecursiveReadOnly = true, &recursive }), err: func(err error) bool { return errors.Is(err, containermounts.ErrRuntimeLacks) }},
		"recursion": {
			container: at(func(m *v1.VolumeMount) { m.ReadOnly, m.RecursiveReadOnly = true, &recursive }),
			options:   containermounts.Options{Runtime: containermounts.RuntimeFeatures{RecursiveReadOnly: true}},
			want:      func(m *containermounts.Mount) { m.ReadOnly, m.RecursiveReadOnly = true, true },
		},
		"shared and privileged": {
			container: func() v1.Container {
				c := at(func(m *v1.VolumeMount) { m.MountPropagation = &both })
				c.SecurityContext = &v1.SecurityContext{Privileged: &privileged}
				return c
			}(),
			want: func(m *containermounts.Mount) { m.Propagation = mount.PropagationShared },
		},
	} {
		t.Run(name, func(t *testing.T) {
			binder, role, dir := newBinder(t, tc.container)
			mounts, devices, err := binder.Mounts(t.Context(), role.pod.UID, "c", tc.options)
			if tc.err != nil {
				if err == nil || !tc.err(err) || len(mounts) > 0 {
					t.Errorf("%v, %v", mounts, err)
				}
				return
			}
			if err != nil || len(mounts) != 1 || len(devices) != 0 {
				t.Fatalf("%v, %v, %v", mounts, devices, err)
			}
			want := containermounts.Mount{Volume: "data", Source: dir, Destination: "/data", Propagation: mount.PropagationPrivate}
			if tc.want != nil {
				tc.want(&want)
			}
			got := mounts[0]
			if got.Volume != want.Volume || got.Source != want.Source || got.Destination != want.Destination || got.ReadOnly != want.ReadOnly ||
				got.RecursiveReadOnly != want.RecursiveReadOnly || got.Propagation != want.Propagation || got.File || got.SubPath != "" {
				t.Errorf("%+v, want %+v", got, want)
			}
			if role.admitted != 0 || role.kept != 0 {
				t.Errorf("%d admissions and %d holds of the root are left", role.admitted, role.kept)
			}
		})
	}
}

func isInvalid(err error) bool {
	_, ok := errors.AsType[*volume.InvalidSpecError](err)
	return ok
}

// Mounts inside others come after them, whatever the order in the pod.
func TestParentsComeFirst(t *testing.T) {
	binder, role, dir := newBinder(t, v1.Container{VolumeMounts: []v1.VolumeMount{
		{Name: "data", MountPath: "/a/inner"}, {Name: "data", MountPath: "/b"}, {Name: "data", MountPath: "/a"},
	}})
	if err := os.Mkdir(filepath.Join(dir, "inner"), 0o755); err != nil {
		t.Fatal(err)
	}
	mounts, _, err := binder.Mounts(t.Context(), role.pod.UID, "c", containermounts.Options{})
	if err != nil {
		t.Fatal(err)
	}
	var order []string
	for _, m := range mounts {
		order = append(order, m.Destination)
	}
	if slices.Index(order, "/a") > slices.Index(order, "/a/inner") || len(order) != 3 {
		t.Errorf("order %v", order)
	}
}

// A container or a pod that there is not is told, with those that there are.
func TestContainersAreFoundByName(t *testing.T) {
	binder, role, _ := newBinder(t, v1.Container{}, func(pod *v1.Pod) {
		pod.Spec.InitContainers = []v1.Container{{Name: "init"}}
		pod.Spec.EphemeralContainers = []v1.EphemeralContainer{{EphemeralContainerCommon: v1.EphemeralContainerCommon{Name: "debug"}}}
	})
	for _, name := range []string{"c", "init", "debug"} {
		if mounts, devices, err := binder.Mounts(t.Context(), role.pod.UID, name, containermounts.Options{}); err != nil || len(mounts)+len(devices) > 0 {
			t.Errorf("%s: %v, %v, %v", name, mounts, devices, err)
		}
	}
	if _, _, err := binder.Mounts(t.Context(), role.pod.UID, "other", containermounts.Options{}); !errors.Is(err, containermounts.ErrUnknownContainer) {
		t.Errorf("of another container: %v", err)
	}
	if _, _, err := binder.Mounts(t.Context(), "other", "c", containermounts.Options{}); err == nil {
		t.Error("of another pod there are mounts")
	}
}
