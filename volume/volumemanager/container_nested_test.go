package volumemanager_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/util/subpath"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/containermounts"
	"github.com/podvol/podvol/volume/mountrecord"
)

func TestNestedMountPoints(t *testing.T) {
	w := newWorld(t)
	host := t.TempDir()
	file := filepath.Join(host, "file")
	putFile(t, file, "content")
	w.add(configMap("config", map[string]string{"key": "value"}))
	manager, _ := w.start()
	pod := mounting(newPod("web", emptyDirVolume("outer", ""), emptyDirVolume("inner", ""), configMapVolume("config", "config"), hostPathVolume("file", file)),
		v1.VolumeMount{Name: "inner", MountPath: "/dir/a/b"},
		v1.VolumeMount{Name: "outer", MountPath: "/dir", ReadOnly: true},
		v1.VolumeMount{Name: "file", MountPath: "/dir/a/b/c/file"},
		v1.VolumeMount{Name: "inner", MountPath: "/dir/sub", SubPath: "sub"},
		v1.VolumeMount{Name: "inner", MountPath: "/dir/sub/deep"},
		v1.VolumeMount{Name: "config", MountPath: "/config"},
		v1.VolumeMount{Name: "inner", MountPath: "/config/nested"},
		v1.VolumeMount{Name: "file", MountPath: "/config/key"},
	)
	setUp(t, manager, pod)
	containerMounts(t, manager, pod)
	outer, inner := w.volumeDir("web", "empty-dir", "outer"), w.volumeDir("web", "empty-dir", "inner")
	for path, dir := range map[string]bool{outer + "/a/b": true, inner + "/c/file": false, outer + "/sub": true, inner + "/sub/deep": true} {
		if info, err := os.Stat(path); err != nil || info.IsDir() != dir {
			t.Errorf("%s: %v, %v", path, info, err)
		}
	}
	tearDown(t, manager, pod)
	w.assertClean()
}

func TestRefusedNestedMountPoints(t *testing.T) {
	w := newWorld(t)
	host := t.TempDir()
	putFile(t, filepath.Join(host, "file"), "content")
	w.add(configMap("config", map[string]string{"key": "value", "k2": "v"}))
	manager, _ := w.start()
	for name, tc := range map[string]struct {
		outer v1.VolumeMount
		point string
		is    func(error) bool
	}{
		"missing": {v1.VolumeMount{Name: "nfs", MountPath: "/o"}, "missing", func(err error) bool {
			e, ok := errors.AsType[*volume.Failure](err)
			return ok && errors.Is(err, fs.ErrNotExist) && e.Subject == "/o/missing" && strings.Contains(e.What, `"missing" in volume "nfs"`)
		}},
		"a file in the way": {v1.VolumeMount{Name: "config", MountPath: "/o"}, "key", func(err error) bool {
			_, ok := errors.AsType[*subpath.KindError](err)
			return ok
		}},
		"inside a file": {v1.VolumeMount{Name: "config", MountPath: "/o", SubPath: "key"}, "x", func(err error) bool {
			e, ok := errors.AsType[*volume.InvalidSpecError](err)
			return ok && e.Field == "spec.containers[0].volumeMounts[1].mountPath"
		}},
	} {
		t.Run(name, func(t *testing.T) {
			nfs := nfsVolume("nfs", "10.0.0.1")
			nfs.NFS.ReadOnly = true
			pod := mounting(newPod("web", nfs, configMapVolume("config", "config"), emptyDirVolume("inner", "")),
				tc.outer, v1.VolumeMount{Name: "inner", MountPath: "/o/" + tc.point})
			setUp(t, manager, pod)
			if _, _, err := manager.ContainerMounts(t.Context(), pod.UID, "c", containermounts.Options{}); !tc.is(err) {
				t.Errorf("err = %v", err)
			}
			tearDown(t, manager, pod)
			w.assertClean()
		})
	}
}

// Nothing is made in what was below a volume that has vanished meanwhile.
func TestNestedMountPointInAVolumeThatVanishes(t *testing.T) {
	for name, subPath := range map[string]string{"whole": "", "a part of it": "part"} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			manager, _ := w.start()
			pod := mounting(newPod("web", emptyDirVolume("outer", v1.StorageMediumMemory), emptyDirVolume("inner", "")),
				v1.VolumeMount{Name: "outer", MountPath: "/dir", SubPath: subPath},
				v1.VolumeMount{Name: "inner", MountPath: "/dir/in", SubPath: "x"})
			setUp(t, manager, pod)
			vanishes := w.volumeDir("web", "empty-dir", "outer")
			if subPath != "" {
				vanishes = w.boundAt("web", "outer", 0)
			}
			w.fake.Inject(fakemount.Fault{
				Match: func(c fakemount.Call) bool { return isMount(c) && c.Target == w.boundAt("web", "inner", 1) },
				Hook: func() {
					if err := w.fake.Unmount(vanishes); err != nil {
						t.Error(err)
					}
				},
			})
			_, _, err := manager.ContainerMounts(t.Context(), pod.UID, "c", containermounts.Options{})
			if !errors.Is(err, mountrecord.ErrNotMountedAnymore) {
				t.Errorf("err = %v", err)
			}
			tearDown(t, manager, pod)
			w.assertClean()
		})
	}
}
