package main

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const renderedPod = `
apiVersion: v1
kind: ConfigMap
metadata: {name: app}
data: {a: "1", b: "2"}
---
apiVersion: v1
kind: Pod
metadata: {name: web, uid: uid-of-web}
spec:
  volumes:
  - {name: config, configMap: {name: app, defaultMode: 0440}}
  - {name: scratch, emptyDir: {}}
  - name: token
    projected: {sources: [{serviceAccountToken: {path: token, audience: vault}}]}
  containers:
  - {name: c, image: i, volumeMounts: [{name: config, mountPath: /c}, {name: scratch, mountPath: /s}, {name: token, mountPath: /t}]}
`

// The archive has the files of all volumes that have some, below the volumes' names.
func TestRenderTar(t *testing.T) {
	root := t.TempDir()
	out, errOut := mustPodvol(t, exitOK, "render", "-f", manifestFile(t, renderedPod), "--root-dir", root)
	var names []string
	token := ""
	for archive := tar.NewReader(strings.NewReader(out)); ; {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, fmt.Sprintf("%s %04o", h.Name, h.Mode))
		if h.Name == "token/token" {
			text, err := io.ReadAll(archive)
			if err != nil {
				t.Fatal(err)
			}
			token = string(text)
		}
	}
	want := []string{"config/ 0755", "token/ 0755", "config/a 0440", "config/b 0440", "token/token 0644"}
	if !slices.Equal(names, want) || strings.Count(token, ".") != 2 || errOut != "" {
		t.Errorf("entries %q, want %q; token %q; stderr %s", names, want, token, errOut)
	}
}

func TestRenderJSON(t *testing.T) {
	out, _ := mustPodvol(t, exitOK, "render", "-f", manifestFile(t, renderedPod), "--volume", "config", "-o", "json")
	var got map[string]volumeJSON
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatal(err)
	}
	v := got["config"]
	if len(got) != 1 || len(v.Files) != 2 || v.Files[0].Path != "a" || string(v.Files[0].Data) != "1" || v.Files[0].Mode != "0440" || v.RefreshAfter != nil || !slices.Equal(v.DependsOn, []string{"ConfigMap default/app"}) {
		t.Errorf("%s", out)
	}
}

// A directory gets the files of each volume, and loses them when they go.
func TestRenderDir(t *testing.T) {
	dir := t.TempDir()
	render := func(text string) {
		mustPodvol(t, exitOK, "render", "-f", manifestFile(t, text), "--volume", "config", "-o", "dir", "--to", dir)
	}
	render(renderedPod)
	if text, err := os.ReadFile(filepath.Join(dir, "config", "a")); err != nil || string(text) != "1" {
		t.Errorf("%q, %v", text, err)
	}
	render(strings.Replace(renderedPod, `a: "1", b: "2"`, `b: "3"`, 1))
	if text, err := os.ReadFile(filepath.Join(dir, "config", "b")); err != nil || string(text) != "3" {
		t.Errorf("%q, %v", text, err)
	}
	if _, err := os.Lstat(filepath.Join(dir, "config", "a")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a key that went is left: %v", err)
	}
}

// Each wrong use says what is wrong, and writes nothing.
func TestRenderRefuses(t *testing.T) {
	dir := t.TempDir()
	file := manifestFile(t, renderedPod)
	link := filepath.Join(dir, "link")
	if err := errors.Join(os.Mkdir(link, 0o755), os.Symlink("/nowhere", filepath.Join(link, "config"))); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"-f", file, "-o", "zip"}, exitUsage, "zip"},
		{[]string{"-f", file, "-o", "dir"}, exitUsage, "--to"},
		{[]string{"-f", file, "--to", dir}, exitUsage, "--to"},
		{[]string{"-f", file, "--volume", "scratch"}, exitFailed, "no files of its own"},
		{[]string{"-f", file, "--volume", "none"}, exitFailed, `no volume "none"`},
		{[]string{"-f", file, "--volume", "confg"}, exitFailed, `no volume "confg"; did you mean "config"?`},
		{[]string{"-f", file, "--pod", "default/wb"}, exitUsage, `; did you mean "default/web"?`},
		{[]string{"-f", manifestFile(t, strings.Replace(renderedPod, "name: app}\ndata", "name: other}\ndata", 1))}, exitFailed, "default/app"},
		{[]string{"-f", manifestFile(t, strings.ReplaceAll(renderedPod, "name: config,", "name: ../config,"))}, exitUsage, "../config"},
		{[]string{"-f", file, "--volume", "config", "-o", "dir", "--to", link}, exitFailed, "config"},
		{[]string{"-f", file, "--volume", "config", "-o", "dir", "--to", filepath.Join(dir, "none")}, exitUsage, "none"},
	} {
		code, out, errOut := podvol(t, "", append([]string{"render"}, tc.args...)...)
		if code != tc.code || out != "" || !strings.Contains(errOut, tc.says) {
			t.Errorf("render %q: exit code %d, stdout %q, stderr %s", tc.args, code, out, errOut)
		}
	}
}
