package main

import (
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/util/testenv/ociimage"
	"github.com/podvol/podvol/volume/podrun"
)

// An image in a layout is shown without a registry, a sub-path of it too, and nothing of it is
// left.
func TestRunShowsAnImage(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		var images ociimage.Registry
		images.Add("library/busybox:1.37", ociimage.Layer{Entries: []ociimage.Entry{{Name: "bin/hello", Content: "from the image", Mode: 0o755}, {Name: "etc/passwd"}}})
		layout, base := t.TempDir(), t.TempDir()
		images.WriteLayout(t, layout, "docker.io")
		args := []string{"run", "-f", "../../testdata/image.yaml", "--root-dir", base}
		out, _ := mustPodvol(t, exitOK, append(args, "--image-layout", layout, "--", "sh", "-c", "ls /tools; cat /tools/hello; grep /tools /proc/self/mountinfo; touch /tools/new || echo refused")...)
		for _, want := range []string{"hello\n", "from the image", "ro,nosuid,nodev,noexec", "refused"} {
			if !strings.Contains(out, want) {
				t.Errorf("%q is not in\n%s", want, out)
			}
		}
		assertNoRuns(t, base)
	})
}

// A private image of a registry is pulled with the node's credentials, and not without.
func TestRunPullsWithTheNodesCredentials(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		images := ociimage.Registry{User: "u", Password: "s3cret"}
		images.Add("web:1", ociimage.Layer{Entries: []ociimage.Entry{{Name: "hello", Content: "from the registry"}}})
		server := httptest.NewServer(&images)
		defer server.Close()
		host, dir := strings.TrimPrefix(server.URL, "http://"), t.TempDir()
		manifest, config := filepath.Join(dir, "pod.yaml"), filepath.Join(dir, "config.json")
		pod := fmt.Sprintf(`{apiVersion: v1, kind: Pod, metadata: {name: image}, spec: {containers: [{name: c, image: c, volumeMounts: [{name: v, mountPath: /v}]}],
  volumes: [{name: v, image: {reference: "%s/web:1"}}]}}`, host)
		for file, text := range map[string]string{manifest: pod, config: fmt.Sprintf(`{"auths": {%q: {"username": "u", "password": "s3cret"}}}`, host)} {
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		args := []string{"run", "-f", manifest, "--root-dir", t.TempDir()}
		if out, _ := mustPodvol(t, exitOK, append(args, "--registry-config", config, "--", "cat", "/v/hello")...); out != "from the registry" {
			t.Errorf("it printed %q", out)
		}
		if _, said := mustPodvol(t, podrun.ExitFailed, append(args, "--", "cat", "/v/hello")...); !strings.Contains(said, "registry refuses") || strings.Contains(said, "s3cret") {
			t.Errorf("without credentials: %s", said)
		}
	})
}
