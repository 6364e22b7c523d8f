package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/volume/nodeagent/manifestdir"
	"github.com/podvol/podvol/volume/objects/persisted"
	"github.com/podvol/podvol/volume/standalone"
)

// testdataFile returns a manifest of testdata, with some words replaced.
func testdataFile(t *testing.T, name string, oldnew ...string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../../testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return strings.NewReplacer(oldnew...).Replace(string(text))
}

// documents returns the documents of a manifest that are of one of the kinds.
func documents(manifest string, kinds ...string) string {
	var found []string
	for doc := range strings.SplitSeq(manifest, "\n---\n") {
		for _, kind := range kinds {
			if strings.Contains(doc+"\n", "\nkind: "+kind+"\n") {
				found = append(found, doc)
			}
		}
	}
	return strings.Join(found, "\n---\n")
}

// recordedClaims is what is kept of claims and volumes.
type recordedClaims struct {
	claims  map[string]*v1.PersistentVolumeClaim // by name
	volumes map[string]*v1.PersistentVolume
}

// awaitStored waits until what is kept below a root directory is as it should be.
func awaitStored(t *testing.T, root, what string, is func(recordedClaims) bool) recordedClaims {
	t.Helper()
	w, err := manifestdir.NewWatch(standalone.ClaimsDir(root))
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	late := time.After(patience)
	for {
		now := recordedClaims{make(map[string]*v1.PersistentVolumeClaim), make(map[string]*v1.PersistentVolume)}
		claims, volumes, err := persisted.Read(standalone.ClaimsDir(root))
		for _, claim := range claims {
			now.claims[claim.Name] = claim
		}
		for _, pv := range volumes {
			now.volumes[pv.Name] = pv
		}
		if err == nil && is(now) {
			return now
		}
		select {
		case <-w.Changed():
		case <-late:
			t.Fatalf("not %s in %v: %v; claims %v, volumes %v", what, patience, err, now.claims, now.volumes)
		}
	}
}

// awaitGone waits until nothing has a path.
func awaitGone(t *testing.T, path string) {
	t.Helper()
	w, err := manifestdir.NewWatch(filepath.Dir(path))
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	late := time.After(patience)
	for {
		if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
			return
		}
		select {
		case <-w.Changed():
		case <-late:
			t.Fatalf("%s is still there", path)
		}
	}
}

// Two pods of a ReplicationController share a claim, which is bound before they
// mount it, and stays bound as long as one of them has it.
func TestRunNodeMountsAStaticVolume(t *testing.T) {
	leaks(t)
	n := runInProcess(t, t.TempDir(), filepath.Join(t.TempDir(), "root"), "--fake")
	web := testdataFile(t, "nfs-web.yaml")
	n.put("claim.yaml", documents(web, "PersistentVolumeClaim"))
	n.put("pods.yaml", documents(web, "ReplicationController"))
	if r := n.row("nfs", "pending"); !strings.Contains(r.Error, "there is no PersistentVolume") {
		t.Errorf("row %+v", r)
	}
	n.put("volume.yaml", documents(web, "PersistentVolume"))
	for range 2 {
		if r := n.row("nfs", "mounted"); r.Source != "10.244.1.4:/" || !strings.HasPrefix(r.Pod, "default/nfs-web-") {
			t.Errorf("row %+v", r)
		}
	}
	n.put("pods.yaml", strings.Replace(documents(web, "ReplicationController"), "replicas: 2", "replicas: 1", 1))
	if r := n.row("nfs", "unmounted"); r.Pod != "default/nfs-web-1" {
		t.Errorf("row %+v", r)
	}
	n.stop()
	for _, r := range n.rest() {
		if r.State != "pending" {
			t.Errorf("row %+v", r)
		}
	}
}

// A claim whose class waits for its pod gets a disk of this node, and a pod whose
// claim fits on another node only is refused here.
func TestRunNodePlacesPodsOfLocalVolumes(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		dir, root, disk := t.TempDir(), filepath.Join(t.TempDir(), "root"), t.TempDir()
		text := testdataFile(t, "claims/local.yaml", "node1]", "here]", "/mnt/disks/ssd1", disk)
		write(t, filepath.Join(disk, "kept"))
		n := runProcess(t, dir, root)
		n.put("a-storage.yaml", documents(text, "StorageClass", "PersistentVolume", "PersistentVolumeClaim"))
		now := awaitStored(t, root, "applied", func(s recordedClaims) bool {
			return s.claims["far"] != nil && s.claims["far"].Status.Phase != "" && s.claims["near"] != nil
		})
		if name := now.claims["near"].Spec.VolumeName; name != "" {
			t.Errorf("bound to %s before a pod wants it", name)
		}
		n.put("pods.yaml", documents(text, "Pod"))
		rows := n.become(map[string]string{"near": "mounted", "far": "pending"})
		if !strings.Contains(rows["far"].Error, "disk-node2") || rows["near"].Source != disk {
			t.Errorf("rows %+v", rows)
		}
		content(t, filepath.Join(rows["near"].Path, "kept"), "precious")
		now = awaitStored(t, root, "bound", func(s recordedClaims) bool { return s.claims["near"].Status.Phase == v1.ClaimBound })
		if now.claims["near"].Spec.VolumeName != "disk-node1" || now.claims["far"].Spec.VolumeName != "" || now.volumes["disk-node2"].Spec.ClaimRef != nil {
			t.Errorf("claims %v", now.claims)
		}
		// Here comes one that fits.
		second := t.TempDir()
		n.put("b-storage.yaml", strings.NewReplacer("disk-node2", "disk-here", "node2]", "here]", disk, second).Replace(
			strings.Split(documents(text, "PersistentVolume"), "\n---\n")[1]))
		if r := n.row("far", "mounted"); r.Source != second {
			t.Errorf("row %+v", r)
		}
		// A volume that is a claim's stays, whatever its manifest does.
		n.remove("b-storage.yaml")
		n.put("c.yaml", podNamed("c", "{name: other, emptyDir: {}}"))
		n.row("other", "mounted")
		n.stop()
		if now := awaitStored(t, root, "kept", func(recordedClaims) bool { return true }); now.volumes["disk-here"] == nil || now.volumes["disk-here"].DeletionTimestamp != nil {
			t.Errorf("volumes %v", now.volumes)
		}
		for _, r := range n.rest() {
			if r.State == "unmounted" || r.State == "failed" {
				t.Errorf("row %+v", r)
			}
		}
	})
}

// What a claim gets made goes with it by its volume's policy, but not while a pod
// has it mounted; who claims it again never sees what was there.
func TestRunNodeMakesAndReclaimsVolumes(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		dir, root := t.TempDir(), filepath.Join(t.TempDir(), "root")
		text := testdataFile(t, "claims/dynamic.yaml")
		claims, pod := documents(text, "PersistentVolumeClaim"), documents(text, "Pod")
		putManifest(t, dir, "classes.yaml", documents(text, "StorageClass"))
		n := runProcess(t, dir, root)
		n.put("claims.yaml", claims)
		n.put("pod.yaml", pod)
		first := n.become(map[string]string{"cache": "mounted", "archive": "mounted"})
		cache, archive := filepath.Join(first["cache"].Path, "file"), filepath.Join(first["archive"].Path, "file")
		write(t, cache)
		write(t, archive)
		if !strings.HasPrefix(cache, filepath.Join(root, "podvol/volumes")+"/") {
			t.Errorf("made at %s", cache)
		}

		// A file by another name has the same claims.
		renamed(t, filepath.Join(dir, "claims.yaml"), filepath.Join(dir, "renamed.yaml"))
		n.put("passing.yaml", podNamed("passing", "{name: passing, emptyDir: {}}"))
		n.row("passing", "mounted")
		n.remove("passing.yaml")
		n.row("passing", "unmounted") // by now the old name counts as removed
		before := awaitStored(t, root, "kept", func(s recordedClaims) bool { return len(s.claims) == 2 })
		for name, claim := range before.claims {
			if claim.DeletionTimestamp != nil || claim.Status.Phase != v1.ClaimBound {
				t.Errorf("claim %s of the renamed file: %v", name, claim)
			}
		}

		// In use they wait, over a restart as well.
		n.remove("renamed.yaml")
		awaitStored(t, root, "in deletion", func(s recordedClaims) bool {
			return len(s.claims) == 2 && s.claims["cache"].DeletionTimestamp != nil && s.claims["archive"].DeletionTimestamp != nil
		})
		n.stop()
		n = runProcess(t, dir, root)
		n.become(map[string]string{"cache": "mounted", "archive": "mounted"})
		n.put("other.yaml", podNamed("other", "{name: other, emptyDir: {}}"))
		n.row("other", "mounted")
		content(t, cache, "precious")
		awaitStored(t, root, "in deletion still", func(s recordedClaims) bool { return len(s.claims) == 2 })

		n.remove("pod.yaml")
		awaitGone(t, filepath.Dir(cache))
		awaitStored(t, root, "reclaimed", func(s recordedClaims) bool {
			for _, pv := range s.volumes {
				if pv.Spec.HostPath.Path != filepath.Dir(archive) || pv.Status.Phase != v1.VolumeReleased {
					return false
				}
			}
			return len(s.claims) == 0 && len(s.volumes) == 1
		})
		content(t, archive, "precious")

		n.put("claims.yaml", claims)
		n.put("pod.yaml", pod)
		second := n.become(map[string]string{"cache": "mounted", "archive": "mounted"})
		for name, r := range second {
			if files, err := os.ReadDir(r.Path); err != nil || len(files) > 0 || r.Path == first[name].Path {
				t.Errorf("%s is at %s with %v, %v", name, r.Path, files, err)
			}
		}
		content(t, archive, "precious")
		n.stop()
	})
}

// A StatefulSet's claims go and stay as its policy says.
func TestRunNodeKeepsClaimsOfStatefulSets(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		dir, root := t.TempDir(), filepath.Join(t.TempDir(), "root")
		text := testdataFile(t, "claims/statefulset.yaml")
		putManifest(t, dir, "class.yaml", documents(text, "StorageClass"))
		n := runProcess(t, dir, root)
		n.put("db.yaml", documents(text, "StatefulSet"))
		files := make(map[string]string)
		for range 2 {
			r := n.row("data", "mounted")
			files[r.Pod] = filepath.Join(r.Path, "file")
			write(t, files[r.Pod])
		}
		n.put("db.yaml", strings.Replace(documents(text, "StatefulSet"), "replicas: 2", "replicas: 1", 1))
		awaitGone(t, filepath.Dir(files["lab/db-1"]))
		n.row("data", "unmounted")
		n.remove("db.yaml")
		if r := n.row("data", "unmounted"); r.Pod != "lab/db-0" {
			t.Errorf("row %+v", r)
		}
		now := awaitStored(t, root, "scaled", func(s recordedClaims) bool { return s.claims["data-db-1"] == nil })
		if claim := now.claims["data-db-0"]; claim == nil || claim.DeletionTimestamp != nil {
			t.Errorf("claims %v", now.claims)
		}
		n.put("db.yaml", documents(text, "StatefulSet"))
		for range 2 {
			if r := n.row("data", "mounted"); r.Pod == "lab/db-0" {
				content(t, filepath.Join(r.Path, "file"), "precious")
			} else if left, err := os.ReadDir(r.Path); err != nil || len(left) > 0 {
				t.Errorf("%s has %v, %v", r.Pod, left, err)
			}
		}
		n.stop()
	})
}

// A rehearsal makes volumes nowhere but in its own place.
func TestRunNodeRehearsesMakingVolumes(t *testing.T) {
	leaks(t)
	base := t.TempDir()
	n := runInProcess(t, t.TempDir(), filepath.Join(t.TempDir(), "root"), "--fake", "--volume-dir", base)
	text := testdataFile(t, "claims/dynamic.yaml")
	n.put("all.yaml", text)
	for name, r := range n.become(map[string]string{"cache": "mounted", "archive": "mounted"}) {
		if !strings.HasPrefix(r.Path, filepath.Join(n.root, "podvol/volumes/pvc-")) {
			t.Errorf("%s would be at %s", name, r.Path)
		}
	}
	n.put("all.yaml", documents(text, "StorageClass")+"\n---\n"+podNamed("other", ""))
	n.row("cache", "unmounted")
	n.stop()
	if made := tree(t, base); len(made) != 1 {
		t.Errorf("made %q", made)
	}
}

// What is in no manifest when the directory is looked at first may be on its way,
// or on a disk that is not mounted: that is no reason to delete data, whatever
// else is in the directory. Nor is it where it went while nobody looked.
func TestRunNodeDeletesNoClaimsThatItHasNotSeenGo(t *testing.T) {
	for name, stray := range map[string]string{"empty": "", "another file": podNamed("stray", "")} {
		t.Run(name, func(t *testing.T) {
			nstest.Run(t, func(t *testing.T) {
				dir, root, base := t.TempDir(), filepath.Join(t.TempDir(), "root"), t.TempDir()
				text := testdataFile(t, "claims/dynamic.yaml")
				putManifest(t, dir, "all.yaml", text)
				n := runProcess(t, dir, root, "--volume-dir", base)
				cache := n.become(map[string]string{"cache": "mounted", "archive": "mounted"})["cache"].Path
				if filepath.Dir(cache) != base {
					t.Errorf("made at %s", cache)
				}
				write(t, filepath.Join(cache, "file"))
				n.stop()

				aside := filepath.Join(t.TempDir(), "all.yaml")
				renamed(t, filepath.Join(dir, "all.yaml"), aside)
				if stray != "" {
					putManifest(t, dir, "stray.yaml", stray)
				}
				for range 2 { // nor to unmount anything, however often it is started
					n = runProcess(t, dir, root, "--volume-dir", base)
					n.hears("is its disk mounted?")
					n.stop()
					if rows := n.rest(); len(rows) > 0 {
						t.Errorf("rows %+v", rows)
					}
				}
				n = runProcess(t, dir, root, "--volume-dir", base, "--accept-manifests")
				n.hears("cache is in no manifest, and kept")
				n.row("cache", "unmounted")
				n.stop()
				for name, claim := range awaitStored(t, root, "kept", func(s recordedClaims) bool { return len(s.claims) == 2 }).claims {
					if claim.DeletionTimestamp != nil {
						t.Errorf("claim %s is being deleted", name)
					}
				}
				content(t, filepath.Join(cache, "file"), "precious")

				// Who is seen to remove the file means it.
				renamed(t, aside, filepath.Join(dir, "all.yaml"))
				n = runProcess(t, dir, root, "--volume-dir", base)
				if r := n.row("cache", "mounted"); r.Path != cache {
					t.Errorf("row %+v", r)
				}
				n.remove("all.yaml")
				awaitGone(t, cache)
				n.stop()
			})
		})
	}
}

// The directory is swapped for a copy that takes its time: what is not in it yet
// is neither a pod nor a claim that went.
func TestRunNodeDeletesNoClaimsForAnotherDirectoryOfTheName(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		dir, root := filepath.Join(t.TempDir(), "manifests"), filepath.Join(t.TempDir(), "root")
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		text := testdataFile(t, "claims/dynamic.yaml")
		class, rest := documents(text, "StorageClass"), documents(text, "PersistentVolumeClaim", "Pod")
		putManifest(t, dir, "class.yaml", class)
		putManifest(t, dir, "rest.yaml", rest)
		n := runProcess(t, dir, root)
		cache := n.become(map[string]string{"cache": "mounted", "archive": "mounted"})["cache"].Path
		write(t, filepath.Join(cache, "file"))
		renamed(t, dir, dir+".old")
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		putManifest(t, dir, "class.yaml", class)
		n.hears("lacks objects of rest.yaml: is its disk mounted?")
		putManifest(t, dir, "rest.yaml", rest)
		n.hears("the manifests declare 2 volumes of 1 pod")
		content(t, filepath.Join(cache, "file"), "precious")
		n.remove("rest.yaml")
		n.row("cache", "unmounted")
		awaitGone(t, cache)
		n.stop()
	})
}
