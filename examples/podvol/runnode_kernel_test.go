package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/util/testenv/nstest"
)

func TestRunNodeOnThisKernel(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		dir, root, share := t.TempDir(), filepath.Join(t.TempDir(), "root"), t.TempDir()
		n := runProcess(t, dir, root)
		n.put("config.yaml", configMapWith("one")+"---\napiVersion: v1\nkind: Secret\nmetadata: {name: s, namespace: shop}\nstringData: {password: old}\n")
		pod := podNamed("web", "{name: config, configMap: {name: c}}, {name: login, secret: {secretName: s}}, {name: disk, emptyDir: {}}, "+
			"{name: memory, emptyDir: {medium: Memory}}, {name: share, hostPath: {path: "+share+"}}")
		n.put("web.yaml", pod)
		paths := make(map[string]string)
		for len(paths) < 5 {
			r, ok := <-n.rows
			if !ok {
				t.Fatalf("it ended before all volumes were mounted: %s", n.lastWords())
			}
			if r.State == "mounted" {
				paths[r.Volume] = r.Path
			}
		}
		content(t, filepath.Join(paths["config"], "k"), "one")
		n.put("config.yaml", configMapWith("two")+"---\napiVersion: v1\nkind: Secret\nmetadata: {name: s, namespace: shop}\nstringData: {password: new}\n")
		content(t, filepath.Join(paths["config"], "k"), "two")
		content(t, filepath.Join(paths["login"], "password"), "new")
		kept := filepath.Join(paths["memory"], "kept")
		if err := os.WriteFile(kept, []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}

		second := runProcess(t, dir, root)
		if line := second.hears("is in use by"); !strings.Contains(line, "process ") {
			t.Errorf("it said %q", line)
		}
		if code := second.stop(); code != exitFailed {
			t.Errorf("exit code %d", code)
		}

		if code := n.stop(); code != exitOK {
			t.Errorf("exit code %d", code)
		}
		before := mountsBelow(t, root)
		if len(before) != 2 { // the secret's tmpfs and the memory emptyDir's
			t.Errorf("mounts after SIGTERM: %v", before)
		}

		// A file that cannot be read at the start takes nothing away.
		putManifest(t, dir, "web.yaml", "{")
		n = runProcess(t, dir, root)
		n.hears("kept until every manifest has been read")
		n.put("web.yaml", pod)
		n.row("disk", "mounted")
		n.put("other.yaml", podNamed("other", "{name: more, emptyDir: {medium: Memory}}"))
		n.row("more", "mounted")
		if code := n.stop(); code != exitOK {
			t.Errorf("exit code %d", code)
		}
		if after := mountsBelow(t, root); len(after) != 3 || !contains(after, before) {
			t.Errorf("mounts before %v, after the restart %v", before, after)
		}
		content(t, kept, "x")

		// What left while nobody looked goes with the next start.
		if err := os.Remove(filepath.Join(dir, "other.yaml")); err != nil {
			t.Fatal(err)
		}
		n = runProcess(t, dir, root, "--unmount-on-exit")
		n.row("more", "unmounted")
		if code := n.stop(); code != exitOK {
			t.Errorf("exit code %d", code)
		}
		assertNothingMountedBelow(t, root)
		if pods, err := os.ReadDir(filepath.Join(root, "pods")); err == nil && len(pods) > 0 {
			t.Errorf("left: %v", tree(t, filepath.Join(root, "pods")))
		}
		if _, err := os.Stat(share); err != nil {
			t.Errorf("the host's directory: %v", err)
		}
	})
}

func mountsBelow(t *testing.T, dir string) (targets []string) {
	t.Helper()
	mounts := table.Kernel()
	all, err := mounts.All()
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range all {
		if strings.HasPrefix(e.Target, dir+"/") {
			targets = append(targets, e.Target)
		}
	}
	return targets
}

func contains(all, part []string) bool {
	return !slices.ContainsFunc(part, func(p string) bool { return !slices.Contains(all, p) })
}
