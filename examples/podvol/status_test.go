package main

import (
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/podvol/podvol/examples/podvol/internal/rows"
	"github.com/podvol/podvol/util/testenv/nstest"
)

// A node is asked while it runs, since records know no volume that has never been mounted.
func TestStatusAsksTheNode(t *testing.T) {
	nstest.Parallel(t)
	nstest.RunAs(t, []nstest.Mode{nstest.Root}, func(t *testing.T) {
		root := filepath.Join(t.TempDir(), "root")
		n := runProcess(t, t.TempDir(), root)
		n.put("a.yaml", podNamed("a", "{name: memory, emptyDir: {medium: Memory}}, {name: bad, configMap: {name: missing}}"))
		n.put("b.yaml", podNamed("b", "{name: cache, emptyDir: {}}, {name: data, persistentVolumeClaim: {claimName: data}}")+
			"---\napiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: data, namespace: shop}\nspec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}, storageClassName: fast}\n")
		n.reach(map[string]string{"bad": "failed", "memory": "mounted", "data": "pending", "cache": "pending"})
		out, _ := mustPodvol(t, exitFailed, "status", "--root-dir", root, "-o", "json")
		assertStates(t, rowsOf(t, out), "podvol run-node", "bad failed", "memory mounted", "cache pending", "data pending")
		out, errOut := mustPodvol(t, exitFailed, "status", "--root-dir", root)
		if !strings.Contains(out, "claim shop/data") || !strings.Contains(errOut, "shop/a bad: ") || !strings.HasSuffix(errOut, "\nKnown by podvol run-node, which runs.\n") {
			t.Errorf("%s%s", out, errOut)
		}
		if out, _ := mustPodvol(t, exitOK, "explain", "b/data", "--root-dir", root); !strings.Contains(out, "Waits for:  claim shop/data to be bound\n") {
			t.Errorf("%s", out)
		}
		out, _ = mustPodvol(t, exitOK, "pvc", "describe", "shop/data", "--root-dir", root)
		if !strings.Contains(out, "Warning ProvisioningFailed: ") {
			t.Errorf("it says no event:\n%s", out)
		}
		// What a node that does not answer knows beside the records may have failed.
		n.signal(syscall.SIGSTOP)
		out, _ = mustPodvol(t, exitFailed, "status", "--root-dir", root, "-o", "json")
		assertStates(t, rowsOf(t, out), "records", "memory mounted")
		n.signal(syscall.SIGCONT)
		n.stop()
		out, _ = mustPodvol(t, exitOK, "status", "--root-dir", root, "-o", "json")
		assertStates(t, rowsOf(t, out), "records", "memory mounted")
		_, errOut = mustPodvol(t, exitOK, "status", "--root-dir", root)
		if want := "Known by the records and the mount table: no podvol run-node was asked.\n"; errOut != want {
			t.Errorf("%q, want %q", errOut, want)
		}
		mustPodvol(t, exitOK, "unmount", "--all", "--root-dir", root)
	})
}

func assertStates(t *testing.T, all []rows.Row, knownBy string, want ...string) {
	t.Helper()
	var got []string
	for _, r := range all {
		got = append(got, r.Volume+" "+r.State)
		if r.KnownBy != knownBy {
			t.Errorf("%s is known by %q", r.Volume, r.KnownBy)
		}
	}
	if strings.Join(got, ", ") != strings.Join(want, ", ") {
		t.Errorf("%q, want %q", got, want)
	}
}
