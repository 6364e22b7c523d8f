package main

import (
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/durable"
	"github.com/podvol/podvol/util/testenv/calltrace"
	"github.com/podvol/podvol/util/testenv/nstest"
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
