package main

import (
	"strings"
	"testing"

	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/util/testenv/ociimage"
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
