package containermounts_test

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/util/subpath"
	"github.com/podvol/podvol/volume/containermounts"
)

// On every Unix a sub-path is made and expanded, a link in the volume is followed, and one
// that leads out is refused. Elsewhere the error says that it cannot be done.
func TestResolveOnEverySystem(t *testing.T) {
	top, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	data := filepath.Join(top, "data")
	if err := errors.Join(os.MkdirAll(filepath.Join(data, "real"), 0o755), os.WriteFile(filepath.Join(data, "real", "file"), nil, 0o644)); err != nil {
		t.Fatal(err)
	}
	if runtime.GOOS != "windows" {
		if err := errors.Join(os.Symlink("real", filepath.Join(data, "link")), os.Symlink("..", filepath.Join(data, "out"))); err != nil {
			t.Fatal(err)
		}
	}
	for subPath, want := range map[string]string{"": "data", "link/file": "data/real/file", "link/$(NAME)": "data/real/web", "out/other": ""} {
		pod := &v1.Pod{Spec: v1.PodSpec{
			Volumes:    []v1.Volume{{Name: "data"}},
			Containers: []v1.Container{{Name: "c", VolumeMounts: []v1.VolumeMount{{Name: "data", MountPath: "/data", SubPathExpr: subPath}}}},
		}}
		got, err := containermounts.Resolve(t.Context(), pod, "c", map[string]containermounts.Directory{"data": {Path: data}}, containermounts.Options{Env: map[string]string{"NAME": "web"}})
		_, escapes := errors.AsType[*subpath.EscapeError](err)
		switch {
		case runtime.GOOS == "windows":
			if !errors.Is(err, errors.ErrUnsupported) {
				t.Errorf("%q: %v", subPath, err)
			}
		case want == "":
			if !escapes {
				t.Errorf("%q: %+v, %v", subPath, got, err)
			}
		case err != nil || len(got) != 1 || got[0].Source != filepath.Join(top, want) || got[0].File != (subPath == "link/file"):
			t.Errorf("%q: %+v, %v", subPath, got, err)
		}
	}
}
