package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/spf13/cobra"

	"github.com/podvol/podvol/util/testenv/nstest"
)

// completed returns the words that a shell would offer for the last one.
func completed(t *testing.T, args ...string) []string {
	t.Helper()
	out, _ := mustPodvol(t, exitOK, append([]string{cobra.ShellCompNoDescRequestCmd}, args...)...)
	words, directive, _ := strings.Cut(out, ":")
	if !strings.HasPrefix(directive, "4\n") { // no files
		t.Errorf("%q: %s", args, out)
	}
	return strings.Fields(words)
}

func TestCompletionOffersWhatIsRecorded(t *testing.T) {
	root := recorded(t, exampleVolumes()[0], exampleVolumes()[1], exampleClaims()[0], exampleClaims()[1])
	for _, tc := range []struct{ args, want string }{
		{"pv --root-dir " + root, "nfs211 old"},
		{"pv delete old --root-dir " + root, "nfs211"},
		{"pvc --root-dir " + root, "ops-test/nfs-211 shop/data"},
		{"pvc delete -n shop --root-dir " + root, "data ops-test/nfs-211"},
		{"pv --root-dir /nonexistent", ""},
		{"pv describe --root-dir " + root, "nfs211 old"},
		{"pvc describe -n shop --root-dir " + root, "data ops-test/nfs-211"},
		{"status --root-dir " + root + " -o", "table wide json yaml"},
		{"pvc --root-dir " + root + " -n", "ops-test shop"},
		{"pvc delete --root-dir " + root + " --namespace", "ops-test shop"},
		{"discover --mode", "block filesystem"},
		{"run-node --clean-disks", "dry-run delete"},
		{"unmount --root-dir /nonexistent --node", ""},
		{"discover --node", ""},
	} {
		if got := completed(t, append(strings.Fields(tc.args), "")...); !slices.Equal(got, strings.Fields(tc.want)) {
			t.Errorf("%s: %q, want %q", tc.args, got, tc.want)
		}
	}
}

func TestCompletionOffersMountedPods(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		root := t.TempDir() + "/root"
		mustPodvol(t, exitOK, "mount", "-f", manifestFile(t, podNamed("a", disk)), "--root-dir", root, "--node", "here")
		for given, want := range map[string]string{"shop/a/": "shop/a/disk", "a/": "a/disk", "shop/a/d": "shop/a/disk", "shop/": "shop/a", "b/": ""} {
			if got := completed(t, "explain", "--root-dir", root, given); !slices.Equal(got, strings.Fields(want)) {
				t.Errorf("%s: %q, want %q", given, got, want)
			}
		}
		if got := completed(t, "unmount", "--root-dir", root, "--node", ""); !slices.Equal(got, []string{"here"}) {
			t.Errorf("nodes: %q", got)
		}
		if got := completed(t, "unmount", "--root-dir", root, "--uid", ""); len(got) != 1 || got[0] == "shop/a" {
			t.Errorf("UIDs: %q", got)
		}
		for _, args := range [][]string{{"unmount", "--root-dir", root, "--pod", ""}, {"explain", "--root-dir", root, ""}} {
			if got := completed(t, args...); !slices.Equal(got, []string{"shop/a"}) {
				t.Errorf("%q: %q", args, got)
			}
		}
	})
}

// A node knows the pods that wait, and while it hangs the records have those that are mounted.
func TestCompletionOffersWhatTheNodeKnows(t *testing.T) {
	nstest.Parallel(t)
	nstest.RunAs(t, []nstest.Mode{nstest.Root}, func(t *testing.T) { // who alone may ask it
		dir, root := t.TempDir(), t.TempDir()
		putManifest(t, dir, "a.yaml", podNamed("a", disk))
		putManifest(t, dir, "waits.yaml", podNamed("waits", usesClaim("data", "missing")))
		putManifest(t, dir, "refused.yaml", podNamed("refused", "{name: v, emptydir: {}}"))
		n := runProcess(t, dir, root)
		n.hears(" of 2 pods")
		n.row("disk", "mounted")
		for given, want := range map[string]string{"": "shop/a shop/waits", "shop/w": "shop/waits", "waits/": "waits/data"} {
			if got := completed(t, "explain", "--root-dir", root, given); !slices.Equal(got, strings.Fields(want)) {
				t.Errorf("%q: %q, want %q", given, got, want)
			}
		}
		if got := completed(t, "unmount", "--root-dir", root, "--uid", ""); len(got) != 2 { // what is refused has none
			t.Errorf("UIDs: %q", got)
		}
		n.signal(syscall.SIGSTOP)
		got := completed(t, "explain", "--root-dir", root, "")
		n.signal(syscall.SIGCONT)
		if !slices.Equal(got, []string{"shop/a"}) {
			t.Errorf("without an answer: %q", got)
		}
		n.stop()
	})
}

func TestCompletionOffersWhatManifestsDeclare(t *testing.T) {
	file := manifestFile(t, "apiVersion: v1\nkind: Pod\nmetadata: {name: web, namespace: shop}\nspec:\n  initContainers: [{name: first, image: i}]\n  containers: [{name: main, image: i}]\n  volumes: [{name: config, configMap: {name: c}}]\n---\n"+podNamed("api", disk))
	pipe := filepath.Join(t.TempDir(), "pipe") // nobody writes to it
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for args, want := range map[string]string{
		"mount -f " + pipe + " --pod":                    "",
		"mount -f " + file + " --pod":                    "shop/api shop/web",
		"run -f " + file + " --container":                "first main",
		"run -f " + file + " --pod shop/api --container": "",
		"render -f " + file + " --pod shop/web --volume": "config",
		"render --filename " + file + " --volume":        "config disk",
		"mount -f - --pod":                               "",
		"mount -f /nonexistent --pod":                    "",
	} {
		if got := completed(t, append(strings.Fields(args), "")...); !slices.Equal(got, strings.Fields(want)) {
			t.Errorf("%s: %q, want %q", args, got, want)
		}
	}
	claim := []string{"run", "-f", "../../testdata/csi/claim.yaml", "--root-dir", t.TempDir(), "--csi-driver"}
	for given, want := range map[string]string{"": "csitest.podvol.io=\n:2\n", "csit": "csitest.podvol.io=\n:2\n", "/run/": ":2\n"} { // 2: no space, and files
		if out, _ := mustPodvol(t, exitOK, append(append([]string{cobra.ShellCompNoDescRequestCmd}, claim...), given)...); !strings.HasPrefix(out, want) {
			t.Errorf("%q: %q", given, out)
		}
	}
	dir := t.TempDir()
	manifest, err := os.ReadFile("../../testdata/csi/claim.yaml")
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "claim.yaml"), manifest, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	if out, _ := mustPodvol(t, exitOK, cobra.ShellCompNoDescRequestCmd, "run-node", "-f", dir, "--root-dir", t.TempDir(), "--csi-driver", ""); !strings.HasPrefix(out, "csitest.podvol.io=\n") {
		t.Errorf("of a directory of manifests: %q", out)
	}
	if _, errOut := mustPodvol(t, exitUsage, "completion", "bsh"); !strings.Contains(errOut, `did you mean "bash"?`) {
		t.Errorf("%s", errOut)
	}
}
