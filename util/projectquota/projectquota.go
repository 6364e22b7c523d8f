// Package projectquota limits directories by project quotas, which xfs and ext4 have
// where they are mounted with prjquota. A project is a number that a directory gives
// to everything that is made in it. The file system counts what each project takes.
//
// # Numbers
//
// Projects are the whole file system's, and nobody hands them out. So a number is taken
// only if the file system knows no use and no limit of it, if no name is given to it,
// and if no other directory of the same [Projects] has it. They begin far above those
// that a kubelet takes (from 1048577 on). The first free one is taken again, since xfs keeps a
// block for each number that it has ever counted. The search is short. Then it draws lots,
// because everybody may give files of their own any project: nobody can have all numbers. Of two
// agents that take the same number at the same time, at least one sees the other's directory
// in the count, and goes on to the next.
//
// A number is recorded before a directory gets it, and until after the directory is gone. Its limit
// is lifted while the directory still shows who it belongs to. A directory whose project has
// another origin is left alone, with its project and that project's limit: it may be one
// of many.
//
// # What the limit is worth
//
// The kernel lets every process in the first user namespace that owns a file change the file's
// project, and its file no longer counts then. It refuses that in all other user
// namespaces (a pod with hostUsers: false). On ext4 a process with CAP_SYS_RESOURCE in the
// first user namespace may write beyond every limit, which a container has only if it is
// privileged or asks for it. So the limit stops programs that write too much, and those that
// mean to only within a user namespace. Who must know the use for certain walks the tree,
// whatever the project of its files.
//
// Like every package below util, it carries no promise of compatibility.
package projectquota

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/durable"
	"github.com/podvol/podvol/util/eintr"
	"github.com/podvol/podvol/util/openat"
)

const (
	// firstID is far above the kubelet's first, which counts upwards from it.
	firstID = 1 << 30
	// lastID is the kernel's: the one after it means none.
	lastID = 1<<32 - 2
	// maxTries bounds the search in order, and then the one at random. Each number that
	// others use costs a system call.
	maxTries = 64
)

// Projects are the numbers that one agent has given to its directories.
//
//   - Its methods are idempotent. They may be interrupted between any two system calls, also
//     by a power cut, and what they have done is repaired by the next call for the directory.
//   - They are safe for concurrent use, but not for one directory at once.
//   - Directories are given by absolute, clean paths.
type Projects struct {
	// Records is a directory with a symbolic link for each number, to the directory
	// that has it. It is made when it is needed. Nothing else may be in it.
	Records string
	Kernel  Kernel
}

// UnenforcedError says that a directory has no limit, and that nothing was changed.
type UnenforcedError struct {
	Dir string
	Err error
}

func (e *UnenforcedError) Error() string {
	return fmt.Sprintf("%s cannot be limited by a project quota: %v", e.Dir, e.Err)
}

func (e *UnenforcedError) Unwrap() error { return e.Err }

var (
	// ErrForeign: the directory has a project that is not of these [Projects].
	ErrForeign = errors.New("it belongs to a project of another origin")
	// ErrNotEmpty: the directory had files before it could have a project.
	ErrNotEmpty = errors.New("it had files before it could have a project of its own")
	// ErrNoneFree: too many numbers are in use.
	ErrNoneFree = errors.New("no free project was found")
)

// Limit sees to it that the files in a directory take no more than so many bytes, which
// are more than 0. A directory that has no project yet gets one if it is empty.
// The error is an *[UnenforcedError] where that cannot be. Others are worth another try.
func (p Projects) Limit(dir string, bytes int64) error {
	d, err := open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	if err := p.Kernel.Enforced(d); err != nil {
		return &UnenforcedError{dir, err}
	}
	has, err := p.Kernel.Project(d)
	if err == nil && has.ID == 0 {
		err = p.begin(d, bytes)
	} else if err == nil {
		err = p.again(d, has, bytes)
	}
	return unenforced(dir, err)
}

// unenforced marks the errors that another try would not change.
func unenforced(dir string, err error) error {
	if isLasting(err) {
		return &UnenforcedError{dir, err}
	}
	return err
}

// isLasting reports whether another try would meet the same error.
func isLasting(err error) bool {
	for _, lasting := range []error{
		ErrForeign, ErrNotEmpty, ErrNoneFree, unix.EPERM, unix.EACCES, unix.EINVAL, unix.ENOSYS, unix.ENOTTY, unix.EOPNOTSUPP, unix.ESRCH, unix.ERANGE,
	} {
		if errors.Is(err, lasting) {
			return true
		}
	}
	return false
}

// again limits a directory that has a project. One that does not hand it on is left from an
// interrupted try, and has no files.
func (p Projects) again(d *os.File, has Project, bytes int64) error {
	ours, err := p.isRecorded(has.ID, d.Name())
	if err == nil && !ours {
		err = fmt.Errorf("project %d: %w", has.ID, ErrForeign)
	}
	if err != nil {
		return err
	}
	empty, err := isEmpty(d)
	if err != nil {
		return err
	}
	if !has.Inherits && empty {
		if err := p.withdraw(d, has.ID); err != nil {
			return err
		}
		return p.begin(d, bytes)
	}
	return p.confirm(d, has.ID, bytes)
}

// confirm has a directory hand its project on, and sets the limit.
func (p Projects) confirm(d *os.File, id uint32, bytes int64) error {
	has, err := p.Kernel.Project(d)
	if want := (Project{id, true}); err == nil && has != want {
		err = p.Kernel.SetProject(d, want)
	}
	if err != nil {
		return err
	}
	use, err := p.Kernel.Usage(d, id)
	if err != nil || use.Limit == rounded(bytes) {
		return err
	}
	return p.Kernel.SetLimit(d, id, bytes)
}

// begin limits a directory that has no project.
func (p Projects) begin(d *os.File, bytes int64) error {
	empty, err := isEmpty(d)
	if err == nil && !empty {
		err = ErrNotEmpty
	}
	if err != nil {
		return err
	}
	named, err := p.Kernel.Named()
	if err != nil {
		return &UnenforcedError{d.Name(), err} // a file that cannot be read or understood may stay so
	}
	records, err := p.list()
	if err != nil {
		return err
	}
	taken := map[uint32]bool{}
	maps.Copy(taken, named)
	for id, of := range records {
		taken[id] = true
		if of == d.Name() { // of an interrupted try
			if err := p.release(d, id); err != nil {
				return err
			}
		}
	}
	next := uint32(firstID)
	for try := range 2 * maxTries {
		for taken[next] {
			next++
		}
		id := next
		if try >= maxTries {
			id = firstID + rand.Uint32N(lastID-firstID+1)
		}
		if taken[id] {
			continue
		}
		taken[id] = true
		if done, err := p.take(d, id, bytes); done || err != nil {
			return err
		}
	}
	return ErrNoneFree
}

// take gives a directory a project if that is free. The directory hands it on only once it
// is known to be alone with it.
func (p Projects) take(d *os.File, id uint32, bytes int64) (done bool, err error) {
	if use, err := p.Kernel.Usage(d, id); err != nil || use != (Usage{}) {
		return false, err
	}
	if recorded, err := p.record(id, d.Name()); err != nil || !recorded {
		return false, err
	}
	if err := p.Kernel.SetProject(d, Project{ID: id}); err != nil {
		return false, errors.Join(err, p.forget(id))
	}
	use, err := p.Kernel.Usage(d, id)
	if err == nil && use.Inodes == 1 && use.Limit == 0 && !use.OtherLimits {
		err = p.confirm(d, id, bytes)
		done = err == nil
	}
	if done {
		return true, nil
	}
	return false, errors.Join(err, p.withdraw(d, id))
}

// withdraw takes a project off an empty directory again.
func (p Projects) withdraw(d *os.File, id uint32) error {
	if err := p.Kernel.SetProject(d, Project{}); err != nil {
		return err
	}
	return p.release(d, id)
}

// Lift lifts the limit of a directory, which is about to be removed. A directory that is
// not there, or has no project of these [Projects], is success.
func (p Projects) Lift(dir string) error {
	d, id, err := p.find(dir)
	if err != nil || d == nil {
		return err
	}
	defer d.Close()
	if err := p.Kernel.SetLimit(d, id, 0); !isLasting(err) {
		return err
	}
	return nil // nor is there a limit any more
}

// find opens a directory and returns its project; without one of these [Projects]
// there is none.
func (p Projects) find(dir string) (*os.File, uint32, error) {
	d, err := open(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, err
	}
	has, err := p.Kernel.Project(d)
	ours := false
	if err == nil && has.ID != 0 {
		ours, err = p.isRecorded(has.ID, dir)
	}
	if err == nil && ours && has.Inherits {
		return d, has.ID, nil
	}
	d.Close()
	if isLasting(err) {
		err = nil
	}
	return nil, 0, err
}

// Forget releases the numbers of a directory, which must be gone.
func (p Projects) Forget(dir string) error {
	records, err := p.list()
	if err != nil {
		return err
	}
	for id, of := range records {
		if of != dir {
			continue
		}
		d, err := openAbove(dir)
		if err != nil {
			return err
		}
		err = p.release(d, id)
		d.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

// openAbove opens the next directory above one that is gone, on the same file system.
func openAbove(dir string) (*os.File, error) {
	for {
		dir = filepath.Dir(dir)
		d, err := os.Open(dir)
		if !errors.Is(err, fs.ErrNotExist) {
			return d, err
		}
	}
}

// release drops the record of a project that no directory of ours has. A limit is left if the
// directory was not removed by the caller of [Projects.Lift], or was changed under it. It
// stays if anything has the project: it may be another's.
func (p Projects) release(d *os.File, id uint32) error {
	use, err := p.Kernel.Usage(d, id)
	if err == nil && use.Limit != 0 && use.Inodes == 0 {
		err = p.Kernel.SetLimit(d, id, 0)
	}
	if err != nil && !isLasting(err) {
		return err
	}
	return p.forget(id)
}

// Usage returns what the files of a directory take, at the cost of a few system calls
// whatever their number. The error is an *[UnenforcedError] where no project of
// these [Projects] counts them.
func (p Projects) Usage(dir string) (Usage, error) {
	d, id, err := p.find(dir)
	if err != nil {
		return Usage{}, err
	}
	if d == nil {
		return Usage{}, &UnenforcedError{dir, ErrForeign}
	}
	defer d.Close()
	if err := p.Kernel.Enforced(d); err != nil {
		return Usage{}, &UnenforcedError{dir, err}
	}
	use, err := p.Kernel.Usage(d, id)
	return use, unenforced(dir, err)
}

func (p Projects) path(id uint32) string {
	return filepath.Join(p.Records, strconv.FormatUint(uint64(id), 10))
}

// target is what the record of a directory says: the way to it from the records, so that
// they may be moved together.
func (p Projects) target(dir string) (string, error) { return filepath.Rel(p.Records, dir) }

// record writes down, once and for good, that a directory is to have a project. It reports false if
// another directory has.
func (p Projects) record(id uint32, dir string) (bool, error) {
	target, err := p.target(dir)
	if err != nil {
		return false, err
	}
	if err := os.MkdirAll(p.Records, 0o700); err != nil {
		return false, err
	}
	err = eintr.Do(func() error { return unix.Symlink(target, p.path(id)) })
	if errors.Is(err, fs.ErrExist) {
		return false, nil
	}
	if err != nil {
		return false, &fs.PathError{Op: "symlink", Path: p.path(id), Err: err}
	}
	records, err := open(p.Records)
	if err != nil {
		return false, err
	}
	defer records.Close()
	return true, records.Sync()
}

func (p Projects) isRecorded(id uint32, dir string) (bool, error) {
	of, err := os.Readlink(p.path(id))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil && filepath.Join(p.Records, of) == dir, err
}

func (p Projects) forget(id uint32) error { return durable.Remove(p.path(id)) }

// list returns the directories by their projects.
func (p Projects) list() (map[uint32]string, error) {
	entries, err := os.ReadDir(p.Records)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	records := map[uint32]string{}
	for _, e := range entries {
		id, err := strconv.ParseUint(e.Name(), 10, 32)
		if err != nil {
			continue
		}
		of, err := os.Readlink(filepath.Join(p.Records, e.Name()))
		if errors.Is(err, fs.ErrNotExist) {
			continue // released meanwhile
		}
		if err != nil {
			return nil, err
		}
		records[uint32(id)] = filepath.Join(p.Records, of)
	}
	return records, nil
}

// open does not ask Go's poller whether it watches directories, as [os.OpenFile] would: each
// tear-down of an emptyDir comes here.
func open(dir string) (*os.File, error) { return openat.Dir(nil, dir) }

func isEmpty(d *os.File) (bool, error) {
	if _, err := d.Seek(0, io.SeekStart); err != nil {
		return false, err
	}
	_, err := d.Readdirnames(1)
	if errors.Is(err, io.EOF) {
		return true, nil
	}
	return false, err
}
