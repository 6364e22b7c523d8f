package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/util/testenv/calltrace"
	"github.com/podvol/podvol/util/testenv/invariant"
)

// faultSite is what outlives the process that has faults.
type faultSite struct {
	dir, root, host, manifest string
	files                     map[string]string // that were acknowledged
	deleted                   []string          // by policy, if the command succeeds
}

func newFaultSite(t *testing.T, base string) *faultSite {
	t.Helper()
	dir, err := os.MkdirTemp(base, "")
	if err != nil {
		t.Fatal(err)
	}
	s := &faultSite{dir: dir, root: filepath.Join(dir, "root"), host: filepath.Join(dir, "host"), manifest: filepath.Join(dir, "manifests", "pods.yaml"), files: map[string]string{}}
	s.write(t, filepath.Join(s.host, "precious"))
	if err := os.Mkdir(filepath.Dir(s.manifest), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(s.manifest, []byte(strings.ReplaceAll(faultManifest, "HOST", s.host)), 0o600); err != nil {
		t.Fatal(err)
	}
	return s
}

const faultManifest = `
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: made}
provisioner: kubernetes.io/host-path
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: archive}
provisioner: kubernetes.io/host-path
reclaimPolicy: Retain
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: orders, namespace: shop}
spec: {storageClassName: made, accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: archive, namespace: shop}
spec: {storageClassName: archive, accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
---
apiVersion: v1
kind: Secret
metadata: {name: key, namespace: shop}
stringData: {key: secret}
---
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: shop}
spec:
  containers: [{name: c, image: i, volumeMounts: [{name: disk, mountPath: /d}, {name: orders, mountPath: /o}, {name: archive, mountPath: /a}, {name: key, mountPath: /k}, {name: host, mountPath: /h}]}]
  volumes:
  - {name: disk, emptyDir: {}}
  - {name: key, secret: {secretName: key}}
  - {name: host, hostPath: {path: HOST/made, type: DirectoryOrCreate}}
  - {name: orders, persistentVolumeClaim: {claimName: orders}}
  - {name: archive, persistentVolumeClaim: {claimName: archive}}
`

func (s *faultSite) clone() *faultSite {
	c := *s
	c.files = maps.Clone(s.files)
	return &c
}

// write writes a file that is to be kept.
func (s *faultSite) write(t *testing.T, path string) {
	t.Helper()
	text := "content of " + filepath.Base(path)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600)); err != nil {
		t.Fatal(err)
	}
	s.files[path] = text
}

// do runs a command here, without faults.
func (s *faultSite) do(t *testing.T, args ...string) (code int, said string) {
	t.Helper()
	code, out, errOut := podvol(t, "", append(args, "--root-dir", s.root)...)
	return code, fmt.Sprintf("podvol %s: exit code %d\n%s%s", strings.Join(args, " "), code, out, errOut)
}

func (s *faultSite) must(t *testing.T, args ...string) {
	t.Helper()
	if code, said := s.do(t, args...); code != exitOK {
		t.Fatal(said)
	}
}

// mounted is what a successful mount promises: each volume is there.
func (s *faultSite) mounted(t *testing.T) error {
	t.Helper()
	code, out, errOut := podvol(t, "", "status", "-o", "json", "--root-dir", s.root)
	if code != exitOK {
		return fmt.Errorf("status: exit code %d\n%s%s", code, out, errOut)
	}
	rows := rowsOf(t, out)
	if len(rows) != 5 {
		return fmt.Errorf("status has %d rows, want 5:\n%s", len(rows), out)
	}
	secret := ""
	for _, r := range rows {
		if r.State != "mounted" {
			return fmt.Errorf("%s is %s, not mounted: %s", r.Volume, r.State, r.Error)
		}
		if _, err := os.Stat(r.Path); err != nil {
			return err
		}
		if r.Volume == "key" {
			secret = filepath.Join(r.Path, "key")
		}
	}
	return invariant.CheckFiles(map[string]string{secret: "secret"})
}

// use mounts, and writes a file to each volume.
func (s *faultSite) use(t *testing.T) {
	t.Helper()
	s.must(t, "mount", "-f", s.manifest)
	out, _ := mustPodvol(t, exitOK, "status", "-o", "json", "--root-dir", s.root)
	for _, r := range rowsOf(t, out) {
		if r.Volume != "key" {
			s.write(t, filepath.Join(r.Path, "file"))
		}
	}
}

// unmounted is what a successful unmount promises: nothing is left of pods, but
// perhaps a note of what a power cut may bring back.
func (s *faultSite) unmounted(t *testing.T, noted bool) error {
	t.Helper()
	s.podsGone()
	targets, err := invariant.Mounted(s.root, kernelTable(t))
	if len(targets) > 0 {
		err = errors.Join(err, fmt.Errorf("still mounted: %v", targets))
	}
	records, recordsErr := invariant.Records(s.root)
	if noted {
		records = slices.DeleteFunc(records, func(key string) bool { return strings.HasPrefix(key, "buried/") })
	}
	if len(records) > 0 {
		err = errors.Join(err, fmt.Errorf("still recorded: %v", records))
	}
	left, podsErr := os.ReadDir(filepath.Join(s.root, "pods"))
	if len(left) > 0 {
		err = errors.Join(err, fmt.Errorf("left below pods: %v", left))
	}
	if errors.Is(podsErr, fs.ErrNotExist) {
		podsErr = nil
	}
	return errors.Join(err, recordsErr, podsErr)
}

// loseMounts unmounts behind podvol's back.
func (s *faultSite) loseMounts(t *testing.T) {
	t.Helper()
	targets, err := invariant.Mounted(s.root, kernelTable(t))
	if len(targets) == 0 {
		t.Fatal("nothing is mounted")
	}
	for _, target := range targets {
		err = errors.Join(err, unix.Unmount(target, 0))
	}
	if err != nil {
		t.Fatal(err)
	}
}

// podsGone: what an emptyDir had is not to be kept any more.
func (s *faultSite) podsGone() {
	maps.DeleteFunc(s.files, func(path, _ string) bool { return calltrace.Below(path, filepath.Join(s.root, "pods")) })
}

// claimDeleted: what the volume of a claim had that was to be deleted is not to
// be kept any more.
func (s *faultSite) claimDeleted() {
	for _, path := range s.deleted {
		delete(s.files, path)
	}
}

func kernelTable(t *testing.T) mount.Table {
	t.Helper()
	mounts := table.Kernel()
	return mounts
}

func (s *faultSite) kept(t *testing.T) error {
	t.Helper()
	if _, err := os.Lstat(s.root); errors.Is(err, fs.ErrNotExist) { // it could not be made
		return invariant.CheckFiles(s.files)
	}
	return invariant.Violations(s.root, kernelTable(t), s.files)
}

// end unmounts everything: nothing is wrong before and after.
func (s *faultSite) end(t *testing.T, judge func(string, error)) {
	t.Helper()
	for _, args := range [][]string{{"fsck"}, {"unmount", "--all"}, {"fsck"}} {
		if code, said := s.do(t, args...); code != exitOK {
			judge("in the end", errors.New(said))
		}
	}
	judge("in the end", s.unmounted(t, false))
	judge("in the end", s.kept(t))
}

// left lists what is below the root directory, without what names have by chance.
func (s *faultSite) left(t *testing.T) (paths []string) {
	t.Helper()
	for _, path := range tree(t, s.root) {
		below, _ := filepath.Rel(s.root, path)
		paths = append(paths, chance.ReplaceAllString(below, "ID"))
	}
	return paths
}

// allGone returns an error unless nothing is at any of the paths.
func allGone(paths ...string) error {
	for _, path := range paths {
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("%s is there still: %v", path, err)
		}
	}
	return nil
}

// deleteReleased deletes the volumes whose claims are gone and whose storage is
// not, as pvc delete says.
func deleteReleased(t *testing.T, s *faultSite) {
	t.Helper()
	out, _ := mustPodvol(t, exitOK, "pv", "-o", "json", "--root-dir", s.root)
	for _, pv := range volumesIn(t, out) {
		if pv.Spec.PersistentVolumeReclaimPolicy == v1.PersistentVolumeReclaimDelete {
			s.must(t, "pv", "delete", pv.Name)
		}
	}
}

func volumesIn(t *testing.T, pvs string) []v1.PersistentVolume {
	t.Helper()
	var list v1.PersistentVolumeList
	if err := json.Unmarshal([]byte(pvs), &list); err != nil {
		t.Fatal(err)
	}
	return list.Items
}

// chance is what differs in names from run to run: UIDs, checksums, and what a
// temporary file or directory is called, or a run's own.
var chance = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|[0-9a-f]{40}|[A-Z2-7]{26}|[0-9]{5,}`)

// pathsOfClaim are the files in the volume of a claim.
func pathsOfClaim(t *testing.T, pvs, claim string, files map[string]string) (paths []string) {
	t.Helper()
	for _, pv := range volumesIn(t, pvs) {
		for path := range files {
			if pv.Spec.ClaimRef != nil && pv.Spec.ClaimRef.Name == claim && calltrace.Below(path, pv.Spec.HostPath.Path) {
				paths = append(paths, path)
			}
		}
	}
	if len(paths) == 0 {
		t.Fatalf("no file is in a volume of claim %s: %s", claim, pvs)
	}
	return paths
}
