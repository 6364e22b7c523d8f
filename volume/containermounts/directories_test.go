//go:build linux

package containermounts_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/util/subpath"
	"github.com/podvol/podvol/util/testenv/testtool"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/containermounts"
	"github.com/podvol/podvol/volume/fakehost"
)

// resolve resolves the mounts of a pod's only container for two directories: data, which is
// writable, and config, which is not and has the file key.
func resolve(t *testing.T, mounts ...v1.VolumeMount) (got []string, data, config string, err error) {
	t.Helper()
	top, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	data, config = testtool.MkdirAll(t, top, "data"), testtool.MkdirAll(t, top, "config")
	testtool.WriteFile(t, "x", config, "key")
	if err := os.Symlink(config, filepath.Join(data, "escape")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("real", filepath.Join(data, "link")); err != nil {
		t.Fatal(err)
	}
	testtool.MkdirAll(t, data, "real")
	pod := fakehost.Pod("web", v1.Volume{Name: "data"}, v1.Volume{Name: "config"}, v1.Volume{Name: "absent"})
	pod.Spec.Containers = []v1.Container{{Name: "c", VolumeMounts: mounts}}
	all, err := containermounts.Resolve(t.Context(), pod, "c", map[string]containermounts.Directory{"data": {Path: data}, "config": {Path: config, ReadOnly: true}},
		containermounts.Options{Env: map[string]string{"NAME": "web"}})
	for _, m := range all {
		line := fmt.Sprintf("%s on %s", strings.TrimPrefix(m.Source, top+"/"), m.Destination)
		if m.ReadOnly {
			line += " ro"
		}
		if m.File {
			line += " file"
		}
		got = append(got, line)
	}
	return got, data, config, err
}

// Directories get the mounts that a manager's volumes have: in order, with sub-paths that
// are made and expanded, and mount points inside one another.
func TestResolveDirectories(t *testing.T) {
	got, data, _, err := resolve(t,
		v1.VolumeMount{Name: "config", MountPath: "/app/etc"},
		v1.VolumeMount{Name: "data", MountPath: "/app"},
		v1.VolumeMount{Name: "data", MountPath: "/logs", SubPathExpr: "logs/$(NAME)"},
		v1.VolumeMount{Name: "data", MountPath: "/linked", SubPath: "link"},
		v1.VolumeMount{Name: "config", MountPath: "/key", SubPath: "key"},
		v1.VolumeMount{Name: "data", MountPath: "/ro", ReadOnly: true})
	want := []string{"data on /app", "config on /app/etc ro", "config/key on /key ro file", "data/real on /linked", "data/logs/web on /logs", "data on /ro ro"}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%q, %v\nwant %q", got, err, want)
	}
	for _, made := range []string{"logs/web", "etc"} {
		if info, err := os.Lstat(filepath.Join(data, made)); err != nil || !info.IsDir() {
			t.Errorf("%s was not made: %v", made, err)
		}
	}
}

// Files that are made for a pod are shown to be read only, whatever the agent says of their
// directory, and nothing is made among them; so are sources that ask for it themselves.
func TestResolveKnowsWhatIsReadOnly(t *testing.T) {
	for name, tc := range map[string]struct {
		source             v1.VolumeSource
		readOnly, relabels bool
	}{
		"configMap":     {v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{}}, true, true},
		"secret":        {v1.VolumeSource{Secret: &v1.SecretVolumeSource{}}, true, true},
		"downwardAPI":   {v1.VolumeSource{DownwardAPI: &v1.DownwardAPIVolumeSource{}}, true, true},
		"projected":     {v1.VolumeSource{Projected: &v1.ProjectedVolumeSource{}}, true, true},
		"image":         {v1.VolumeSource{Image: &v1.ImageVolumeSource{}}, true, false},
		"nfs read-only": {v1.VolumeSource{NFS: &v1.NFSVolumeSource{ReadOnly: true}}, true, false},
		"nfs":           {v1.VolumeSource{NFS: &v1.NFSVolumeSource{}}, false, false},
		"csi read-only": {v1.VolumeSource{CSI: &v1.CSIVolumeSource{ReadOnly: new(true)}}, true, false},
		"emptyDir":      {v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			pod := fakehost.Pod("web", v1.Volume{Name: "v", VolumeSource: tc.source})
			pod.Spec.Containers = []v1.Container{{Name: "c", VolumeMounts: []v1.VolumeMount{{Name: "v", MountPath: "/v"}}}}
			all := map[string]containermounts.Directory{"v": {Path: dir}}
			got, err := containermounts.Resolve(t.Context(), pod, "c", all, containermounts.Options{})
			if err != nil || got[0].ReadOnly != tc.readOnly || got[0].SELinuxRelabel != tc.relabels {
				t.Errorf("%+v, %v", got, err)
			}
			pod.Spec.Containers[0].VolumeMounts[0].SubPath = "misspelt"
			_, err = containermounts.Resolve(t.Context(), pod, "c", all, containermounts.Options{})
			if _, refused := errors.AsType[*subpath.ReadOnlyError](err); refused != tc.readOnly {
				t.Errorf("a sub-path that is not there: %v", err)
			}
			if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 == tc.readOnly {
				t.Errorf("the directory has %v, %v", entries, err)
			}
		})
	}
}

// What breaks a rule is refused with the error that a manager's volumes have.
func TestResolveRefuses(t *testing.T) {
	escapes := func(err error) bool { _, ok := errors.AsType[*subpath.EscapeError](err); return ok }
	readOnly := func(err error) bool { _, ok := errors.AsType[*subpath.ReadOnlyError](err); return ok }
	for name, tc := range map[string]struct {
		mounts []v1.VolumeMount
		is     func(error) bool
	}{
		"no directory":              {[]v1.VolumeMount{{Name: "absent", MountPath: "/a"}}, func(err error) bool { return errors.Is(err, containermounts.ErrNoDirectory) }},
		"a link that leads out":     {[]v1.VolumeMount{{Name: "data", MountPath: "/a", SubPath: "escape/key"}}, escapes},
		"dots":                      {[]v1.VolumeMount{{Name: "data", MountPath: "/a", SubPath: "../config"}}, isInvalid},
		"an unknown variable":       {[]v1.VolumeMount{{Name: "data", MountPath: "/a", SubPathExpr: "$(NONE)"}}, isInvalid},
		"a misspelt key":            {[]v1.VolumeMount{{Name: "config", MountPath: "/a", SubPath: "kye"}}, readOnly},
		"a point that is not there": {[]v1.VolumeMount{{Name: "config", MountPath: "/a"}, {Name: "data", MountPath: "/a/b"}}, func(err error) bool { return errors.Is(err, fs.ErrNotExist) }},
		"two at one place":          {[]v1.VolumeMount{{Name: "config", MountPath: "/a"}, {Name: "data", MountPath: "/a"}}, isInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			got, _, config, err := resolve(t, tc.mounts...)
			if err == nil || !tc.is(err) || len(got) > 0 {
				t.Errorf("%q, %v", got, err)
			}
			if entries, err := os.ReadDir(config); err != nil || len(entries) != 1 {
				t.Errorf("the read-only directory was changed: %v, %v", entries, err)
			}
		})
	}
	pod := fakehost.Pod("web", v1.Volume{Name: "data"})
	pod.Spec.Containers = []v1.Container{{Name: "c", VolumeMounts: []v1.VolumeMount{{Name: "data", MountPath: "/a"}}}}
	if _, err := containermounts.Resolve(t.Context(), pod, "other", nil, containermounts.Options{}); !errors.Is(err, containermounts.ErrUnknownContainer) {
		t.Errorf("another container: %v", err)
	}
	if _, err := containermounts.Resolve(t.Context(), nil, "c", nil, containermounts.Options{}); !isInvalid(err) {
		t.Errorf("no pod: %v", err)
	}
	relative := map[string]containermounts.Directory{"data": {Path: "data"}}
	if _, err := containermounts.Resolve(t.Context(), pod, "c", relative, containermounts.Options{}); !isInvalid(err) {
		t.Errorf("a relative path: %v", err)
	}
	gone := map[string]containermounts.Directory{"data": {Path: filepath.Join(t.TempDir(), "gone")}}
	if _, err := containermounts.Resolve(t.Context(), pod, "c", gone, containermounts.Options{}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a directory that is gone: %v", err)
	} else if e, ok := errors.AsType[*volume.Error](err); !ok || e.Volume != "data" {
		t.Errorf("the error does not name the volume: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := containermounts.Resolve(ctx, pod, "c", map[string]containermounts.Directory{"data": {Path: t.TempDir()}}, containermounts.Options{}); err != nil && !errors.Is(err, context.Canceled) {
		t.Errorf("a context that has ended: %v", err)
	}
}
