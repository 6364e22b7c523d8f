package projectquota_test

import (
	"bufio"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/projectquota"
	"github.com/podvol/podvol/util/testenv/fakequota"
	"github.com/podvol/podvol/util/testenv/testtool"
)

const first = 1 << 30

// disk is a file system with two agents' records on it.
type disk struct {
	t     *testing.T
	fs    *fakequota.FileSystem
	ours  projectquota.Projects
	other projectquota.Projects
}

func newDisk(t *testing.T) *disk { return diskAt(t, t.TempDir()) }

func diskAt(t *testing.T, root string) *disk {
	files := &fakequota.FileSystem{Root: filepath.Join(root, "disk"), State: filepath.Join(root, "state")}
	return &disk{t: t, fs: files,
		ours:  projectquota.Projects{Records: filepath.Join(root, "disk/plugins/projects"), Kernel: files},
		other: projectquota.Projects{Records: filepath.Join(root, "disk/other/projects"), Kernel: files}}
}

func (d *disk) mkdir(name string) string {
	d.t.Helper()
	return testtool.MkdirAll(d.t, d.fs.Root, name)
}

func (d *disk) limit(p projectquota.Projects, dir string, bytes int64) {
	d.t.Helper()
	testtool.Must(d.t, p.Limit(dir, bytes))
}

func (d *disk) has(dir string) projectquota.Project {
	d.t.Helper()
	f, err := os.Open(dir)
	testtool.Must(d.t, err)
	defer f.Close()
	has, err := d.fs.Project(f)
	testtool.Must(d.t, err)
	return has
}

// project is the one that a directory hands on.
func (d *disk) project(dir string) uint32 {
	d.t.Helper()
	has := d.has(dir)
	if !has.Inherits && has.ID != 0 {
		d.t.Errorf("%s does not hand project %d on", dir, has.ID)
	}
	return has.ID
}

func (d *disk) remove(p projectquota.Projects, dir string) {
	d.t.Helper()
	testtool.Must(d.t, errors.Join(p.Lift(dir), os.RemoveAll(dir), p.Forget(dir)))
}

func (d *disk) limits() map[uint32]int64 {
	d.t.Helper()
	limits, err := d.fs.Limits()
	testtool.Must(d.t, err)
	return limits
}

func (d *disk) wantLimits(want map[uint32]int64) {
	d.t.Helper()
	if got := d.limits(); !maps.Equal(got, want) {
		d.t.Errorf("limits are %v, want %v", got, want)
	}
}

func (d *disk) records(p projectquota.Projects) (ids []string) {
	d.t.Helper()
	entries, err := os.ReadDir(p.Records)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		d.t.Fatal(err)
	}
	for _, e := range entries {
		ids = append(ids, e.Name())
	}
	return ids
}

func (d *disk) wantUnenforced(err, reason error) {
	d.t.Helper()
	if _, ok := errors.AsType[*projectquota.UnenforcedError](err); !ok || !errors.Is(err, reason) {
		d.t.Errorf("error %v, want %v", err, reason)
	}
}

func TestLife(t *testing.T) {
	d := newDisk(t)
	a, b := d.mkdir("a"), d.mkdir("b")
	d.limit(d.ours, a, 5000)
	d.limit(d.ours, b, 1<<20)
	d.wantLimits(map[uint32]int64{first: 5120, first + 1: 1 << 20})
	d.mkdir("a/sub")
	testtool.WriteFile(t, "data", a, "sub/file")
	d.limit(d.ours, a, 5000)
	d.limit(d.ours, b, 2<<20)
	d.wantLimits(map[uint32]int64{first: 5120, first + 1: 2 << 20})
	use, err := d.ours.Usage(a)
	if err != nil || use.Inodes != 3 || use.Limit != 5120 || use.Bytes < 4 {
		t.Errorf("Usage = %+v, %v", use, err)
	}
	d.remove(d.ours, a)
	d.remove(d.ours, a)
	d.wantLimits(map[uint32]int64{first + 1: 2 << 20})
	d.limit(d.ours, d.mkdir("c"), 1024)
	d.wantLimits(map[uint32]int64{first: 1024, first + 1: 2 << 20})
	d.remove(d.ours, b)
	d.remove(d.ours, filepath.Join(d.fs.Root, "c"))
	d.wantLimits(nil)
	if left := d.records(d.ours); len(left) > 0 {
		t.Errorf("records %v are left", left)
	}
}

// Numbers that others have in any way are not taken.
func TestOthersNumbers(t *testing.T) {
	d := newDisk(t)
	d.fs.Taken = []uint32{first}
	testtool.Must(t, d.fs.SetLimit(nil, first+1, 1<<20))
	f, err := os.Open(d.mkdir("theirs"))
	testtool.Must(t, err)
	defer f.Close()
	testtool.Must(t, d.fs.SetProject(f, projectquota.Project{ID: first + 2}))
	d.limit(d.other, d.mkdir("other"), 1<<20)
	d.limit(d.ours, d.mkdir("ours"), 1024)
	want := map[uint32]int64{first + 1: 1 << 20, first + 3: 1 << 20, first + 4: 1024}
	d.wantLimits(want)
	// Nor are their directories touched.
	other := d.mkdir("other")
	d.wantUnenforced(d.ours.Limit(other, 4096), projectquota.ErrForeign)
	if _, err := d.ours.Usage(other); err == nil {
		t.Error("another's use is told")
	}
	testtool.Must(t, errors.Join(d.ours.Lift(other), d.ours.Forget(other)))
	d.wantLimits(want)
}

// Files that are there would not count.
func TestDirectoryWithFiles(t *testing.T) {
	d := newDisk(t)
	dir := d.mkdir("a")
	file := testtool.WriteFile(t, "data", dir, "file")
	d.wantUnenforced(d.ours.Limit(dir, 1024), projectquota.ErrNotEmpty)
	testtool.Must(t, os.Remove(file))
	d.limit(d.ours, dir, 1024)
}

func TestNoQuotas(t *testing.T) {
	for _, op := range []string{"Enforced", "Usage", "SetProject", "SetLimit"} {
		d := newDisk(t)
		dir := d.mkdir("a")
		d.fs.Before = func(at string, id uint32) error {
			if at == op && !(op == "SetProject" && id == 0) {
				return unix.EPERM
			}
			return nil
		}
		d.wantUnenforced(d.ours.Limit(dir, 1024), unix.EPERM)
		d.remove(d.ours, dir)
		d.wantLimits(nil)
		if left := d.records(d.ours); len(left) > 0 {
			t.Errorf("%s: records %v are left", op, left)
		}
	}
}

// Quotas may be off when a directory goes.
func TestQuotasAreOffLater(t *testing.T) {
	d := newDisk(t)
	dir := d.mkdir("a")
	d.limit(d.ours, dir, 1024)
	d.fs.Before = func(string, uint32) error { return unix.ESRCH }
	if _, err := d.ours.Usage(dir); !errors.Is(err, unix.ESRCH) {
		t.Errorf("Usage = %v", err)
	}
	d.remove(d.ours, dir)
	if left := d.records(d.ours); len(left) > 0 {
		t.Errorf("records %v are left", left)
	}
}

// A directory that somebody has removed takes its limit with it.
func TestRemovedByAnother(t *testing.T) {
	d := newDisk(t)
	dir := d.mkdir("a")
	d.limit(d.ours, dir, 1024)
	testtool.Must(t, os.RemoveAll(dir))
	d.mkdir("a")
	d.limit(d.ours, dir, 2048)
	if got := d.limits(); len(got) != 1 || got[d.project(dir)] != 2048 {
		t.Errorf("limits %v", got)
	}
	testtool.Must(t, os.RemoveAll(dir))
	testtool.Must(t, d.ours.Forget(dir))
	d.wantLimits(nil)
}

// What a container has done to its directory costs nobody else a limit.
func TestChangedProject(t *testing.T) {
	d := newDisk(t)
	a, b := d.mkdir("a"), d.mkdir("b")
	d.limit(d.ours, a, 1024)
	d.limit(d.ours, b, 2048)
	f, err := os.Open(a)
	testtool.Must(t, err)
	defer f.Close()
	testtool.Must(t, d.fs.SetProject(f, projectquota.Project{ID: d.project(b)}))
	d.wantUnenforced(d.ours.Limit(a, 1024), projectquota.ErrForeign)
	d.remove(d.ours, a)
	d.wantLimits(map[uint32]int64{d.project(b): 2048})
}

// usedFrom is a disk on which somebody has files of every number from one to another.
type usedFrom struct {
	*fakequota.FileSystem
	from, to uint32
	asked    int
}

func (u *usedFrom) Usage(dir *os.File, id uint32) (projectquota.Usage, error) {
	if u.asked++; u.from <= id && id <= u.to {
		return projectquota.Usage{Inodes: 1}, nil
	}
	return u.FileSystem.Usage(dir, id)
}

func (*usedFrom) Named() (map[uint32]bool, error) { return nil, nil }

// Whoever has files may give them any project, and so keep many numbers from being taken. Not all.
func TestHostileNumbers(t *testing.T) {
	d := newDisk(t)
	used := &usedFrom{FileSystem: d.fs, from: first, to: first + 1<<16}
	d.ours.Kernel = used
	for _, name := range []string{"a", "b"} {
		dir := d.mkdir(name)
		used.asked = 0
		d.limit(d.ours, dir, 1024)
		if id := d.project(dir); id <= used.to || used.asked > 150 {
			t.Errorf("project %d after %d questions", id, used.asked)
		}
	}
	if len(d.limits()) != 2 {
		t.Errorf("limits %v", d.limits())
	}
	used.to, used.asked = 1<<32-1, 0
	d.wantUnenforced(d.ours.Limit(d.mkdir("c"), 1024), projectquota.ErrNoneFree)
	if used.asked > 150 {
		t.Errorf("%d questions where no number is free", used.asked)
	}
}

// unnamed is a disk of a node whose names of projects cannot be read.
type unnamed struct{ *fakequota.FileSystem }

func (unnamed) Named() (map[uint32]bool, error) { return nil, bufio.ErrTooLong }

func TestNamesCannotBeRead(t *testing.T) {
	d := newDisk(t)
	d.ours.Kernel = unnamed{d.fs}
	d.wantUnenforced(d.ours.Limit(d.mkdir("a"), 1024), bufio.ErrTooLong)
}

// Two agents take the same number between each other's calls: the other begins at a call of
// ours, stops at a call of its own until we are done, and goes on. In the end no number has
// two directories.
func TestTwoAgentsAtOnce(t *testing.T) {
	const calls = 7 // if nobody is in the way
	for begin := 1; begin <= calls; begin++ {
		for stop := 1; stop <= calls+1; stop++ {
			twoAgents(t, begin, stop)
		}
	}
}

func twoAgents(t *testing.T, begin, stop int) {
	t.Helper()
	d := newDisk(t)
	a, b := d.mkdir("a"), d.mkdir("b")
	stopped, goOn, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	theirs := 0
	d.other.Kernel = &fakequota.FileSystem{Root: d.fs.Root, State: d.fs.State, Before: func(string, uint32) error {
		if theirs++; theirs == stop {
			close(stopped)
			<-goOn
		}
		return nil
	}}
	ours := 0
	d.fs.Before = func(string, uint32) error {
		if ours++; ours != begin {
			return nil
		}
		go func() {
			ended <- d.other.Limit(b, 2048)
			if theirs < stop {
				close(stopped)
			}
		}()
		<-stopped
		return nil
	}
	d.limit(d.ours, a, 1024)
	close(goOn)
	if ours < begin {
		t.Fatalf("only %d calls", ours)
	}
	testtool.Must(t, <-ended)
	if one, two := d.project(a), d.project(b); one == two || d.limits()[one] != 1024 || d.limits()[two] != 2048 || len(d.limits()) != 2 {
		t.Errorf("begun at call %d, stopped at %d: projects %d and %d, limits %v", begin, stop, one, two, d.limits())
	}
	d.fs.Before = nil
	d.other.Kernel = d.fs
	d.remove(d.ours, a)
	d.remove(d.other, b)
	d.wantLimits(nil)
}

// An agent is killed after its directory got a number that another agent took in the same moment.
func TestKilledWithAnothersNumber(t *testing.T) {
	d := newDisk(t)
	a, b := d.mkdir("a"), d.mkdir("b")
	other := projectquota.Projects{Records: d.other.Records, Kernel: &fakequota.FileSystem{Root: d.fs.Root, State: d.fs.State}}
	killed := false
	d.fs.Before = func(op string, id uint32) error {
		if killed {
			return unix.EIO
		}
		if killed = op == "SetProject"; killed {
			d.limit(other, b, 2048)
		}
		return nil
	}
	if err := d.ours.Limit(a, 1024); !errors.Is(err, unix.EIO) {
		t.Fatal(err)
	}
	d.fs.Before = nil
	if has := d.has(a); has != (projectquota.Project{ID: d.project(b)}) {
		t.Fatalf("it was left with %+v", has)
	}
	d.limit(d.ours, a, 1024)
	d.wantLimits(map[uint32]int64{d.project(a): 1024, d.project(b): 2048})
}

// A directory with files gets back what its owner took from it.
func TestNoLongerHandedOn(t *testing.T) {
	d := newDisk(t)
	dir := d.mkdir("a")
	d.limit(d.ours, dir, 1024)
	testtool.WriteFile(t, "data", dir, "file")
	f, err := os.Open(dir)
	testtool.Must(t, err)
	defer f.Close()
	testtool.Must(t, d.fs.SetProject(f, projectquota.Project{ID: first}))
	d.limit(d.ours, dir, 1024)
	if got := d.project(dir); got != first {
		t.Errorf("it has project %d", got)
	}
}

// Nor do goroutines of one agent.
func TestConcurrentUse(t *testing.T) {
	d := newDisk(t)
	var wait sync.WaitGroup
	for n := range 8 {
		dir := d.mkdir(fmt.Sprint(n))
		wait.Go(func() {
			if err := d.ours.Limit(dir, 1024); err != nil {
				t.Error(err)
			}
		})
	}
	wait.Wait()
	var ids []uint32
	for n := range 8 {
		ids = append(ids, d.project(d.mkdir(fmt.Sprint(n))))
	}
	slices.Sort(ids)
	if len(slices.Compact(ids)) != 8 || len(d.limits()) != 8 {
		t.Errorf("projects %v, limits %v", ids, d.limits())
	}
	for n := range 8 {
		wait.Go(func() {
			dir := filepath.Join(d.fs.Root, fmt.Sprint(n))
			if err := errors.Join(d.ours.Lift(dir), os.RemoveAll(dir), d.ours.Forget(dir)); err != nil {
				t.Error(err)
			}
		})
	}
	wait.Wait()
	d.wantLimits(nil)
}
