package main

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/podvol/podvol/util/nstest"
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

// A pod whose claim is refused, or not known to be its own, keeps what it has,
// also over a restart: it is neither replaced nor nobody's.
func TestRunNodeKeepsPodsThatItMustNotMount(t *testing.T) {
	for name, tc := range map[string]struct {
		spoil func(t *testing.T, dir, share, ledger string)
		says  string
		mend  func(t *testing.T, dir, share, ledger string)
	}{
		"claim refused": {
			spoil: func(t *testing.T, dir, share, _ string) { putManifest(t, dir, "a.yaml", podWithClaim("second", share)) },
			says:  `is recorded for shop/first`,
			mend:  func(t *testing.T, dir, share, _ string) { putManifest(t, dir, "a.yaml", podWithClaim("first", share)) },
		},
		"ledger unreadable": {
			spoil: func(t *testing.T, _, _, ledger string) {
				renamed(t, ledger, ledger+".whole")
				putFile(t, ledger, `{"schemaVersion":`)
			},
			says: "ledger of bindings",
			mend: func(t *testing.T, _, _, ledger string) { renamed(t, ledger+".whole", ledger) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			nstest.Run(t, func(t *testing.T) {
				dir, root, share := t.TempDir(), filepath.Join(t.TempDir(), "root"), t.TempDir()
				ledger := filepath.Join(root, "podvol/bindings/data.json")
				putManifest(t, dir, "a.yaml", podWithClaim("first", share))
				putManifest(t, dir, "b.yaml", podNamed("b", "{name: left, emptyDir: {}}"))
				n := runProcess(t, dir, root)
				kept := filepath.Join(n.become(map[string]string{"disk": "mounted", "data": "mounted", "left": "mounted"})["disk"].Path, "kept")
				write(t, kept)
				n.stop()

				tc.spoil(t, dir, share, ledger)
				n = runProcess(t, dir, root)
				n.hears(tc.says)
				n.hears("are kept until every pod has been declared")
				n.put("c.yaml", podNamed("c", "{name: other, emptyDir: {}}"))
				n.row("other", "mounted")
				n.stop()
				for _, r := range n.rest() {
					if r.State == "unmounted" || r.Volume == "data" {
						t.Errorf("row %+v", r)
					}
				}

				if err := os.Remove(filepath.Join(dir, "b.yaml")); err != nil {
					t.Fatal(err)
				}
				n = runProcess(t, dir, root)
				n.hears(tc.says)
				tc.mend(t, dir, share, ledger)
				n.put("c.yaml", podNamed("c", "{name: other, emptyDir: {}}, {name: more, emptyDir: {}}"))
				n.become(map[string]string{"left": "unmounted", "more": "mounted"})
				n.stop()
				for _, r := range n.rest() {
					if r.State == "unmounted" {
						t.Errorf("row %+v", r)
					}
				}
				content(t, kept, "precious")
			})
		})
	}
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
