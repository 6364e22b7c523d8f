package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/volume/standalone"
)

// A record that cannot be understood, or the loss of all records, stops what needs claims,
// and nothing else.
func TestRunNodeServesPodsWithoutClaimsBesideADamagedRecord(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		dir, root, base := t.TempDir(), filepath.Join(t.TempDir(), "root"), t.TempDir()
		putManifest(t, dir, "claims.yaml", testdataFile(t, "claims/dynamic.yaml"))
		n := runProcess(t, dir, root, "--volume-dir", base)
		cache := n.become(map[string]string{"cache": "mounted", "archive": "mounted"})["cache"].Path
		write(t, filepath.Join(cache, "file"))
		n.stop()
		record := filepath.Join(standalone.ClaimsDir(root), "claim~lab~cache.json")
		sound, err := os.ReadFile(record)
		must(t, err)
		must(t, os.WriteFile(record, sound[:len(sound)/2], 0o600))

		putManifest(t, dir, "plain.yaml", podNamed("plain", "{name: scratch, emptyDir: {}}"))
		putManifest(t, dir, "more.yaml", podNamed("more", "{name: wants, persistentVolumeClaim: {claimName: absent}}"))
		n = servesWithoutClaims(t, dir, root, base, record+" cannot be understood")
		n.remove("claims.yaml") // its pod goes, and no claim with it
		n.row("cache", "unmounted")
		n.stop()
		content(t, filepath.Join(cache, "file"), "precious")
		must(t, os.WriteFile(record, sound, 0o600))

		saved := filepath.Join(t.TempDir(), "saved")
		must(t, os.Rename(standalone.ClaimsDir(root), saved))
		servesWithoutClaims(t, dir, root, base, "the records of all claims are lost").stop()
		must(t, os.Rename(saved, standalone.ClaimsDir(root)))

		putManifest(t, dir, "claims.yaml", testdataFile(t, "claims/dynamic.yaml"))
		n = runProcess(t, dir, root, "--volume-dir", base)
		if r := n.row("cache", "mounted"); r.Path != cache {
			t.Errorf("row %+v", r)
		}
		content(t, filepath.Join(cache, "file"), "precious")
		n.stop()
	})
}

// servesWithoutClaims starts run-node, and returns it once it has said why it does not serve
// claims, has mounted the volume scratch, and has said why wants is not mounted.
func servesWithoutClaims(t *testing.T, dir, root, base, why string) *nodeTest {
	t.Helper()
	n := runProcess(t, dir, root, "--volume-dir", base)
	n.hears("claims are not served: " + why)
	if r := n.become(map[string]string{"scratch": "mounted", "wants": "pending"})["wants"]; r.Error == "" {
		t.Errorf("row %+v", r)
	}
	return n
}

// While the node's records are damaged, pods are served, and no claim goes with
// its manifest: who has it mounted is not known.
func TestRunNodeDeletesNothingBesideDamage(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		dir, root, base := t.TempDir(), filepath.Join(t.TempDir(), "root"), t.TempDir()
		putManifest(t, dir, "claims.yaml", testdataFile(t, "claims/dynamic.yaml"))
		n := runProcess(t, dir, root, "--volume-dir", base)
		cache := n.become(map[string]string{"cache": "mounted", "archive": "mounted"})["cache"].Path
		write(t, filepath.Join(cache, "file"))
		n.stop()
		must(t, os.Truncate(filepath.Join(root, "podvol", "records"), 0))

		putManifest(t, dir, "plain.yaml", podNamed("plain", "{name: scratch, emptyDir: {}}"))
		n = runProcess(t, dir, root, "--volume-dir", base)
		n.become(map[string]string{"scratch": "mounted"})
		n.remove("claims.yaml")
		n.hears("not deleted: ")
		n.stop()
		content(t, filepath.Join(cache, "file"), "precious")
	})
}
