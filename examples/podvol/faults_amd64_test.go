package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/util/durable"
	"github.com/podvol/podvol/util/testenv/calltrace"
	"github.com/podvol/podvol/util/testenv/invariant"
	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/volume/volumemanager"
)

// sweepVar makes the sweeps try all whose names match it, a regular expression; "."
// is everything.
const sweepVar = "PODVOL_SWEEP"

// point is a file operation of a command: the n-th of its class. Which number it
// has among all operations depends on which goroutine was quicker.
type point struct {
	class string // the call, and where below the site's directory, as pattern
	n     int
}

func (p point) String() string { return fmt.Sprintf("%s #%d", p.class, p.n) }

// fault is what a file operation of a process is answered.
type fault struct {
	at      point
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
	return fmt.Sprintf("%s %s %s", f.at, what, life)
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
	case c.Name == "fsync" || c.Name == "fdatasync" || c.Name == "syncfs":
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

	whole   bool                               // it is left to the whole sweep, as it takes long
	endless bool                               // it ends when it is told to, and its exit code says nothing
	next    func(*faultSite) [][]string        // what is run after it, instead of itself
	zero    func(*testing.T, *faultSite) error // what its exit code 0 promises, if that is not done
	failed  int                                // its exit code where podvol has failed, if that is not at most 2
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
			done:  func(t *testing.T, s *faultSite) error { return s.unmounted(t, true) }},
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
				return allGone(s.deleted...)
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
		{name: "run-node", whole: true, endless: true, prepare: func(*testing.T, *faultSite) {}, args: runningNode,
			next: func(s *faultSite) [][]string { return [][]string{mounting(s)} },
			done: func(t *testing.T, s *faultSite) error { return s.mounted(t) }},
		{name: "run-node again", whole: true, endless: true, prepare: func(t *testing.T, s *faultSite) { s.use(t) }, args: runningNode,
			next: func(s *faultSite) [][]string { return [][]string{mounting(s)} },
			done: func(t *testing.T, s *faultSite) error { return s.mounted(t) }},
		{name: "run", whole: true, failed: exitRunFailed, hurried: soon,
			prepare: func(t *testing.T, s *faultSite) {
				s.use(t)
				s.must(t, "unmount", "--all")
				s.podsGone()
			},
			args: func(s *faultSite) []string { return []string{"run", "-f", s.manifest, "--", "true"} },
			zero: func(t *testing.T, s *faultSite) error {
				return errors.Join(s.unmounted(t, false), allGone(runsOf(s.root).Dir()))
			},
			next: func(s *faultSite) [][]string { return [][]string{{"fsck", "--repair"}, mounting(s)} },
			done: func(t *testing.T, s *faultSite) error { return s.mounted(t) }},
	}
}

func runningNode(s *faultSite) []string {
	return []string{"run-node", "-f", filepath.Dir(s.manifest), "-o", "json"}
}

// TestEveryFileOperationFails lets each file operation of a command fail, as on a
// disk that is full, read-only or broken, once and from then on for ever. Then
// the command is run again without faults, and everything is unmounted.
//
// Whatever fails, what was acknowledged is kept ([invariant.Violations]); exit
// code 0 means that the command did all it was asked for; the next command does
// it; nothing is left that no command names.
//
// By itself it tries a sample, which is the same each time. With the variable
// PODVOL_SWEEP it takes all whose names match, which takes hours.
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
			if c.whole && os.Getenv(sweepVar) == "" {
				continue
			}
			t.Run(c.name, func(t *testing.T) { c.sweep(t, base) })
		}
	})
}

// sweep takes each operation with each error, the first of each class first, or a
// sample of them.
func (c faultCase) sweep(t *testing.T, base string) {
	first := c.run(t, base, fault{})
	if len(first.calls) < 10 {
		t.Fatalf("the command has only %d file operations", len(first.calls))
	}
	slices.SortStableFunc(first.calls, func(a, b faultCall) int { return a.at.n - b.at.n })
	classes, runs := 0, 0
	for _, call := range first.calls {
		if call.at.n == 1 {
			classes++
		}
		for _, f := range c.faults(call) {
			runs++
			t.Run(f.String(), func(t *testing.T) { c.faulted(t, base, f, first.left) })
		}
	}
	t.Logf("%d file operations of %d classes, %d runs with a fault", len(first.calls), classes, runs)
}

// faults are those of an operation that are tried.
func (c faultCase) faults(call faultCall) (all []fault) {
	for _, err := range faultsOf(call.Call) {
		all = append(all, fault{call.at, err, false})
		if err != 0 {
			all = append(all, fault{call.at, err, true})
		}
	}
	wanted := os.Getenv(sweepVar)
	if wanted == "" {
		return c.sample(call.at, all)
	}
	return slices.DeleteFunc(all, func(f fault) bool { return !regexp.MustCompile(wanted).MatchString(c.name + ": " + f.String()) })
}

// sampleOf is how many classes of operations there are for each one that is tried
// where no sweep is asked for.
const sampleOf = 48

// sample takes one of the faults of the first operation of some classes: which ones
// depends on their names only, so that all runs try the same.
func (c faultCase) sample(at point, all []fault) []fault {
	name := fnv.New32a()
	fmt.Fprint(name, c.name, at.class)
	sum := int(name.Sum32() >> 1)
	if at.n != 1 || sum%sampleOf != 0 {
		return nil
	}
	i := sum / sampleOf % len(all)
	return all[i : i+1]
}

func (c faultCase) faulted(t *testing.T, base string, f fault, want []string) {
	got := c.run(t, base, f)
	if t.Failed() {
		t.Logf("the call was %s\nto repeat: %s='%s' go test -run='^TestEveryFileOperationFails$'", got.failed, sweepVar, "^"+regexp.QuoteMeta(c.name+": "+f.String())+"$")
		return
	}
	if os.Getenv(sweepVar) == "" {
		return // what is left may depend on what was quicker
	}
	want = slices.Clone(want)
	for _, path := range got.left {
		// The next writer removes the first, where no other can be writing, and the
		// third, of a claim that is gone; the second is there once something had to wait.
		if base := filepath.Base(path); durable.IsTemp(base) || base == "reasons.json" || strings.HasPrefix(base, "claim~") && c.lasts {
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
	calls  []faultCall
	failed string   // the first call that did
	left   []string // below the root directory in the end
}

// faultCall is a file operation of a command.
type faultCall struct {
	calltrace.Call
	at point
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
	code, said := s.traced(t, c.hurry(s), r.at(s, f), c.endless)
	if c.going != nil {
		c.going(s)
	}
	judge := func(when string, err error) {
		if err != nil {
			t.Errorf("%s: %v\nit had said with exit code %d: %s", when, err, code, said)
		}
	}
	if strings.Contains(said, "panic:") || strings.Contains(said, "goroutine ") || code > exitUsage && code != c.failed || code < 0 {
		t.Errorf("it has crashed, or hung: exit code %d: %s", code, said)
	}
	judge("after the fault", s.kept(t))
	if c.never {
		if code == exitOK {
			t.Errorf("it did what it was to refuse: %s", said)
		}
		judge("after the fault", s.mounted(t))
	} else {
		if code == exitOK && (!c.endless || f.at.n == 0) {
			promised := c.done
			if c.zero != nil {
				promised = c.zero
			}
			judge("after exit code 0", promised(t, s))
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
	commands := [][]string{c.args(s)}
	if c.next != nil {
		commands = c.next(s)
	}
	var code int
	var said string
	for _, args := range commands {
		code, said = s.do(t, args...)
	}
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
	judge("in the end", s.unmounted(t, false))
	judge("in the end", s.kept(t))
}

// at lets operations fail, and notes them all. A point that does not come in a run is
// no failure.
func (r *faultRun) at(s *faultSite, f fault) func(calltrace.Call) calltrace.Action {
	seen := make(map[string]int)
	failing := false
	return func(c calltrace.Call) calltrace.Action {
		if c.Path != "" && !calltrace.Below(c.Path, s.dir) {
			return calltrace.Action{}
		}
		class := s.class(c)
		seen[class]++
		at := point{class, seen[class]}
		r.calls = append(r.calls, faultCall{c, at})
		fails := at == f.at
		failing = failing || fails && f.forever
		if !fails && !failing || !slices.Contains(faultsOf(c), f.err) {
			return calltrace.Action{}
		}
		if r.failed == "" {
			r.failed = c.Text
		}
		return calltrace.Action{Err: f.err, Short: f.err == 0}
	}
}

// class is a call without what differs from run to run.
func (s *faultSite) class(c calltrace.Call) string {
	paths := strings.NewReplacer(s.dir+"/", "", s.dir, ".").Replace(strings.TrimPrefix(c.Text, c.Name+" "))
	return chance.ReplaceAllString(c.Name+" "+paths, "ID")
}

// hurry is the command as it is run with faults.
func (c faultCase) hurry(s *faultSite) []string {
	args := c.args(s)
	at := slices.Index(args, "--")
	if at < 0 {
		at = len(args)
	}
	return slices.Insert(args, at, append(c.hurried, "--root-dir", s.root)...)
}

// traced runs a command as a process of its own. One that is endless is stopped once
// it has mounted all, says that something has failed, or says nothing for long.
func (s *faultSite) traced(t *testing.T, args []string, at func(calltrace.Call) calltrace.Action, endless bool) (code int, said string) {
	t.Helper()
	output, err := os.CreateTemp(t.TempDir(), "output-")
	if err != nil {
		t.Fatal(err)
	}
	defer output.Close()
	p := calltrace.Process{Args: args, Env: []string{mainVar + "=1"}, Stdout: output, Stderr: output, Limit: 10 * time.Minute, At: at}
	if endless {
		stopped := make(chan struct{})
		stop := sync.OnceFunc(func() { close(stopped) })
		late := time.AfterFunc(time.Minute, stop)
		defer late.Stop()
		p.Stop = stopped
		p.At = func(c calltrace.Call) calltrace.Action {
			if isOver(output.Name()) {
				stop()
			}
			return at(c)
		}
	}
	status, _, err := p.Run()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(output.Name())
	if err != nil {
		t.Fatal(err)
	}
	return status.ExitStatus(), fmt.Sprintf("%s\n%s", strings.Join(args, " "), text)
}

// isOver reports whether run-node has printed that five volumes are mounted, or that
// something has failed: a volume, or else by a line that names an error.
func isOver(path string) bool {
	said, err := os.ReadFile(path)
	if err != nil {
		return true
	}
	mounted := make(map[string]bool)
	for line := range bytes.Lines(said) {
		var r row
		if json.Unmarshal(line, &r) != nil {
			if bytes.Contains(line, []byte("rror")) {
				return true
			}
			continue
		}
		if r.State == string(volumemanager.StateFailed) {
			return true
		}
		mounted[r.Volume] = r.State == string(volumemanager.StateMounted)
	}
	maps.DeleteFunc(mounted, func(_ string, is bool) bool { return !is })
	return len(mounted) >= 5
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
