//go:build unix

package containerenv_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/containerenv"
)

// fileNode is a node with the pod's emptyDir "v"; beside it lies what no pod may read.
func fileNode(t *testing.T) (p *v1.Pod, from containerenv.Sources, dir string) {
	t.Helper()
	p, from = pod(), containerenv.Sources{RootDir: t.TempDir()}
	p.Spec.Volumes = []v1.Volume{{Name: "v", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}}, {Name: "h", VolumeSource: v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: "/"}}}}
	dir = filepath.Join(from.RootDir, "pods/uid-0/volumes/kubernetes.io~empty-dir/v")
	if err := os.MkdirAll(filepath.Join(dir, "sub"), 0o755); err != nil {
		t.Fatal(err)
	}
	for file, text := range map[string]string{filepath.Join(dir, "env"): "A='1'\nB=''\nZ='\x00'\n", filepath.Join(dir, "sub/env"): "A='sub'\nbad\n", filepath.Join(from.RootDir, "secret"): "A='" + secretText + "'\n"} {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for link, target := range map[string]string{"inside": "sub/env", "absolute": filepath.Join(from.RootDir, "secret"), "up": "../../../../../secret", "loop": "loop"} {
		if err := os.Symlink(target, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	if err := syscall.Mkfifo(filepath.Join(dir, "fifo"), 0o644); err != nil {
		t.Fatal(err)
	}
	return p, from, dir
}

func TestVariablesOfFiles(t *testing.T) {
	p, from, _ := fileNode(t)
	env, err := containerenv.Resolve(t.Context(), p, container(t, `env:
- {name: ONE, valueFrom: {fileKeyRef: {volumeName: v, path: env, key: A}}}
- {name: EMPTY, valueFrom: {fileKeyRef: {volumeName: v, path: env, key: B}}}
- {name: SUB, valueFrom: {fileKeyRef: {volumeName: v, path: sub/env, key: A}}}
- {name: LINK, valueFrom: {fileKeyRef: {volumeName: v, path: inside, key: A}}}
- {name: NO_KEY, valueFrom: {fileKeyRef: {volumeName: v, path: env, key: C, optional: true}}}
- {name: NO_FILE, valueFrom: {fileKeyRef: {volumeName: v, path: none, key: A, optional: true}}}
- {name: USES, value: "$(ONE)$(NO_KEY)"}`), from)
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(env.List(), " "); got != "ONE=1 EMPTY= SUB=sub LINK=sub USES=1$(NO_KEY)" {
		t.Error(got)
	}
}

// Errors say where; none of them shows what the file has, and none waits.
func TestRefusedFiles(t *testing.T) {
	for name, tc := range map[string]struct {
		ref  string
		says string
		is   error // nil: it does not matter
	}{
		"no file":                {"{volumeName: v, path: none, key: A}", `"V" (env[0]) of container "app" of pod shop/web-0: file "none" of volume "v" not found`, volume.ErrNotFound},
		"no key":                 {"{volumeName: v, path: env, key: C}", `file "env" of volume "v" has no key "C"`, volume.ErrNotFound},
		"a wrong line":           {"{volumeName: v, path: sub/env, key: C}", `file "sub/env" of volume "v": line 2 has no equals sign`, nil},
		"a wrong line, optional": {"{volumeName: v, path: sub/env, key: C, optional: true}", "line 2", nil},
		"a zero byte":            {"{volumeName: v, path: env, key: Z}", "zero byte", containerenv.ErrZeroByte},
		"an absolute link":       {"{volumeName: v, path: absolute, key: A}", `file "absolute"`, nil},
		"a link up":              {"{volumeName: v, path: up, key: A}", `file "up"`, nil},
		"a loop":                 {"{volumeName: v, path: loop, key: A}", `file "loop"`, nil},
		"a FIFO":                 {"{volumeName: v, path: fifo, key: A}", "no regular file", nil},
		"a directory":            {"{volumeName: v, path: sub, key: A}", "no regular file", nil},
		"a path up":              {"{volumeName: v, path: ../v/env, key: A}", "fileKeyRef.path", nil},
		"an absolute path":       {"{volumeName: v, path: /env, key: A}", "fileKeyRef.path", nil},
		"no path":                {"{volumeName: v, key: A}", "fileKeyRef.path", nil},
		"no such volume":         {"{volumeName: w, path: env, key: A}", `no volume "w"`, nil},
		"another type":           {"{volumeName: h, path: env, key: A}", "must be an emptyDir", nil},
		"a wrong key":            {"{volumeName: v, path: env, key: A=B}", "fileKeyRef.key", nil},
	} {
		t.Run(name, func(t *testing.T) {
			p, from, _ := fileNode(t)
			env, err := containerenv.Resolve(t.Context(), p, container(t, "env: [{name: V, valueFrom: {fileKeyRef: "+tc.ref+"}}]"), from)
			if err == nil || !strings.Contains(err.Error(), tc.says) || tc.is != nil && !errors.Is(err, tc.is) {
				t.Errorf("%v, want %q", err, tc.says)
			}
			if err != nil && strings.Contains(err.Error(), secretText) || len(env.Names()) > 0 {
				t.Errorf("%v beside %v", env, err)
			}
		})
	}
}
