package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/testenv/calltrace"
	"github.com/podvol/podvol/util/testenv/invariant"
	"github.com/podvol/podvol/util/testenv/loopdev"
	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/util/testenv/testtool"
)

// TestPowerCuts runs commands on ext4 and xfs, and copies the disk before each
// system call that changes something: what the file system has not written by
// then is not in the copy, as after a power cut. In further runs it is made to write
// before each third call what nobody synced: all it has, or its journal without the
// data of files. Then each copy is mounted, and the machine goes on.
//
// What was acknowledged before the cut is kept ([invariant.Violations]), fsck
// repairs what it finds, the command does what it promises when it is run again,
// and afterwards nothing is left that no command names.
//
// By itself it tries the disk of the first run as it is when the command has ended;
// with the variable PODVOL_SWEEP it tries all, of the runs whose names match.
func TestPowerCuts(t *testing.T) {
	nstest.Parallel(t)
	nstest.RunAs(t, []nstest.Mode{nstest.Root}, func(t *testing.T) {
		testtool.Need(t, "mkfs.ext4", "mkfs.xfs")
		base, err := filepath.EvalSymlinks(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		// The disks lie in memory.
		if err := unix.Mount("cuts", base, "tmpfs", 0, "size=1g,mode=755"); err != nil {
			t.Fatal(err)
		}
		for _, d := range []cutDisk{
			{fsType: "ext4", size: 16 << 20, make: []string{"mkfs.ext4", "-q", "-F"}},
			{fsType: "xfs", size: 320 << 20, make: []string{"mkfs.xfs", "-q"}},
		} {
			d.dir = filepath.Join(base, d.fsType)
			if err := os.Mkdir(d.dir, 0o755); err != nil {
				t.Fatal(err)
			}
			for _, c := range faultCases() {
				if c.cuts {
					t.Run(d.fsType+" "+c.name, func(t *testing.T) { d.sweep(t, c) })
				}
			}
		}
	})
}

// cutDisk is a disk whose power is cut.
type cutDisk struct {
	fsType, dir string // what it has, and where it is mounted
	size        int64
	make        []string
}

// cut is a disk as it was at a moment.
type cut struct {
	image image
	at    string
	last  bool // the command had ended with exit code 0
}

// early is what gets to the disk though nobody has synced it.
type early struct {
	name  string
	write func(cutDisk, *testing.T)
	call  int // of three, before which it is written
}

// before has the early be written that comes before a call.
func (e early) before(t *testing.T, d cutDisk, call int) {
	if e.write != nil && call%3 == e.call {
		e.write(d, t)
	}
}

func writtenEarly() []early {
	all := []early{{name: "synced only"}}
	for call := range 3 {
		all = append(all,
			early{fmt.Sprintf("written back %d", call), cutDisk.sync, call},
			early{fmt.Sprintf("journal written %d", call), cutDisk.commit, call})
	}
	if os.Getenv(sweepVar) == "" {
		return all[:1]
	}
	return all
}

func (d cutDisk) sweep(t *testing.T, c faultCase) {
	for _, e := range writtenEarly() {
		name := d.fsType + " " + c.name + ": " + e.name
		if !regexp.MustCompile(os.Getenv(sweepVar)).MatchString(name) {
			continue
		}
		t.Run(e.name, func(t *testing.T) {
			var s *faultSite
			var cuts []cut
			t.Run("run", func(t *testing.T) { s, cuts = d.run(t, c, e) })
			if t.Failed() {
				return
			}
			for i, at := range cuts {
				t.Run(fmt.Sprintf("cut %d", i), func(t *testing.T) { d.after(t, c, *s, at, i%2 == 0) })
			}
			t.Logf("%d different disks", len(cuts))
		})
	}
}

// run runs the command on a new disk, and cuts the power at each call.
func (d cutDisk) run(t *testing.T, c faultCase, e early) (*faultSite, []cut) {
	t.Helper()
	backing := filepath.Join(t.TempDir(), "disk")
	if err := errors.Join(os.WriteFile(backing, nil, 0o600), os.Truncate(backing, d.size)); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(d.make[0], append(d.make[1:], backing)...).CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", d.make, err, out)
	}
	unmount := d.mount(t, backing)
	defer unmount()
	s := newFaultSite(t, d.dir)
	c.prepare(t, s)
	d.sync(t)
	var cuts []cut
	take := func(at string) {
		taken, err := copyOf(backing)
		if err != nil {
			t.Error(err)
		}
		if len(cuts) == 0 || !taken.equal(cuts[len(cuts)-1].image) {
			cuts = append(cuts, cut{image: taken, at: at})
		}
	}
	calls := 0
	code, said := s.traced(t, append(c.args(s), "--root-dir", s.root), func(call calltrace.Call) calltrace.Action {
		if !call.Changes || call.Path != "" && !calltrace.Below(call.Path, s.dir) {
			return calltrace.Action{}
		}
		calls++
		e.before(t, d, calls)
		if os.Getenv(sweepVar) != "" {
			take(fmt.Sprintf("before call %d, %s", calls, call.Text))
		}
		return calltrace.Action{}
	}, false)
	if code != exitOK {
		t.Fatal(said)
	}
	take("at the end")
	cuts[len(cuts)-1].last = true
	return s, cuts
}

// after is what happens once the power is there again.
func (d cutDisk) after(t *testing.T, c faultCase, was faultSite, at cut, repair bool) {
	backing := filepath.Join(t.TempDir(), "disk")
	if err := at.image.write(backing, d.size); err != nil {
		t.Fatal(err)
	}
	unmount := d.mount(t, backing)
	defer unmount()
	s := was.clone()
	judge := func(when string, err error) {
		if err != nil {
			t.Errorf("the power was cut %s; %s: %v", at.at, when, err)
		}
	}
	if c.going != nil {
		c.going(s)
	}
	judge("after the cut", s.kept(t))
	if at.last && c.lasts {
		judge("after the cut", c.done(t, s))
	}
	if repair {
		if code, said := s.do(t, "fsck", "--repair"); code != exitOK {
			judge("repaired", errors.New(said))
		}
		s.podsGone() // which is what a repair does with what is not mounted any more
		judge("repaired", s.kept(t))
	}
	judge("run again", c.again(t, s))
	judge("run again", s.kept(t))
	s.end(t, judge)
	if c.lasts {
		return
	}
	if code, said := s.do(t, "mount", "-f", s.manifest); code != exitOK {
		judge("mounted in the end", errors.New(said))
	}
	judge("mounted in the end", s.mounted(t))
	s.must(t, "unmount", "--all")
}

// mount mounts the disk; what it returns unmounts it, and all below.
func (d cutDisk) mount(t *testing.T, backing string) (unmount func()) {
	t.Helper()
	device := loopdev.Of(t, backing, 0)
	if err := unix.Mount(device.Path, d.dir, d.fsType, 0, ""); err != nil {
		t.Fatal(err)
	}
	return func() {
		targets, err := invariant.Mounted(d.dir, kernelTable(t))
		slices.Reverse(targets)
		for _, target := range append(targets, d.dir) {
			err = errors.Join(err, unix.Unmount(target, 0))
		}
		if err != nil {
			t.Error(err)
		}
	}
}

// sync has the file system write all it has.
func (d cutDisk) sync(t *testing.T) {
	d.open(t, func(dir *os.File) error { return unix.Syncfs(int(dir.Fd())) })
}

// commit has the file system write its journal to the end, by a change that is the
// last in it. The data of files that it has not found a place for stays where it is.
func (d cutDisk) commit(t *testing.T) {
	d.open(t, func(dir *os.File) error {
		return errors.Join(unix.Fchmod(int(dir.Fd()), 0o700), unix.Fchmod(int(dir.Fd()), 0o755), dir.Sync())
	})
}

func (d cutDisk) open(t *testing.T, do func(*os.File) error) {
	dir, err := os.Open(d.dir)
	if err == nil {
		err = errors.Join(do(dir), dir.Close())
	}
	if err != nil {
		t.Error(err)
	}
}

// image is what a file has, without its holes.
type image []extent

type extent struct {
	offset int64
	data   []byte
}

func (i image) equal(other image) bool {
	return slices.EqualFunc(i, other, func(a, b extent) bool { return a.offset == b.offset && bytes.Equal(a.data, b.data) })
}

func (i image) write(path string, size int64) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	errs := []error{file.Truncate(size)}
	for _, e := range i {
		_, err := file.WriteAt(e.data, e.offset)
		errs = append(errs, err)
	}
	return errors.Join(append(errs, file.Close())...)
}

// copyOf copies a file to which others may be writing, as it is at one moment.
func copyOf(path string) (image, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	before, err := readImage(file)
	for err == nil {
		var again image
		if again, err = readImage(file); err == nil && again.equal(before) {
			return before, nil
		}
		before = again
	}
	return nil, err
}

func readImage(file *os.File) (i image, err error) {
	for offset := int64(0); ; {
		offset, err = file.Seek(offset, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return i, nil
		}
		if err != nil {
			return nil, err
		}
		end, err := file.Seek(offset, unix.SEEK_HOLE)
		if err != nil {
			return nil, err
		}
		data := make([]byte, end-offset)
		if _, err := file.ReadAt(data, offset); err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
		i = append(i, extent{offset, data})
		offset = end
	}
}
