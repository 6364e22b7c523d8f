package intree_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/fakehost"
	util "github.com/podvol/podvol/volume/intree"
)

func TestMountOptions(t *testing.T) {
	pv := &v1.PersistentVolume{}
	pv.Annotations = map[string]string{v1.MountOptionAnnotation: "rw,noexec,,hard"}
	pv.Spec.MountOptions = []string{"noexec", "vers=4.2"}
	spec := volume.NewSpecFromPersistentVolume(pv, false)
	inline := volume.NewSpecFromVolume(&v1.Volume{Name: "v"})
	for name, tc := range map[string]struct{ got, want []string }{
		"persistent":    {util.MountOptionFromSpec(spec, "ro", "hard"), []string{"rw", "noexec", "vers=4.2", "ro", "hard"}},
		"inline":        {util.MountOptionFromSpec(inline, "ro"), []string{"ro"}},
		"nothing":       {util.MountOptionFromSpec(nil), nil},
		"joined":        {util.JoinMountOptions([]string{"rw", "b", "b", ""}, []string{"ro", "b", "ro", ""}), []string{"rw", "ro", "b"}},
		"joined of nil": {util.JoinMountOptions(nil, nil), []string{}},
	} {
		if !slices.Equal(tc.got, tc.want) {
			t.Errorf("%s: %q, want %q", name, tc.got, tc.want)
		}
	}
	if !slices.Equal(pv.Spec.MountOptions, []string{"noexec", "vers=4.2"}) {
		t.Errorf("the spec has become %q", pv.Spec.MountOptions)
	}
}

// The helpers take all mounts off a directory and remove it, succeed where it is gone, and
// delete nothing.
func TestUnmountHelpers(t *testing.T) {
	for name, unmount := range map[string]func(context.Context, string, mount.Interface) error{
		"UnmountPath": util.UnmountPath,
		"UnmountMountPoint": func(ctx context.Context, dir string, m mount.Interface) error {
			return util.UnmountMountPoint(ctx, dir, m, false)
		},
		"CleanupMountPoint": func(ctx context.Context, dir string, m mount.Interface) error {
			return util.CleanupMountPoint(ctx, dir, m, true)
		},
		"CleanupMountWithForce": func(ctx context.Context, dir string, m mount.Interface) error {
			return util.CleanupMountWithForce(ctx, dir, m, true, time.Minute)
		},
	} {
		t.Run(name, func(t *testing.T) {
			host := fakehost.New(t)
			dir := filepath.Join(util.GetPluginMountDir(host, "example.com/plugin"), "device")
			if want := filepath.Join(host.RootDir, "plugins", "example.com/plugin", "mounts", "device"); dir != want {
				t.Errorf("devices are mounted at %s, want %s", dir, want)
			}
			must(t, os.MkdirAll(dir, 0o750))
			for range 2 {
				must(t, host.Fake.Mount("none", dir, "tmpfs", nil))
			}
			// A port keeps its mounter with a context: that, too, has the fake's table.
			must(t, unmount(t.Context(), dir, util.WithContext(t.Context(), host.Fake)))
			if _, err := os.Lstat(dir); !os.IsNotExist(err) {
				t.Errorf("it is still there: %v", err)
			}
			must(t, unmount(t.Context(), dir, host.Fake))
			must(t, os.MkdirAll(dir, 0o750))
			must(t, os.WriteFile(filepath.Join(dir, "data"), nil, 0o600))
			if err := unmount(t.Context(), dir, host.Fake); err == nil {
				t.Error("a directory that is not empty was unmounted with success")
			}
			if _, err := os.Lstat(filepath.Join(dir, "data")); err != nil {
				t.Error(err)
			}
		})
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestModes(t *testing.T) {
	all := []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce, v1.ReadOnlyMany}
	if !util.ContainsAllAccessModes(all, all[1:]) || util.ContainsAllAccessModes(all[:1], all) || !util.ContainsAccessMode(all, v1.ReadOnlyMany) {
		t.Error("access modes are not told apart")
	}
	block := &v1.PersistentVolume{Spec: v1.PersistentVolumeSpec{VolumeMode: new(v1.PersistentVolumeBlock)}}
	for _, tc := range []struct {
		spec *volume.Spec
		want v1.PersistentVolumeMode
	}{
		{volume.NewSpecFromPersistentVolume(block, false), v1.PersistentVolumeBlock},
		{volume.NewSpecFromPersistentVolume(&v1.PersistentVolume{}, false), v1.PersistentVolumeFilesystem},
		{volume.NewSpecFromVolume(&v1.Volume{}), v1.PersistentVolumeFilesystem},
		{nil, ""}, {&volume.Spec{}, ""},
	} {
		mode, err := util.GetVolumeMode(tc.spec)
		isFile, fileErr := util.CheckVolumeModeFilesystem(tc.spec)
		if mode != tc.want || (err != nil) != (tc.want == "") || isFile != (tc.want == v1.PersistentVolumeFilesystem) || (fileErr != nil) != (err != nil) {
			t.Errorf("%+v: %q, %v; a file system: %v, %v", tc.spec, mode, err, isFile, fileErr)
		}
	}
}

func TestCalculateTimeoutForVolume(t *testing.T) {
	for capacity, want := range map[string]int64{"1Mi": 60, "3Gi": 90, "2Ti": 2048 * 30, "2500Mi": 60} {
		pv := &v1.PersistentVolume{}
		pv.Spec.Capacity = v1.ResourceList{v1.ResourceStorage: resource.MustParse(capacity)}
		if got := util.CalculateTimeoutForVolume(60, 30, pv); got != want {
			t.Errorf("%s: %d s, want %d", capacity, got, want)
		}
	}
}

func TestReady(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "plugin", "volume")
	for range 2 {
		if err := util.ClearReady(dir); err != nil || util.IsReady(dir) {
			t.Errorf("not ready: %v", err)
		}
		for range 2 {
			if err := util.SetReady(dir); err != nil || !util.IsReady(dir) {
				t.Errorf("ready: %v", err)
			}
		}
	}
	other := filepath.Join(dir, "other")
	if err := os.WriteFile(other, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := util.ClearReady(dir); err != nil || util.IsReady(dir) {
		t.Errorf("beside another file: %v", err)
	}
	if err := os.Symlink(other, filepath.Join(dir, "ready")); err != nil {
		t.Fatal(err)
	}
	if err := util.SetReady(dir); err == nil || util.IsReady(dir) {
		t.Errorf("a link counts as ready: %v", err)
	}
	if _, err := os.Stat(other); err != nil {
		t.Error(err)
	}
}

// What cannot be wrapped, or would lead elsewhere, is refused before anything is touched.
func TestWrappersRefuse(t *testing.T) {
	host := util.NewHost(fakehost.New(t))
	good, pod := scratchSpec(), fakehost.Pod("a")
	negative := scratchSpec()
	negative.Volume.EmptyDir.SizeLimit = new(resource.MustParse("-1"))
	odd := scratchSpec()
	odd.Volume.EmptyDir.Medium = "Cloud"
	for what, tc := range map[string]struct {
		name string
		spec volume.Spec
		pod  *v1.Pod
	}{
		"a name":   {"../x", good, pod},
		"no pod":   {"v", good, nil},
		"no UID":   {"v", good, &v1.Pod{}},
		"a size":   {"v", negative, pod},
		"a medium": {"v", odd, pod},
		"a source": {"v", volume.Spec{Volume: &v1.Volume{}}, pod},
		"a spec":   {"v", volume.Spec{}, pod},
	} {
		if m, err := host.NewWrapperMounter(tc.name, tc.spec, tc.pod, volume.VolumeOptions{}); err == nil {
			t.Errorf("%s: %v", what, m)
		}
	}
	if err := util.UnmountViaEmptyDir(t.Context(), "/nowhere", host, "..", good, pod.UID); err == nil {
		t.Error("the unmounter takes any name")
	}
}
