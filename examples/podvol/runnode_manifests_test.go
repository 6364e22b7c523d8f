package main

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/podvol/podvol/util/testenv/nstest"
)

// A start before the disk of the manifests is mounted changes nothing, and neither
// does the next one.
func TestRunNodeStartsBeforeItsManifestsAreMounted(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		dir, root := filepath.Join(t.TempDir(), "manifests"), filepath.Join(t.TempDir(), "root")
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		putManifest(t, dir, "a.yaml", podNamed("a", disk))
		n := runProcess(t, dir, root)
		kept := filepath.Join(n.row("disk", "mounted").Path, "kept")
		write(t, kept)
		n.stop()

		renamed(t, dir, dir+".unmounted")
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			n = runProcess(t, dir, root)
			n.hears("is its disk mounted?")
			n.stop()
			content(t, kept, "precious")
		}
		n = runProcess(t, dir, root)
		n.hears("is its disk mounted?")
		renamed(t, dir, dir+".empty")
		renamed(t, dir+".unmounted", dir)
		n.hears("1 volume of 1 pod")
		n.stop()
		content(t, kept, "precious")

		renamed(t, dir, dir+".unmounted")
		renamed(t, dir+".empty", dir)
		n = runProcess(t, dir, root, "--accept-manifests")
		n.row("disk", "unmounted")
		n.stop()
		if _, err := os.Stat(kept); err == nil {
			t.Error("what it was told to obey it did not")
		}
	})
}

// A node that keeps the volumes of pods back says so to all who ask.
func TestWhatIsKeptBackIsSaid(t *testing.T) {
	nstest.Parallel(t)
	nstest.RunAs(t, []nstest.Mode{nstest.Root}, func(t *testing.T) {
		t.Cleanup(http.DefaultClient.CloseIdleConnections)
		dir, root := filepath.Join(t.TempDir(), "manifests"), filepath.Join(t.TempDir(), "root")
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		putManifest(t, dir, "a.yaml", podNamed("a", disk))
		n := runProcess(t, dir, root)
		n.row("disk", "mounted")
		n.stop()

		renamed(t, dir, dir+".unmounted")
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		n = runProcess(t, dir, root)
		n.hears("is its disk mounted?")
		out, errOut := mustPodvol(t, exitFailed, "status", "-o", "wide", "--root-dir", root)
		if !strings.Contains(out, "manifest manifests") || !strings.Contains(errOut, "is its disk mounted?") || !strings.Contains(errOut, "--accept-manifests") {
			t.Errorf("status prints\n%s%s", out, errOut)
		}
		explains := func(key, want string, args ...string) {
			t.Helper()
			out, _ := mustPodvol(t, exitOK, append([]string{"explain", "a", "--root-dir", root}, args...)...)
			if !strings.Contains(out, key) || !strings.Contains(strings.Join(strings.Fields(out), " "), want) {
				t.Errorf("explain prints\n%s", out)
			}
		}
		explains("Wanted:", "Wanted: no manifest has it, and it is kept: "+dir+" is empty, or another directory")
		explains(`"kept": true`, `"keptBecause": "no manifest has it, and it is kept: `, "-o", "json")
		n.stop()

		putManifest(t, dir, "a.yaml", podNamed("a", "{name: disk, emptyDirr: {}}"))
		n = runProcess(t, dir, root, "--metrics-addr", "0", "--accept-manifests")
		_, url, _ := strings.Cut(n.hears("metrics are at "), "metrics are at ")
		url, _, _ = strings.Cut(url, "/metrics")
		n.hears("pods in no manifest are kept until every manifest has been read")
		out, _ = mustPodvol(t, exitFailed, "explain", "a", "--root-dir", root)
		if !strings.Contains(out, "no manifest has it; it is kept until every manifest can be read") || !strings.Contains(out, "Manifest:  its newer version is refused since 2") {
			t.Errorf("explain prints\n%s", out)
		}
		if page := string(get(t, url+"/")); !strings.Contains(page, "is kept, though no manifest that can be read has it") || strings.Contains(page, "is to go") {
			t.Errorf("the page is\n%s", page)
		}
		n.stop()
	})
}
