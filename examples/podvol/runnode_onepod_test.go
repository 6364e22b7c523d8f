package main

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/podvol/podvol/util/testenv/nstest"
)

const waitingClass = `{apiVersion: storage.k8s.io/v1, kind: StorageClass, metadata: {name: d}, provisioner: kubernetes.io/host-path, reclaimPolicy: Delete, volumeBindingMode: WaitForFirstConsumer}`

func claimManifest(name, mode string) string {
	return fmt.Sprintf(`{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: %s, namespace: shop}, spec: {storageClassName: d, accessModes: [%s], resources: {requests: {storage: 1Gi}}}}`, name, mode)
}

func usesClaim(volumeName, claim string) string {
	return fmt.Sprintf("{name: %s, persistentVolumeClaim: {claimName: %s}}", volumeName, claim)
}

// That a pod has something mounted gives it no right to a claim that is another
// pod's alone.
func TestRunNodeGivesNoMountedPodAClaimOfAnotherAlone(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		dir, root := t.TempDir(), filepath.Join(t.TempDir(), "root")
		putManifest(t, dir, "class.yaml", waitingClass)
		putManifest(t, dir, "a.yaml", claimManifest("a", "ReadWriteOncePod"))
		putManifest(t, dir, "q.yaml", podNamed("q", usesClaim("qa", "a")))
		putManifest(t, dir, "p.yaml", podNamed("p", "{name: e, emptyDir: {}}"))
		n := runProcess(t, dir, root)
		n.become(map[string]string{"qa": "mounted", "e": "mounted"})
		n.put("p.yaml", podNamed("p", "{name: e, emptyDir: {}}, "+usesClaim("pa", "a")))
		n.hears("pod shop/p keeps the volumes that it has")
		n.put("other.yaml", podNamed("other", "{name: other, emptyDir: {}}"))
		n.row("other", "mounted")
		n.remove("q.yaml")
		n.row("qa", "unmounted")
		n.row("pa", "mounted")
		n.stop()
		for _, r := range n.passed {
			if r.Volume == "pa" && r.State == "mounted" {
				t.Error("two pods had the claim mounted")
			}
		}
	})
}

// A pod that waits for what never comes keeps what it has, and nobody else's claims
// and volumes from going, over a restart as well.
func TestRunNodeLetsOthersClaimsGoWhileAPodWaits(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		dir, root := t.TempDir(), filepath.Join(t.TempDir(), "root")
		putManifest(t, dir, "class.yaml", waitingClass)
		putManifest(t, dir, "a.yaml", claimManifest("a", "ReadWriteOnce"))
		putManifest(t, dir, "q.yaml", podNamed("q", usesClaim("qa", "a")))
		putManifest(t, dir, "p.yaml", podNamed("p", "{name: e, emptyDir: {}}"))
		n := runProcess(t, dir, root)
		kept := filepath.Join(n.become(map[string]string{"qa": "mounted", "e": "mounted"})["e"].Path, "kept")
		write(t, kept)
		n.put("p.yaml", podNamed("p", "{name: e, emptyDir: {}}, "+usesClaim("pn", "never")))
		n.hears("pod shop/p keeps the volumes that it has")
		n.remove("a.yaml")
		awaitStored(t, root, "in deletion", func(s recordedClaims) bool { return s.claims["a"] != nil && s.claims["a"].DeletionTimestamp != nil })
		n.stop()
		if err := os.Remove(filepath.Join(dir, "q.yaml")); err != nil {
			t.Fatal(err)
		}
		n = runProcess(t, dir, root)
		n.row("qa", "unmounted")
		awaitStored(t, root, "gone", func(s recordedClaims) bool { return len(s.claims) == 0 && len(s.volumes) == 0 })
		n.stop()
		content(t, kept, "precious")
	})
}

// Claim b is in deletion when the agent ends, and the pod that had it is gone when
// it comes again: another one that is mounted, and wants b now, waits until it is
// made anew.
func TestRunNodeMakesAClaimAnewForAPodThatIsMounted(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		dir, root := t.TempDir(), filepath.Join(t.TempDir(), "root")
		putManifest(t, dir, "class.yaml", waitingClass)
		putManifest(t, dir, "a.yaml", claimManifest("a", "ReadWriteOnce"))
		putManifest(t, dir, "b.yaml", claimManifest("b", "ReadWriteOnce"))
		putManifest(t, dir, "p.yaml", podNamed("p", usesClaim("pa", "a")))
		putManifest(t, dir, "q.yaml", podNamed("q", usesClaim("qb", "b")))
		n := runProcess(t, dir, root)
		old := n.become(map[string]string{"pa": "mounted", "qb": "mounted"})["qb"].Path
		n.remove("b.yaml")
		awaitStored(t, root, "in deletion", func(s recordedClaims) bool { return s.claims["b"].DeletionTimestamp != nil })
		n.stop()
		if err := os.Remove(filepath.Join(dir, "q.yaml")); err != nil {
			t.Fatal(err)
		}
		putManifest(t, dir, "b.yaml", claimManifest("b", "ReadWriteOnce"))
		putManifest(t, dir, "p.yaml", podNamed("p", usesClaim("pa", "a")+", "+usesClaim("pb", "b")))
		n = runProcess(t, dir, root)
		if r := n.row("pb", "mounted"); r.Path == old {
			t.Errorf("it has the storage of the claim before: %s", r.Path)
		}
		n.stop()
	})
}
