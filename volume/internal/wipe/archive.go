package wipe

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/eintr"
	"github.com/podvol/podvol/util/justmade"
	"github.com/podvol/podvol/util/openat"
)

// ErrOtherFileSystem says that something cannot be moved into the archive, since
// that is on another file system or reached through another mount. Nothing is
// copied in its place.
var ErrOtherFileSystem = errors.New("the archive is on another file system or another mount than the data; it must be below the same mount")

const (
	// archiveMode keeps an archive from all users but its maker.
	archiveMode = 0o700
	// maxArchives bounds how often a volume is archived under one name.
	maxArchives = 10_000
	// batch is how many names are read at a time.
	batch = 1024
)

// Archive moves everything in root into a new directory of the directory archives, of mode
// 0700, and returns that directory's name; it is empty if nothing was moved. Root stays.
//
//   - The name is the given one. If it exists, as after an earlier try, ".2", ".3" and so on
//     is added: nothing in an archive is ever replaced.
//   - Both directories must have been opened below the same mount. Moving is renaming:
//     nothing is copied, links and mounts are not followed.
//   - It returns nil only after it has read root and found nothing. The error is an
//     *[reclaim.IncompleteError]: [ErrOtherFileSystem], [ErrNoLonger], the cause of ctx's
//     end, or a *[io/fs.PathError] or *[os.LinkError].
func Archive(ctx context.Context, root, archives *os.File, name string, options Options) (archive string, err error) {
	return archiveWith(ctx, root, archives, name, options, unix.Renameat2)
}

type renameat2 func(olddirfd int, oldpath string, newdirfd int, newpath string, flags uint) error

func archiveWith(ctx context.Context, root, archives *os.File, name string, options Options, rename renameat2) (string, error) {
	a := &archiver{archives: archives, name: name, rename: rename, meter: newMeter(options)}
	defer a.close()
	from, err := openat.Dir(root, ".")
	if err != nil {
		return "", a.meter.result(err)
	}
	defer from.Close()
	err = a.moveAll(ctx, from)
	return a.first, a.meter.result(err)
}

// archiver moves things into one directory after the other.
type archiver struct {
	archives *os.File
	name     string
	rename   renameat2
	meter    *meter

	number int      // of the latest directory
	first  string   // the name of the first that something is in
	to     *os.File // the latest one
	moved  bool     // something is in it
}

// moveAll reads the directory again and again, as a file system may leave
// entries out while others are being moved.
func (a *archiver) moveAll(ctx context.Context, from *os.File) error {
	for {
		found, done := false, a.meter.done
		if _, err := from.Seek(0, io.SeekStart); err != nil {
			return err
		}
		for {
			names, err := from.Readdirnames(batch)
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return err
			}
			found = true
			for _, name := range names {
				if ctx.Err() != nil {
					return context.Cause(ctx)
				}
				if err := a.meter.mayGoOn(ctx); err != nil {
					return err
				}
				if err := a.move(from, name); err != nil {
					return err
				}
			}
		}
		switch {
		case !found:
			return nil
		case a.meter.done == done:
			return &fs.PathError{Op: "rename", Path: from.Name(), Err: errors.New("the data or the archive was removed")}
		}
	}
}

// move moves one entry; where the archive has one of this name, into the next
// directory.
func (a *archiver) move(from *os.File, name string) error {
	for {
		if a.to == nil {
			if err := a.next(); err != nil {
				return err
			}
		}
		err := a.moveInto(from, name)
		switch {
		case err == nil:
			if a.first == "" {
				a.first = a.latest()
			}
			a.moved = true
			a.meter.step()
			return nil
		case errors.Is(err, unix.ENOENT):
			return nil // another process has removed it
		case errors.Is(err, unix.EEXIST) && a.moved:
			a.close()
		case errors.Is(err, unix.EXDEV):
			return fmt.Errorf("%w: %w", ErrOtherFileSystem, a.failed(from, name, err))
		default:
			return a.failed(from, name, err)
		}
	}
}

func (a *archiver) failed(from *os.File, name string, err error) error {
	return &os.LinkError{Op: "rename", Old: from.Name() + "/" + name, New: a.to.Name() + "/" + name, Err: err}
}

// moveInto renames without replacing. File systems that cannot promise that, as
// NFS, are asked first: no other process writes into this new directory.
func (a *archiver) moveInto(from *os.File, name string) error {
	olddir, newdir := int(from.Fd()), int(a.to.Fd())
	err := eintr.Do(func() error { return a.rename(olddir, name, newdir, name, unix.RENAME_NOREPLACE) })
	if !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOSYS) {
		return err
	}
	var st unix.Stat_t
	err = eintr.Do(func() error { return unix.Fstatat(newdir, name, &st, unix.AT_SYMLINK_NOFOLLOW) })
	switch {
	case err == nil:
		return unix.EEXIST
	case !errors.Is(err, unix.ENOENT):
		return err
	}
	return eintr.Do(func() error { return unix.Renameat(olddir, name, newdir, name) })
}

// next makes the next directory.
func (a *archiver) next() error {
	for a.number < maxArchives {
		a.number++
		name, dirfd := a.latest(), int(a.archives.Fd())
		err := eintr.Do(func() error { return unix.Mkdirat(dirfd, name, archiveMode) })
		if errors.Is(err, unix.EEXIST) {
			continue
		}
		if err != nil {
			return &fs.PathError{Op: "mkdir", Path: a.archives.Name() + "/" + name, Err: err}
		}
		return a.open(name)
	}
	return &fs.PathError{Op: "mkdir", Path: a.archives.Name() + "/" + a.name, Err: fmt.Errorf("there are %d archives of this name", maxArchives)}
}

// open opens the directory that was just made, and none that another user has put
// in its place to have the volume's data.
func (a *archiver) open(name string) error {
	to, err := openat.Dir(a.archives, name)
	if err != nil {
		return err
	}
	if err := justmade.Check(int(a.archives.Fd()), int(to.Fd()), archiveMode); err != nil {
		to.Close()
		return &fs.PathError{Op: "open", Path: to.Name(), Err: err}
	}
	a.to, a.moved = to, false
	return nil
}

// close ends the use of the latest directory, and removes it if it is empty.
func (a *archiver) close() {
	if a.to == nil {
		return
	}
	if !a.moved {
		_ = unix.Unlinkat(int(a.archives.Fd()), a.latest(), unix.AT_REMOVEDIR) // an empty directory is no harm
	}
	a.to.Close()
	a.to = nil
}

func (a *archiver) latest() string {
	if a.number == 1 {
		return a.name
	}
	return fmt.Sprintf("%s.%d", a.name, a.number)
}
