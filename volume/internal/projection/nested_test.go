package projection_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/volume"
)

func mountAt(volumeName, path string) v1.VolumeMount {
	return v1.VolumeMount{Name: volumeName, MountPath: path}
}

// Other volumes of the pod are mounted inside this one, which the container
// runtime cannot write to.
func TestNestedMountPoints(t *testing.T) {
	sub := mountAt("vol", "/sub")
	sub.SubPath = "x"
	tests := map[string]struct {
		mounts []v1.VolumeMount
		want   []string
	}{
		"none":                           {[]v1.VolumeMount{mountAt("vol", "/dir"), mountAt("other", "/dir2"), mountAt("other", "/")}, nil},
		"as the kubelet's documentation": {[]v1.VolumeMount{mountAt("vol", "/dir"), mountAt("vol", "/dir/nested"), mountAt("b", "/dir/nested-vol"), mountAt("c", "/dir/nested/double")}, []string{"double", "nested", "nested-vol"}},
		"deep":                           {[]v1.VolumeMount{mountAt("vol", "/dir"), mountAt("b", "/dir/a/b/c")}, []string{"a", "a/b", "a/b/c"}},
		"inside another's mount point":   {[]v1.VolumeMount{mountAt("vol", "/dir"), mountAt("b", "/dir/a"), mountAt("c", "/dir/a/c")}, []string{"a"}},
		"unclean, and never outside":     {[]v1.VolumeMount{mountAt("vol", "dir//"), mountAt("b", "/../dir/./a/../../../dir/x")}, []string{"x"}},
		"at the root":                    {[]v1.VolumeMount{mountAt("vol", "/"), mountAt("b", "/b")}, []string{"b"}},
		"a published name serves":        {[]v1.VolumeMount{mountAt("vol", "/dir"), mountAt("b", "/dir/key/x"), mountAt("c", "/dir/free")}, []string{"free"}},
		"not of a subPath":               {[]v1.VolumeMount{sub, mountAt("b", "/sub/a")}, nil},
	}
	for name, tc := range tests {
		for kind, source := range map[string]v1.VolumeSource{"configMap": fromConfigMap("app"), "secret": fromSecret("tls")} {
			t.Run(name+"/"+kind, func(t *testing.T) {
				old := syscall.Umask(0o077)
				defer syscall.Umask(old)
				b := newBench(t, source)
				b.provide("one")
				b.pod.Spec.InitContainers = []v1.Container{{Name: "init", VolumeMounts: tc.mounts}}
				b.pod.Spec.Containers = []v1.Container{{Name: "main"}}
				b.setUp()
				if diff := cmp.Diff(tc.want, directories(b)); diff != "" {
					t.Errorf("directories (-want +got):\n%s", diff)
				}
				state := b.state()
				b.setUp()
				if diff := cmp.Diff(state, b.state()); diff != "" {
					t.Errorf("an unchanged volume was written to:\n%s", diff)
				}
				b.provide("two")
				b.pod.Spec.Containers[0].VolumeMounts = tc.mounts
				b.setUp()
				b.wantFiles(map[string]string{"key": "0644 two"})
				if diff := cmp.Diff(tc.want, directories(b)); diff != "" {
					t.Errorf("after an update (-want +got):\n%s", diff)
				}
				b.tearDown()
				b.host.AssertTornDown(t)
			})
		}
	}
}

// directories lists the volume's directories but those of atomicdir, and
// checks that everybody may search them.
func directories(b *bench) (dirs []string) {
	b.Helper()
	err := filepath.WalkDir(b.dir(), func(path string, entry os.DirEntry, err error) error {
		if err != nil || path == b.dir() || !entry.IsDir() {
			return err
		}
		if strings.HasPrefix(entry.Name(), "..") {
			return filepath.SkipDir
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		if info.Mode().Perm() != 0o755 {
			b.Errorf("%s has mode %v", path, info.Mode())
		}
		dirs = append(dirs, strings.TrimPrefix(path, b.dir()+"/"))
		return nil
	})
	if err != nil {
		b.Fatal(err)
	}
	return dirs
}

func TestReservedMountPointsAreRefused(t *testing.T) {
	b := newBench(t, fromConfigMap("app"))
	b.pod.Spec.Containers = []v1.Container{{Name: "main", VolumeMounts: []v1.VolumeMount{mountAt("vol", "/dir"), mountAt("b", "/dir/..data/x")}}}
	_, err := b.plugin.NewMounter(b.spec, b.pod)
	if _, ok := errors.AsType[*volume.InvalidSpecError](err); !ok {
		t.Errorf("%v", err)
	}
}
