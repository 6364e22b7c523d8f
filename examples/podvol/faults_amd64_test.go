package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/util/calltrace"
	"github.com/podvol/podvol/util/durable"
	"github.com/podvol/podvol/util/nstest"
	"github.com/podvol/podvol/volume/volumemanager/invariant"
)

// sweepVar makes the sweep go over everything.
const sweepVar = "PODVOL_SWEEP"

var (
	faultAt   = flag.Int("fault.at", 0, "only let this file operation fail")
	faultErr  = flag.String("fault.err", "", "only with this error, such as ENOSPC")
	faultLife = flag.String("fault.life", "", "only for ever, or only once")
)

// fault is what the n-th file operation of a process is answered.
type fault struct {
	n       int
	err     unix.Errno // 0: half of what is written is
	forever bool       // and all after it for which the error makes sense
}

func (f fault) String() string {
	what, life := unix.ErrnoName(f.err), "once"
	if f.err == 0 {
		what = "short"
	}
	if f.forever {
		life = "ever"
	}
	return fmt.Sprintf("operation %d %s %s", f.n, what, life)
}

// faultsOf are the errors that a disk can answer to a call.
func faultsOf(c calltrace.Call) []unix.Errno {
	switch {
	case !c.Changes || c.Path == "":
		return []unix.Errno{unix.EIO}
	case c.Name == "flock":
		return []unix.Errno{unix.ENOLCK}
	case c.Name == "unlinkat" || strings.HasPrefix(c.Name, "fch"):
		return []unix.Errno{unix.EIO, unix.EROFS}
	case c.Bytes > 1:
		return []unix.Errno{unix.EIO, unix.ENOSPC, unix.EDQUOT, 0}
	case c.Name == "fsync" || c.Name == "fdatasync":
		return []unix.Errno{unix.EIO, unix.ENOSPC, unix.EDQUOT}
	}
	return []unix.Errno{unix.EIO, unix.ENOSPC, unix.EROFS, unix.EDQUOT}
}

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
	s := &faultSite{dir: dir, root: filepath.Join(dir, "root"), host: filepath.Join(dir, "host"), manifest: filepath.Join(dir, "pods.yaml"), files: map[string]string{}}
	s.write(t, filepath.Join(s.host, "precious"))
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

// unmounted is what a successful unmount promises: nothing is left of pods.
func (s *faultSite) unmounted(t *testing.T) error {
	t.Helper()
	s.podsGone()
	targets, err := invariant.Mounted(s.root, s.table(t))
	if len(targets) > 0 {
		err = errors.Join(err, fmt.Errorf("still mounted: %v", targets))
	}
	records, recordsErr := invariant.Records(s.root)
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
	targets, err := invariant.Mounted(s.root, s.table(t))
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

func (s *faultSite) table(t *testing.T) mount.Table {
	t.Helper()
	table, err := mount.KernelTable()
	if err != nil {
		t.Fatal(err)
	}
	return table
}

func (s *faultSite) kept(t *testing.T) error {
	t.Helper()
	return invariant.Violations(s.root, s.table(t), s.files)
}

// faultCase is a command whose file operations fail.
type faultCase struct {
	name    string
	prepare func(*testing.T, *faultSite)
	args    func(*faultSite) []string
	hurried []string                           // beside args, when it has faults
	going   func(*faultSite)                   // what is not to be kept from when the command has begun
	done    func(*testing.T, *faultSite) error // what it promises
	rest    func(*testing.T, *faultSite)       // what is told to do where it has begun and cannot be run again
	cuts    bool                               // it is also run on disks whose power is cut
	lasts   bool                               // what it has done is there after a power cut too
	never   bool                               // it is to refuse, whatever fails
}

func faultCases() []faultCase {
	soon := []string{"--timeout", "2s"}
	mounting := func(s *faultSite) []string { return []string{"mount", "-f", s.manifest} }
	return []faultCase{
		{name: "mount", cuts: true, hurried: soon, prepare: func(*testing.T, *faultSite) {}, args: mounting,
			done: func(t *testing.T, s *faultSite) error { return s.mounted(t) }},
		{name: "mount again", hurried: soon, prepare: func(t *testing.T, s *faultSite) { s.use(t) }, args: mounting,
			done: func(t *testing.T, s *faultSite) error { return s.mounted(t) }},
		{name: "unmount", cuts: true, hurried: soon, prepare: func(t *testing.T, s *faultSite) { s.use(t) },
			args:  func(s *faultSite) []string { return []string{"unmount", "--all"} },
			going: (*faultSite).podsGone,
			done:  func(t *testing.T, s *faultSite) error { return s.unmounted(t) }},
		{name: "delete claims", cuts: true, hurried: soon, lasts: true,
			prepare: func(t *testing.T, s *faultSite) {
				s.use(t)
				s.must(t, "unmount", "--all")
				s.podsGone()
				out, _ := mustPodvol(t, exitOK, "pv", "-o", "json", "--root-dir", s.root)
				s.deleted = pathsOfClaim(t, out, "orders", s.files)
			},
			args:  func(s *faultSite) []string { return []string{"pvc", "delete", "shop/orders", "shop/archive"} },
			going: (*faultSite).claimDeleted,
			rest:  deleteReleased,
			done: func(t *testing.T, s *faultSite) error {
				code, out, errOut := podvol(t, "", "pvc", "-A", "-o", "name", "--root-dir", s.root)
				if code != exitOK || out != "" {
					return fmt.Errorf("claims are left: exit code %d\n%s%s", code, out, errOut)
				}
				return s.gone(s.deleted...)
			}},
		{name: "fsck", args: func(*faultSite) []string { return []string{"fsck"} },
			prepare: func(t *testing.T, s *faultSite) { s.use(t) },
			done:    func(t *testing.T, s *faultSite) error { return s.mounted(t) }},
		{name: "repair", args: func(*faultSite) []string { return []string{"fsck", "--repair"} },
			prepare: func(t *testing.T, s *faultSite) { s.use(t); s.loseMounts(t) },
			done: func(t *testing.T, s *faultSite) error {
				if code, said := s.do(t, "fsck"); code != exitOK {
					return errors.New(said)
				}
				return nil
			}},
		{name: "delete claims in use", hurried: soon, prepare: func(t *testing.T, s *faultSite) { s.use(t) }, never: true,
			args: func(s *faultSite) []string { return []string{"pvc", "delete", "shop/orders", "shop/archive"} }},
	}
}

// TestEveryFileOperationFails lets each file operation of a command fail, as on a
// disk that is full, read-only or broken, once and from then on for ever. Then
// the command is run again without faults, and everything is unmounted.
//
// Whatever fails, what was acknowledged is kept ([invariant.Violations]); exit
// code 0 means that the command did all it was asked for; the next command does
// it; nothing is left that no command names.
//
// By itself it lets only the first operation fail: which one is the hundredth
// depends on which goroutine was quicker, so a sample would be another one each
// time. With the variable PODVOL_SWEEP it takes all, which takes hours.
func TestEveryFileOperationFails(t *testing.T) {
	mode := nstest.User
	if os.Geteuid() == 0 {
		mode = nstest.Root // once is enough: what a disk answers is the same for all
	}
	nstest.RunAs(t, []nstest.Mode{mode}, func(t *testing.T) {
		base, err := filepath.EvalSymlinks(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		// Not the disk fails here, but what it answers: memory will do as a disk.
		if err := unix.Mount("faults", base, "tmpfs", 0, "size=256m,mode=755"); err != nil {
			t.Fatal(err)
		}
		for _, c := range faultCases() {
			t.Run(c.name, func(t *testing.T) { c.sweep(t, base) })
		}
	})
}

// sweep takes each operation with each error, or only the first.
func (c faultCase) sweep(t *testing.T, base string) {
	first := c.run(t, base, fault{})
	if len(first.calls) < 10 {
		t.Fatalf("the command has only %d file operations", len(first.calls))
	}
	step := len(first.calls) // the first one only
	if os.Getenv(sweepVar) != "" || *faultAt > 0 {
		step = 1
	}
	runs := 0
	for n := 1; n <= len(first.calls); n += step {
		if *faultAt > 0 && n != *faultAt {
			continue
		}
		for _, f := range c.faults(n, first.calls[n-1]) {
			runs++
			t.Run(f.String(), func(t *testing.T) { c.faulted(t, base, f, first.left) })
		}
	}
	t.Logf("%d file operations, %d runs with a fault", len(first.calls), runs)
}

// faults are those of an operation.
func (c faultCase) faults(n int, call calltrace.Call) (all []fault) {
	for _, err := range faultsOf(call) {
		all = append(all, fault{n, err, false})
		if err != 0 {
			all = append(all, fault{n, err, true})
		}
	}
	return slices.DeleteFunc(all, func(f fault) bool {
		return *faultErr != "" && !strings.Contains(f.String(), *faultErr) || *faultLife != "" && !strings.HasSuffix(f.String(), *faultLife)
	})
}

func (c faultCase) faulted(t *testing.T, base string, f fault, want []string) {
	got := c.run(t, base, f)
	if t.Failed() {
		t.Logf("the call was %s\nto repeat: go test -run='^TestEveryFileOperationFails$/^root$/^%s$' -fault.at=%d -fault.err=%s -fault.life=%s", got.failed, c.name, f.n, unix.ErrnoName(f.err), f.String()[strings.LastIndex(f.String(), " ")+1:])
		return
	}
	if os.Getenv(sweepVar) == "" && *faultAt == 0 {
		return // what is left may depend on what was quicker
	}
	want = slices.Clone(want)
	for _, path := range got.left {
		// The next writer removes the first, where no other can be writing; the second
		// is there once something had to wait.
		if base := filepath.Base(path); durable.IsTemp(base) || base == "reasons.json" {
			continue
		}
		i := slices.Index(want, path)
		if i < 0 {
			t.Errorf("%s is left for ever; the call was %s", path, got.failed)
			continue
		}
		want = slices.Delete(want, i, i+1)
	}
}

// faultRun is what one run of a command came to.
type faultRun struct {
	calls  []calltrace.Call
	failed string   // the first call that did
	left   []string // below the root directory in the end
}

func (c faultCase) run(t *testing.T, base string, f fault) (r faultRun) {
	t.Helper()
	s := newFaultSite(t, base)
	defer func() {
		if !t.Failed() {
			if err := os.RemoveAll(s.dir); err != nil {
				t.Error(err)
			}
		}
	}()
	c.prepare(t, s)
	code, said := s.traced(t, append(c.args(s), c.hurried...), r.at(s, f))
	if c.going != nil {
		c.going(s)
	}
	judge := func(when string, err error) {
		if err != nil {
			t.Errorf("%s: %v\nit had said with exit code %d: %s", when, err, code, said)
		}
	}
	if strings.Contains(said, "panic:") || strings.Contains(said, "goroutine ") || code > exitUsage || code < 0 {
		t.Errorf("it has crashed, or hung: exit code %d: %s", code, said)
	}
	judge("after the fault", s.kept(t))
	if c.never {
		if code == exitOK {
			t.Errorf("it did what it was to refuse: %s", said)
		}
		judge("after the fault", s.mounted(t))
	} else {
		if code == exitOK {
			judge("after exit code 0", c.done(t, s))
		}
		judge("run again without faults", c.again(t, s))
	}
	judge("run again without faults", s.kept(t))
	s.end(t, judge)
	r.left = s.left(t)
	return r
}

// again runs the command again, which then does what it promises.
func (c faultCase) again(t *testing.T, s *faultSite) error {
	t.Helper()
	code, said := s.do(t, c.args(s)...)
	if code != exitOK && c.rest != nil {
		c.rest(t, s)
	}
	err := c.done(t, s)
	if code != exitOK && err != nil {
		err = errors.Join(errors.New(said), err)
	}
	return err
}

// end unmounts everything: nothing is wrong before and after.
func (s *faultSite) end(t *testing.T, judge func(string, error)) {
	t.Helper()
	for _, args := range [][]string{{"fsck"}, {"unmount", "--all"}, {"fsck"}} {
		if code, said := s.do(t, args...); code != exitOK {
			judge("in the end", errors.New(said))
		}
	}
	judge("in the end", s.unmounted(t))
	judge("in the end", s.kept(t))
}

// at lets operations fail, and notes them all.
func (r *faultRun) at(s *faultSite, f fault) func(calltrace.Call) calltrace.Action {
	return func(c calltrace.Call) calltrace.Action {
		if c.Path != "" && !calltrace.Below(c.Path, s.dir) {
			return calltrace.Action{}
		}
		r.calls = append(r.calls, c)
		n := len(r.calls)
		if n != f.n && !(f.forever && n > f.n && f.n > 0) || !slices.Contains(faultsOf(c), f.err) {
			return calltrace.Action{}
		}
		if r.failed == "" {
			r.failed = c.Text
		}
		return calltrace.Action{Err: f.err, Short: f.err == 0}
	}
}

// traced runs a command as a process of its own.
func (s *faultSite) traced(t *testing.T, args []string, at func(calltrace.Call) calltrace.Action) (code int, said string) {
	t.Helper()
	output, err := os.CreateTemp(t.TempDir(), "output-")
	if err != nil {
		t.Fatal(err)
	}
	defer output.Close()
	status, _, err := calltrace.Process{
		Args: append(args, "--root-dir", s.root), Env: []string{mainVar + "=1"}, Stdout: output, Stderr: output, Limit: 10 * time.Minute, At: at,
	}.Run()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(output.Name())
	if err != nil {
		t.Fatal(err)
	}
	return status.ExitStatus(), fmt.Sprintf("%s\n%s", strings.Join(args, " "), text)
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

func (s *faultSite) gone(paths ...string) error {
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

// chance is what differs in names from run to run.
var chance = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|[0-9a-f]{40}`)

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
