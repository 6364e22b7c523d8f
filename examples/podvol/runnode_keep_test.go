package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/examples/podvol/internal/rows"
	"github.com/podvol/podvol/util/journal"
	"github.com/podvol/podvol/util/testenv/nstest"
)

// write is what a container has written into a volume.
func write(t *testing.T, path string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o750), os.WriteFile(path, []byte("precious"), 0o600)); err != nil {
		t.Fatal(err)
	}
}

func spoil(t *testing.T, root, part string, as func(string) string) {
	t.Helper()
	j, held, _, err := journal.Open(filepath.Join(root, "podvol/records"))
	if err != nil {
		t.Fatal(err)
	}
	spoiled := false
	for _, e := range held {
		if strings.Contains(e.Key, part) {
			spoiled = true
			err = errors.Join(err, j.Put(e.Key, []byte(as(string(e.Value)))))
		}
	}
	if err := errors.Join(err, j.Close()); err != nil || !spoiled {
		t.Fatal(err, spoiled)
	}
}

// become waits until each volume is in its state, in whatever order.
func (n *nodeTest) become(want map[string]string) map[string]rows.Row {
	n.t.Helper()
	got := make(map[string]rows.Row)
	late := time.After(patience)
	for len(got) < len(want) {
		select {
		case r, ok := <-n.rows:
			if !ok {
				n.t.Fatalf("it ended with %v", got)
			}
			if r.State == want[r.Volume] {
				got[r.Volume] = r
			} else {
				n.passed = append(n.passed, r)
			}
		case <-late:
			n.t.Fatalf("only %v in %v; it said %v", got, patience, n.heard())
		}
	}
	return got
}

// One record that cannot be read concerns its own volume: the pod is not
// replaced for it, since it would not come back.
func TestRunNodeKeepsPodsWithAnUnreadableRecord(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		dir, root := t.TempDir(), filepath.Join(t.TempDir(), "root")
		n := runProcess(t, dir, root)
		n.put("c.yaml", configMapWith("one"))
		n.put("a.yaml", podNamed("a", "{name: cfg, configMap: {name: c}}, {name: disk, emptyDir: {}}"))
		kept := filepath.Join(n.become(map[string]string{"disk": "mounted", "cfg": "mounted"})["disk"].Path, "kept")
		write(t, kept)
		n.stop()
		spoil(t, root, "/kubernetes.io~configmap/", func(v string) string { return strings.Replace(v, `"version":2`, `"version":99`, 1) })

		n = runProcess(t, dir, root)
		if r := n.become(map[string]string{"disk": "mounted", "cfg": "failed"})["cfg"]; !strings.Contains(r.Error, "cannot be read") || r.Pod != "shop/a" {
			t.Errorf("row %+v", r)
		}
		// Nor is it replaced for what its manifest says now.
		n.put("a.yaml", podNamed("a", "{name: cfg, configMap: {name: c}}, {name: more, emptyDir: {}}"))
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

// What another agent has left is adopted under the names of directories; the
// pod that comes back has the data, be its volumes' names others.
func TestRunNodeKeepsWhatWasAdopted(t *testing.T) {
	nstest.Parallel(t)
	nstest.RunAlone(t, func(t *testing.T) {
		dir, root, share := t.TempDir(), filepath.Join(t.TempDir(), "root"), t.TempDir()
		volumes := filepath.Join(root, "pods/11111111-2222-3333-4444-555555555555/volumes")
		kept, bind := filepath.Join(volumes, "kubernetes.io~empty-dir/disk/kept"), filepath.Join(volumes, "kubernetes.io~local-volume/disk")
		write(t, kept)
		if err := errors.Join(os.MkdirAll(bind, 0o750), unix.Mount(share, bind, "", unix.MS_BIND, "")); err != nil {
			t.Fatal(err)
		}
		pod := strings.Replace(podNamed("a", "{name: disk, emptyDir: {}}, {name: data, persistentVolumeClaim: {claimName: claim}}"),
			"{name: a,", "{name: a, uid: 11111111-2222-3333-4444-555555555555,", 1)
		putManifest(t, dir, "a.yaml", pod+"---\n"+`apiVersion: v1
kind: PersistentVolume
metadata: {name: disk}
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteOnce]
  storageClassName: local
  local: {path: `+share+`}
  nodeAffinity: {required: {nodeSelectorTerms: [{matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [here]}]}]}}
  claimRef: {namespace: shop, name: claim}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: claim, namespace: shop}
spec: {accessModes: [ReadWriteOnce], storageClassName: local, volumeName: disk, resources: {requests: {storage: 1Gi}}}
`)
		// Nobody has said that it may be taken over.
		n := runProcess(t, dir, root)
		n.hears("2 volumes")
		if r := n.become(map[string]string{"disk": "failed", "data": "failed"})["disk"]; !strings.Contains(r.Error, "--adopt") {
			t.Errorf("row %+v", r)
		}
		n.stop()
		content(t, kept, "precious")

		for range 2 { // adopted, and known
			n = runProcess(t, dir, root, "--adopt")
			n.become(map[string]string{"disk": "mounted", "data": "mounted"})
			n.stop()
			for _, r := range n.rest() {
				t.Errorf("row %+v", r)
			}
			content(t, kept, "precious")
			if mounts := mountsBelow(t, root); len(mounts) != 1 || mounts[0] != bind {
				t.Errorf("mounted: %v", mounts)
			}
		}
		putManifest(t, dir, "a.yaml", podNamed("b", ""))
		n = runProcess(t, dir, root)
		n.row("data", "unmounted")
		n.stop()
		assertNothingMountedBelow(t, root)
	})
}

// What podvol has not made it neither takes over nor deletes.
func TestMountLeavesOthersVolumesAlone(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		root := filepath.Join(t.TempDir(), "root")
		kept := filepath.Join(root, "pods/uid-of-a/volumes/kubernetes.io~empty-dir/disk/kept")
		write(t, kept)
		file := manifestFile(t, strings.Replace(podNamed("a", "{name: disk, emptyDir: {}}, {name: more, emptyDir: {}}"), "{name: a,", "{name: a, uid: uid-of-a,", 1))
		out, _ := mustPodvol(t, exitFailed, "mount", "-f", file, "--root-dir", root, "-o", "json")
		for _, r := range rowsOf(t, out) {
			if refused := strings.Contains(r.Error, "--adopt"); refused != (r.Volume == "disk") {
				t.Errorf("row %+v", r)
			}
		}
		mustPodvol(t, exitOK, "unmount", "-f", file, "--root-dir", root)
		content(t, kept, "precious")
	})
}
