package main

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/volume/standalone"
)

// podWithClaim is pod shop/a with an emptyDir and the volume of a claim, which
// the manifest shows bound.
func podWithClaim(claim, share string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: PersistentVolume
metadata: {name: data}
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteOnce]
  hostPath: {path: %[2]s}
  claimRef: {namespace: shop, name: %[1]s, uid: uid-%[1]s}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: %[1]s, namespace: shop, uid: uid-%[1]s}
spec: {accessModes: [ReadWriteOnce], storageClassName: "", volumeName: data, resources: {requests: {storage: 1Gi}}}
status: {phase: Bound}
---
`, claim, share) + podNamed("a", "{name: disk, emptyDir: {}}, {name: data, persistentVolumeClaim: {claimName: "+claim+"}}")
}

// A pod whose claim cannot be its own keeps what it has, also over a restart: it
// is neither replaced nor nobody's, and what it has is no released volume.
func TestRunNodeKeepsPodsThatItMustNotMount(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		dir, root, share := t.TempDir(), filepath.Join(t.TempDir(), "root"), t.TempDir()
		putManifest(t, dir, "a.yaml", podWithClaim("first", share))
		putManifest(t, dir, "b.yaml", podNamed("b", "{name: left, emptyDir: {}}"))
		n := runProcess(t, dir, root)
		kept := filepath.Join(n.become(map[string]string{"disk": "mounted", "data": "mounted", "left": "mounted"})["disk"].Path, "kept")
		write(t, kept)

		refused := func() {
			n.hears("PersistentVolume data: spec.claimRef cannot become")
			n.hears("pod shop/a keeps the volumes that it has")
			n.put("c.yaml", podNamed("c", "{name: other, emptyDir: {}}"))
			n.row("other", "mounted")
			n.stop()
			for _, r := range n.rest() {
				if r.State == "unmounted" || r.Volume == "data" {
					t.Errorf("row %+v", r)
				}
			}
		}
		n.put("a.yaml", podWithClaim("second", share))
		refused()
		n = runProcess(t, dir, root)
		refused()

		if err := os.Remove(filepath.Join(dir, "b.yaml")); err != nil {
			t.Fatal(err)
		}
		n = runProcess(t, dir, root)
		n.row("left", "unmounted") // which waits for nobody
		n.put("a.yaml", podWithClaim("first", share))
		n.put("c.yaml", podNamed("c", "{name: other, emptyDir: {}}, {name: more, emptyDir: {}}"))
		n.row("more", "mounted")
		n.stop()
		for _, r := range n.rest() {
			if r.State == "unmounted" {
				t.Errorf("row %+v", r)
			}
		}
		content(t, kept, "precious")
	})
}

// What is kept of claims and cannot be read might show data to others: nothing that
// has to do with claims is changed then.
func TestRunNodeLeavesClaimsThatItCannotRead(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		dir, root := t.TempDir(), filepath.Join(t.TempDir(), "root")
		putManifest(t, dir, "a.yaml", podWithClaim("first", t.TempDir()))
		n := runProcess(t, dir, root)
		kept := filepath.Join(n.become(map[string]string{"disk": "mounted", "data": "mounted"})["disk"].Path, "kept")
		write(t, kept)
		n.stop()
		files, err := filepath.Glob(filepath.Join(standalone.ClaimsDir(root), "*.json"))
		if err != nil || len(files) == 0 {
			t.Fatal(files, err)
		}
		renamed(t, files[0], files[0]+".whole")
		putFile(t, files[0], `{"schemaVersion":`)
		n = runProcess(t, dir, root)
		n.hears(filepath.Base(files[0]))
		n.stop()
		content(t, kept, "precious")
		renamed(t, files[0]+".whole", files[0])
		n = runProcess(t, dir, root)
		n.hears(" of 1 pod")
		n.stop()
		content(t, kept, "precious")
	})
}

func renamed(t *testing.T, from, to string) {
	t.Helper()
	if err := os.Rename(from, to); err != nil {
		t.Fatal(err)
	}
}

func putFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
