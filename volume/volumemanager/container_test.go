package volumemanager_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/host"
	"github.com/podvol/podvol/util/kubeapi"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/containermounts"
	"github.com/podvol/podvol/volume/volumemanager"
)

func ptr[T any](v T) *T { return &v }

func hostPathVolume(name, path string) v1.Volume {
	return v1.Volume{Name: name, VolumeSource: v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: path}}}
}

// mounting returns a pod with one container, "c", that has these mounts.
func mounting(pod *v1.Pod, mounts ...v1.VolumeMount) *v1.Pod {
	pod.Spec.Containers[0].VolumeMounts = mounts
	return pod
}

// setUp sets the pod up, or ends the test.
func setUp(t testing.TB, manager *volumemanager.Manager, pod *v1.Pod) {
	t.Helper()
	if _, err := manager.SetUpPod(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
}

func tearDown(t testing.TB, manager *volumemanager.Manager, pod *v1.Pod) {
	t.Helper()
	if err := manager.TearDownPod(context.Background(), pod.UID); err != nil {
		t.Fatal(err)
	}
}

// containerMounts asks for the mounts of the pod's container "c".
func containerMounts(t testing.TB, manager *volumemanager.Manager, pod *v1.Pod) []containermounts.Mount {
	t.Helper()
	mounts, devices, err := manager.ContainerMounts(t.Context(), pod.UID, "c", containermounts.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if len(devices) > 0 {
		t.Errorf("devices %v", devices)
	}
	return mounts
}

func TestContainerMounts(t *testing.T) {
	w := newWorld(t)
	claim, pv := boundPair("data", "nfs211")
	w.add(claim, pv, &v1.ConfigMap{ObjectMeta: claim.ObjectMeta, Data: map[string]string{"key": "value"}})
	host := t.TempDir()
	manager, _ := w.start()
	pod := mounting(newPod("web",
		claimVolume("written", "data", false), claimVolume("read", "data", true),
		emptyDirVolume("scratch", v1.StorageMediumMemory), hostPathVolume("host", host),
		configMapVolume("config", "data"),
	),
		v1.VolumeMount{Name: "config", MountPath: "/etc/config/"},
		v1.VolumeMount{Name: "written", MountPath: "data", MountPropagation: ptr(v1.MountPropagationHostToContainer)},
		v1.VolumeMount{Name: "read", MountPath: "/data-read"},
		v1.VolumeMount{Name: "host", MountPath: "/a/../host", ReadOnly: true},
		v1.VolumeMount{Name: "scratch", MountPath: "/data/tmp", MountPropagation: ptr(v1.MountPropagationNone)},
		v1.VolumeMount{Name: "scratch", MountPath: "/data/tmp.d"},
	)
	setUp(t, manager, pod)
	nfs := filepath.Join(w.root, "pods/uid-web/volumes/kubernetes.io~nfs/nfs211")
	scratch := filepath.Join(w.root, "pods/uid-web/volumes/kubernetes.io~empty-dir/scratch")
	want := []containermounts.Mount{
		{Volume: "written", Source: nfs, Destination: "/data", Propagation: mount.PropagationSlave},
		{Volume: "scratch", Source: scratch, Destination: "/data/tmp", Propagation: mount.PropagationPrivate, SELinuxRelabel: true},
		{Volume: "scratch", Source: scratch, Destination: "/data/tmp.d", Propagation: mount.PropagationPrivate, SELinuxRelabel: true},
		{Volume: "read", Source: nfs, Destination: "/data-read", ReadOnly: true, Propagation: mount.PropagationPrivate},
		{Volume: "config", Source: filepath.Join(w.root, "pods/uid-web/volumes/kubernetes.io~configmap/config"), Destination: "/etc/config",
			ReadOnly: true, Propagation: mount.PropagationPrivate, SELinuxRelabel: true},
		{Volume: "host", Source: host, Destination: "/host", ReadOnly: true, Propagation: mount.PropagationPrivate},
	}
	ignoreLocked := cmpopts.IgnoreFields(containermounts.Mount{}, "Locked")
	if diff := cmp.Diff(want, containerMounts(t, manager, pod), ignoreLocked, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	tearDown(t, manager, pod)
	w.assertClean()
}

// The attributes of a volume that an earlier manager mounted are known as well.
func TestContainerMountsAfterRestart(t *testing.T) {
	w := newWorld(t)
	pod := mounting(newPod("web", v1.Volume{Name: "nfs", VolumeSource: v1.VolumeSource{NFS: &v1.NFSVolumeSource{Server: "10.0.0.1", Path: "/x", ReadOnly: true}}}),
		v1.VolumeMount{Name: "nfs", MountPath: "/data"})
	manager, stop := w.start()
	setUp(t, manager, pod)
	before := containerMounts(t, manager, pod)
	stop()
	manager, _ = w.start()
	if err := manager.PutPod(pod); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, containerMounts(t, manager, pod)); diff != "" {
		t.Errorf("(-before +after):\n%s", diff)
	}
	if !before[0].ReadOnly {
		t.Error("a read-only source is writable")
	}
}

func TestContainersOfAllKinds(t *testing.T) {
	w := newWorld(t)
	manager, _ := w.start()
	pod := mounting(newPod("web", emptyDirVolume("v", "")))
	mounts := []v1.VolumeMount{{Name: "v", MountPath: "/v"}}
	pod.Spec.InitContainers = []v1.Container{{Name: "init", VolumeMounts: mounts}}
	pod.Spec.EphemeralContainers = []v1.EphemeralContainer{{EphemeralContainerCommon: v1.EphemeralContainerCommon{Name: "debug", VolumeMounts: mounts}}}
	setUp(t, manager, pod)
	for name, want := range map[string]int{"init": 1, "c": 0, "debug": 1} {
		got, _, err := manager.ContainerMounts(t.Context(), pod.UID, name, containermounts.Options{})
		if err != nil || len(got) != want {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
	_, _, err := manager.ContainerMounts(t.Context(), pod.UID, "other", containermounts.Options{})
	if !errors.Is(err, containermounts.ErrUnknownContainer) || !strings.HasSuffix(err.Error(), "; it has init, c, debug") {
		t.Errorf("err = %v", err)
	}
}

func TestContainerMountsOfOtherPods(t *testing.T) {
	w := newWorld(t)
	manager, _ := w.start()
	ask := func(pod *v1.Pod) error {
		_, _, err := manager.ContainerMounts(t.Context(), pod.UID, "c", containermounts.Options{})
		return err
	}
	pod := mounting(newPod("web", emptyDirVolume("v", "")), v1.VolumeMount{Name: "v", MountPath: "/v"})
	if err := ask(pod); !errors.Is(err, volumemanager.ErrUnknownPod) {
		t.Errorf("before: %v", err)
	}
	setUp(t, manager, pod)
	manager.DeletePod(pod.UID)
	if err := ask(pod); !errors.Is(err, volumemanager.ErrWithdrawn) {
		t.Errorf("deleted: %v", err)
	}
}

func TestContainerMountsOfWhatIsNotMounted(t *testing.T) {
	w := newWorld(t)
	manager, _ := w.start()
	pod := mounting(newPod("web", claimVolume("data", "missing", false), emptyDirVolume("v", "")),
		v1.VolumeMount{Name: "v", MountPath: "/v"}, v1.VolumeMount{Name: "data", MountPath: "/data"})
	if _, err := manager.SetUpPod(t.Context(), pod); err == nil {
		t.Fatal("no error")
	}
	_, _, err := manager.ContainerMounts(t.Context(), pod.UID, "c", containermounts.Options{})
	failed, ok := errors.AsType[*volume.Error](err)
	waiting, waits := errors.AsType[*volumemanager.NotMountedError](err)
	if !ok || !waits || failed.Volume != "data" || failed.Pod.Name != "web" || !errors.Is(err, volume.ErrNotFound) || !strings.Contains(waiting.Waits, "the next attempt") {
		t.Errorf("err = %v", err)
	}
}

func TestRefusedVolumeMounts(t *testing.T) {
	w := newWorld(t)
	manager, _ := w.start()
	twice := []v1.VolumeMount{{Name: "v", MountPath: "/v"}, {Name: "v", MountPath: "v/"}}
	one := func(m v1.VolumeMount) []v1.VolumeMount {
		m.Name, m.MountPath = "v", "/v"
		return []v1.VolumeMount{m}
	}
	rro := func(mode v1.RecursiveReadOnlyMode, readOnly bool, p *v1.MountPropagationMode) []v1.VolumeMount {
		return one(v1.VolumeMount{RecursiveReadOnly: &mode, ReadOnly: readOnly, MountPropagation: p})
	}
	for name, tc := range map[string]struct {
		mounts  []v1.VolumeMount
		options containermounts.Options
		field   string
	}{
		"twice":                    {mounts: twice, field: "spec.containers[0].volumeMounts[1].mountPath"},
		"the root":                 {mounts: []v1.VolumeMount{{Name: "v", MountPath: "/a/.."}}, field: "spec.containers[0].volumeMounts[0].mountPath"},
		"Bidirectional":            {mounts: one(v1.VolumeMount{MountPropagation: ptr(v1.MountPropagationBidirectional)}), field: "spec.containers[0].volumeMounts[0].mountPropagation"},
		"no propagation":           {mounts: one(v1.VolumeMount{MountPropagation: ptr(v1.MountPropagationMode("x"))}), field: "spec.containers[0].volumeMounts[0].mountPropagation"},
		"rro of a writable":        {mounts: rro(v1.RecursiveReadOnlyIfPossible, false, nil), field: "spec.containers[0].volumeMounts[0].recursiveReadOnly"},
		"rro with HostToContainer": {mounts: rro(v1.RecursiveReadOnlyEnabled, true, ptr(v1.MountPropagationHostToContainer)), field: "spec.containers[0].volumeMounts[0].recursiveReadOnly"},
		"no recursiveReadOnly":     {mounts: rro("x", true, nil), field: "spec.containers[0].volumeMounts[0].recursiveReadOnly"},
		"user ids without group's": {mounts: one(v1.VolumeMount{}), options: containermounts.Options{UIDMappings: []host.IDMapping{{Size: 1}}}, field: "options"},
		"a mapping of nothing":     {mounts: one(v1.VolumeMount{}), options: containermounts.Options{UIDMappings: []host.IDMapping{{}}, GIDMappings: []host.IDMapping{{}}}, field: "options"},
	} {
		t.Run(name, func(t *testing.T) {
			pod := mounting(newPod("web", emptyDirVolume("v", "")), tc.mounts...)
			var mounts []containermounts.Mount
			_, err := manager.SetUpPod(t.Context(), pod)
			if err == nil { // no rule of the API's
				mounts, _, err = manager.ContainerMounts(t.Context(), pod.UID, "c", tc.options)
			}
			if invalid, ok := errors.AsType[*volume.InvalidSpecError](err); !ok || invalid.Field != tc.field || mounts != nil {
				t.Errorf("%v, %v", mounts, err)
			}
		})
	}
}

func TestRecursiveReadOnly(t *testing.T) {
	w := newWorld(t)
	manager, _ := w.start()
	for _, tc := range []struct {
		mode      *v1.RecursiveReadOnlyMode
		supported bool
		want      bool
		fails     bool
	}{
		{nil, true, false, false},
		{ptr(v1.RecursiveReadOnlyDisabled), true, false, false},
		{ptr(v1.RecursiveReadOnlyIfPossible), true, true, false},
		{ptr(v1.RecursiveReadOnlyIfPossible), false, false, false},
		{ptr(v1.RecursiveReadOnlyEnabled), true, true, false},
		{ptr(v1.RecursiveReadOnlyEnabled), false, false, true},
	} {
		pod := mounting(newPod("web", emptyDirVolume("v", "")), v1.VolumeMount{Name: "v", MountPath: "/v", ReadOnly: true, RecursiveReadOnly: tc.mode})
		setUp(t, manager, pod)
		mounts, _, err := manager.ContainerMounts(t.Context(), pod.UID, "c",
			containermounts.Options{Runtime: containermounts.RuntimeFeatures{RecursiveReadOnly: tc.supported}})
		typed := errors.Is(err, containermounts.ErrRuntimeLacks)
		if typed != tc.fails || !tc.fails && (len(mounts) != 1 || mounts[0].RecursiveReadOnly != tc.want) {
			t.Errorf("%+v: %+v, %v", tc, mounts, err)
		}
	}
}

func TestBindMountOptions(t *testing.T) {
	asked, asks := []string{"noexec", "nosuid"}, v1.VolumeMount{Name: "v", MountPath: "/v"}
	if !kubeapi.Set(&asks, "BindMountOptions", asked) {
		t.Skip("this minor of k8s.io/api has no bindMountOptions")
	}
	w := newWorld(t)
	manager, _ := w.start()
	pod := mounting(newPod("web", emptyDirVolume("v", "")), asks)
	setUp(t, manager, pod)
	_, _, err := manager.ContainerMounts(t.Context(), pod.UID, "c", containermounts.Options{})
	if !errors.Is(err, containermounts.ErrRuntimeLacks) || volume.IsUncertain(err) || !strings.Contains(err.Error(), "must be "+strings.Join(asked, " and ")+" (") || !strings.Contains(err.Error(), "noexec and nosuid") {
		t.Errorf("a runtime that does not know them: %v", err)
	}
	mounts, _, err := manager.ContainerMounts(t.Context(), pod.UID, "c",
		containermounts.Options{Runtime: containermounts.RuntimeFeatures{BindMountOptions: true}})
	if err != nil || len(mounts) != 1 || !slices.Equal(mounts[0].BindMountOptions, asked) {
		t.Errorf("%+v, %v", mounts, err)
	}
}

func TestContainerMountsOfPrivilegedContainers(t *testing.T) {
	w := newWorld(t)
	manager, _ := w.start()
	pod := mounting(newPod("web", emptyDirVolume("v", "")), v1.VolumeMount{Name: "v", MountPath: "/v", MountPropagation: ptr(v1.MountPropagationBidirectional)})
	pod.Spec.Containers[0].SecurityContext = &v1.SecurityContext{Privileged: ptr(true)}
	setUp(t, manager, pod)
	if got := containerMounts(t, manager, pod); got[0].Propagation != mount.PropagationShared {
		t.Errorf("%+v", got)
	}
}

// Mappings reach the runtime, hostPath's too, and are the caller's own copies.
func TestContainerMountsWithMappings(t *testing.T) {
	w := newWorld(t)
	manager, _ := w.start()
	pod := mounting(newPod("web", hostPathVolume("h", t.TempDir())), v1.VolumeMount{Name: "h", MountPath: "/h"})
	setUp(t, manager, pod)
	options := containermounts.Options{
		UIDMappings: []host.IDMapping{{HostID: 65536, Size: 65536}}, GIDMappings: []host.IDMapping{{HostID: 131072, Size: 65536}}}
	mounts, _, err := manager.ContainerMounts(t.Context(), pod.UID, "c", options)
	if err != nil || !cmp.Equal(mounts[0].UIDMappings, options.UIDMappings) || !cmp.Equal(mounts[0].GIDMappings, options.GIDMappings) {
		t.Fatalf("%+v, %v", mounts, err)
	}
	mounts[0].UIDMappings[0].Size = 7
	if options.UIDMappings[0].Size != 65536 {
		t.Error("the result shares the argument's memory")
	}
}

// A hostPath may be a file; flags of the mount that it lies in are reported.
func TestContainerMountsOfAHostFile(t *testing.T) {
	w := newWorld(t)
	host := t.TempDir()
	if err := w.fake.Mount("tmpfs", host, "tmpfs", []string{"ro", "nosuid", "noexec", "nodev"}); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(host, "file")
	putFile(t, file, "content")
	manager, _ := w.start()
	pod := mounting(newPod("web", hostPathVolume("h", file)), v1.VolumeMount{Name: "h", MountPath: "/h"})
	setUp(t, manager, pod)
	got := containerMounts(t, manager, pod)[0]
	if !got.File || !got.ReadOnly || !cmp.Equal(got.Locked, []string{"ro", "nosuid", "nodev", "noexec"}) {
		t.Errorf("%+v", got)
	}
}

func putFile(t testing.TB, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

// A user namespace has no devices, as the API server says too.
func TestContainerDevicesInAUserNamespace(t *testing.T) {
	w := newWorld(t)
	w.withBlockDisks()
	manager, _ := w.start()
	pod := blockPod("one", "a")
	setUp(t, manager, pod)
	mapped := []host.IDMapping{{HostID: 65536, Size: 1}}
	_, _, err := manager.ContainerMounts(t.Context(), pod.UID, "c", containermounts.Options{UIDMappings: mapped, GIDMappings: mapped})
	if invalid, ok := errors.AsType[*volume.InvalidSpecError](err); !ok || invalid.Field != "spec.containers[0].volumeDevices" {
		t.Errorf("err = %v", err)
	}
}

// A hostPath of no type is not looked at before a container needs it.
func TestMissingHostPath(t *testing.T) {
	w := newWorld(t)
	manager, _ := w.start()
	missing := filepath.Join(t.TempDir(), "missing")
	pod := mounting(newPod("web", hostPathVolume("h", missing)), v1.VolumeMount{Name: "h", MountPath: "/h"})
	setUp(t, manager, pod)
	_, _, err := manager.ContainerMounts(t.Context(), pod.UID, "c", containermounts.Options{})
	if !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), missing) || !strings.Contains(err.Error(), "DirectoryOrCreate") {
		t.Errorf("err = %v", err)
	}
	tearDown(t, manager, pod)
	w.assertClean()
}
