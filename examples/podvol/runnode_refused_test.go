package main

import (
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/podvol/podvol/util/testenv/nstest"
)

// withNFSOptions adds to a pod's manifest that a volume shall have options.
func withNFSOptions(manifest, volume string) string {
	return strings.Replace(manifest, "namespace: shop}", "namespace: shop, annotations: {mount-options.podvol.io/"+volume+": hard}}", 1)
}

// A pod that a plugin does not understand is a fault of its file, and nothing to
// the other pods; what it has mounted from before stays.
func TestRunNodeIsNotEndedByOnePod(t *testing.T) {
	leaks(t)
	dir, root := t.TempDir(), filepath.Join(t.TempDir(), "root")
	putManifest(t, dir, "bad.yaml", withNFSOptions(podNamed("bad", "{name: v, emptyDir: {}}"), "nosuch"))
	putManifest(t, dir, "good.yaml", podNamed("good", "{name: scratch, emptyDir: {}}"))
	n := runInProcess(t, dir, root, "--fake")
	if line := n.hears("nosuch"); !strings.Contains(line, "bad.yaml") || !strings.Contains(line, "Pod shop/bad") {
		t.Errorf("it said %q", line)
	}
	n.row("scratch", "mounted")
	n.hears("the manifests declare 1 volume of 1 pod; 1 file refused; pods in no manifest are kept")
	n.put("bad.yaml", podNamed("one", "{name: v, emptydir: {}}")+"---\n"+podNamed("two", "{name: v, emptydir: {}}"))
	if line := n.hears("Pod shop/one"); strings.Contains(line, "Pod shop/two") {
		t.Errorf("it said of both in one line: %q", line)
	}
	if line := n.hears("Pod shop/two"); strings.Contains(line, `\n`) {
		t.Errorf("it said %q", line)
	}
	n.put("bad.yaml", podNamed("bad", "{name: v, emptyDir: {}}"))
	n.row("v", "mounted")
	if code := n.stop(); code != exitOK {
		t.Errorf("exit code %d", code)
	}
}

// A refused manifest shows to all who ask the node, until it is good.
func TestARefusedManifestShows(t *testing.T) {
	nstest.Parallel(t)
	nstest.RunAs(t, []nstest.Mode{nstest.Root}, func(t *testing.T) {
		t.Cleanup(http.DefaultClient.CloseIdleConnections)
		dir, root := t.TempDir(), filepath.Join(t.TempDir(), "root")
		putManifest(t, dir, "ok.yaml", podNamed("ok", "{name: memory, emptyDir: {medium: Memory}}"))
		putManifest(t, dir, "f.yaml", podNamed("f", "{name: v, emptydir: {}}"))
		n := runProcess(t, dir, root, "--metrics-addr", "0")
		_, url, _ := strings.Cut(n.hears("metrics are at "), "metrics are at ")
		url, _, _ = strings.Cut(url, "/metrics")
		n.row("memory", "mounted")
		n.hears("1 file refused")
		out, _ := mustPodvol(t, exitFailed, "status", "-o", "json", "--root-dir", root)
		var refused int
		for _, r := range rowsOf(t, out) {
			if r.State == "refused" && r.Source == filepath.Join(dir, "f.yaml") && strings.Contains(r.Error, "Pod shop/f: ") {
				refused++
			}
		}
		if refused != 1 {
			t.Errorf("status prints %s", out)
		}
		out, errOut := mustPodvol(t, exitFailed, "status", "-o", "wide", "--root-dir", root)
		if !strings.Contains(out, "manifest f.yaml") || !strings.Contains(errOut, "  manifest f.yaml: ") {
			t.Errorf("status prints\n%s%s", out, errOut)
		}
		says := func(word, want string) {
			t.Helper()
			if _, errOut := mustPodvol(t, exitFailed, "explain", word, "--root-dir", root); !strings.Contains(errOut, want) {
				t.Errorf("explain %s: %s", word, errOut)
			}
		}
		in := filepath.Join(dir, "f.yaml") + ", which is refused: "
		says("shop/f", "pod shop/f is in "+in)
		says("f/v", "pod f is in "+in)
		says("shop/g", "no pod shop/g has volumes here")
		says("shop/g", "refused manifests may have it, see podvol status: f.yaml")
		if page := string(get(t, url+"/")); !strings.Contains(page, "Manifests that are refused") || !strings.Contains(page, "1 volume of 1 pod: all are in order") || !strings.Contains(page, "Pod shop/f: ") {
			t.Errorf("the page is\n%s", page)
		}
		if metrics := string(get(t, url+"/metrics")); !strings.Contains(metrics, "\npodvol_manifests_refused 1\n") {
			t.Errorf("the metrics have not the refused manifest")
		}
		read, write := io.Pipe()
		w := watchStatusOf(t, root, write, read)
		w.until("manifest f.yaml", "refused")
		n.put("f.yaml", podNamed("f", "{name: v, emptyDir: {medium: Memory}}"))
		n.row("v", "mounted")
		w.until("manifest f.yaml", "no longer refused")
		mustPodvol(t, exitOK, "explain", "shop/f", "--root-dir", root)
		n.put("f.yaml", "{ no YAML")
		w.until("manifest f.yaml", "refused")
		out, errOut = mustPodvol(t, exitFailed, "explain", "shop/f", "--root-dir", root)
		if !strings.Contains(out, "Manifest:  its newer version is refused since 2") || !strings.Contains(out, filepath.Join(dir, "f.yaml")+": ") || !strings.Contains(out, "the last good version of f.yaml stays in force") || errOut != "" {
			t.Errorf("explain prints\n%s%s", out, errOut)
		}
		if out, _ := mustPodvol(t, exitFailed, "explain", "shop/f", "-o", "json", "--root-dir", root); !strings.Contains(out, `"path": "`+filepath.Join(dir, "f.yaml")+`"`) {
			t.Errorf("explain prints\n%s", out)
		}
		mustPodvol(t, exitOK, "explain", "shop/ok", "--root-dir", root)
		n.put("f.yaml", podNamed("f", "{name: v, emptyDir: {medium: Memory}}"))
		w.until("manifest f.yaml", "no longer refused")
		w.stop()
		mustPodvol(t, exitOK, "status", "--root-dir", root)
		mustPodvol(t, exitOK, "explain", "shop/f", "--root-dir", root)
		if page := string(get(t, url+"/")); strings.Contains(page, "Manifests that are refused") {
			t.Errorf("the page is\n%s", page)
		}
		n.stop()
		mustPodvol(t, exitOK, "unmount", "--all", "--root-dir", root)
	})
}

// What a stopped node leaves unmounted is said beside what it leaves mounted.
func TestRunNodeSaysAtItsEndWhatIsNotMounted(t *testing.T) {
	nstest.Parallel(t)
	nstest.RunAs(t, []nstest.Mode{nstest.Root}, func(t *testing.T) {
		root := filepath.Join(t.TempDir(), "root")
		n := runProcess(t, t.TempDir(), root)
		n.put("a.yaml", podNamed("a", "{name: memory, emptyDir: {medium: Memory}}"))
		n.put("b.yaml", podNamed("b", "{name: bad, configMap: {name: missing}}"))
		n.put("c.yaml", podNamed("c", "{name: waits, persistentVolumeClaim: {claimName: none}}"))
		n.reach(map[string]string{"memory": "mounted", "bad": "failed", "waits": "pending"})
		n.stop()
		said := strings.Join(n.heard(), "\n")
		if !strings.Contains(said, "1 volume of 1 pod left mounted") || !strings.Contains(said, "2 volumes of 2 pods not mounted, for the next start to try again: shop/b bad, shop/c waits") {
			t.Errorf("it said\n%s", said)
		}
		mustPodvol(t, exitOK, "unmount", "--all", "--root-dir", root)
	})
}
