//go:build unix

package durable

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/eintr"
)

// WriteFile makes path a regular file with these contents and exactly these
// permissions, whatever the umask; type bits and setuid, setgid and sticky of
// perm are ignored. A file or link that is there is replaced, links are not
// followed; a directory is not replaced. The directory of path must exist.
//
// The error is an *[Error]. Unless it says so (Error.Replaced), the old file
// is still there. Concurrent calls for one path leave the contents of one of
// them. Data is not kept.
func WriteFile(path string, data []byte, perm fs.FileMode) error {
	dir, base, err := openParent(path)
	if err != nil {
		return &Error{Op: "write", Path: path, Err: err}
	}
	defer dir.Close()
	temp := newTemp()
	if err := writeTemp(dir, temp, data, perm.Perm()); err != nil {
		return &Error{Op: "write", Path: path, Err: err}
	}
	fd := int(dir.Fd())
	if err := eintr.Do(func() error { return unix.Renameat(fd, temp, fd, base) }); err != nil {
		unlink(fd, temp)
		return &Error{Op: "write", Path: path, Err: err}
	}
	if err := dir.Sync(); err != nil {
		return &Error{Op: "write", Path: path, Replaced: true, Err: err}
	}
	return nil
}

// Create is [WriteFile] for a path where nothing is yet. An existing file, or
// dangling link, stays as it is, and the error matches [fs.ErrExist]; then that
// has reached the disk too. Of concurrent calls for one path exactly one
// succeeds. The file system must know hard links.
func Create(path string, data []byte, perm fs.FileMode) error {
	dir, base, err := openParent(path)
	if err != nil {
		return &Error{Op: "create", Path: path, Err: err}
	}
	defer dir.Close()
	return createIn(dir, base, path, data, perm)
}

// CreateAt is [Create] for a file of this name in a directory that is already
// open for reading, however it can be reached by now. The name under which it
// was opened appears in errors only.
func CreateAt(dir *os.File, name string, data []byte, perm fs.FileMode) error {
	if err := checkName(dir, "create", name); err != nil {
		return err
	}
	return createIn(dir, name, filepath.Join(dir.Name(), name), data, perm)
}

func createIn(dir *os.File, base, path string, data []byte, perm fs.FileMode) error {
	linked := linkUnnamed(dir, base, data, perm.Perm())
	if linked != nil && !errors.Is(linked, fs.ErrExist) {
		linked = linkTemp(dir, base, data, perm.Perm())
	}
	if linked != nil && !errors.Is(linked, fs.ErrExist) {
		return &Error{Op: "create", Path: path, Err: linked}
	}
	// Also for a file that was there: its maker may not have come this far.
	if err := dir.Sync(); err != nil {
		return &Error{Op: "create", Path: path, Replaced: linked == nil, Err: err}
	}
	if linked != nil {
		return &Error{Op: "create", Path: path, Err: linked}
	}
	return nil
}

// linkTemp gives a temporary file its name; a crash between leaves that to [Sweep].
func linkTemp(dir *os.File, base string, data []byte, perm fs.FileMode) error {
	temp := newTemp()
	if err := writeTemp(dir, temp, data, perm); err != nil {
		return err
	}
	fd := int(dir.Fd())
	defer unlink(fd, temp)
	return eintr.Do(func() error { return unix.Linkat(fd, temp, fd, base, 0) })
}

// Remove removes a file or link; that it is not there, or that its directory
// is not, is success. It does not remove directories. The error is an
// *[Error].
func Remove(path string) error {
	dir, base, err := openParent(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return &Error{Op: "remove", Path: path, Err: err}
	}
	defer dir.Close()
	return removeIn(dir, base, path)
}

// RemoveAt is [Remove] in a directory that is already open for reading, as for
// [CreateAt].
func RemoveAt(dir *os.File, name string) error {
	if err := checkName(dir, "remove", name); err != nil {
		return err
	}
	return removeIn(dir, name, filepath.Join(dir.Name(), name))
}

func removeIn(dir *os.File, base, path string) error {
	if err := unlink(int(dir.Fd()), base); err != nil {
		return &Error{Op: "remove", Path: path, Err: err}
	}
	// Also when there was nothing to remove: an earlier Remove may have failed
	// at this very step.
	if err := dir.Sync(); err != nil {
		return &Error{Op: "remove", Path: path, Replaced: true, Err: err}
	}
	return nil
}

// Sweep removes the files that crashed writers have left in dir, and returns
// their number. It must not run while another writer works in dir: it would
// remove that one's temporary file. A missing dir is success.
func Sweep(dir string) (removed int, err error) {
	d, err := openDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, &Error{Op: "sweep", Path: dir, Err: err}
	}
	defer d.Close()
	names, err := d.Readdirnames(-1)
	if err != nil {
		return 0, &Error{Op: "sweep", Path: dir, Err: err}
	}
	for _, name := range names {
		if !IsTemp(name) {
			continue
		}
		if err := unlink(int(d.Fd()), name); err != nil {
			return removed, &Error{Op: "remove", Path: filepath.Join(dir, name), Err: err}
		}
		removed++
	}
	return removed, nil
}

// checkName refuses what would lead out of dir.
func checkName(dir *os.File, op, name string) error {
	if name == "" || name == "." || name == ".." || strings.ContainsAny(name, "/\x00") {
		return &Error{Op: op, Path: filepath.Join(dir.Name(), name), Err: errNotAFile}
	}
	return nil
}

func openParent(path string) (dir *os.File, base string, err error) {
	base = filepath.Base(path)
	if path == "" || strings.HasSuffix(path, "/") || base == "." || base == ".." {
		return nil, "", errNotAFile
	}
	dir, err = openDir(filepath.Dir(path))
	return dir, base, err
}

func openDir(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_RDONLY|unix.O_DIRECTORY, 0)
}

// writeTemp leaves either a complete, synced file or none.
func writeTemp(dir *os.File, temp string, data []byte, perm fs.FileMode) (err error) {
	dirfd := int(dir.Fd())
	fd, err := eintr.Get(func() (int, error) {
		return unix.Openat(dirfd, temp, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	})
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), temp)
	defer func() {
		if err = errors.Join(err, f.Close()); err != nil {
			unlink(dirfd, temp)
		}
	}()
	return fill(f, data, perm)
}

// fill writes and syncs a file that was made with the mode 0600.
func fill(f *os.File, data []byte, perm fs.FileMode) error {
	if perm != 0o600 {
		if err := f.Chmod(perm); err != nil {
			return err
		}
	}
	if _, err := f.Write(data); err != nil {
		return err
	}
	return syncNew(f)
}

func unlink(dirfd int, name string) error {
	err := eintr.Do(func() error { return unix.Unlinkat(dirfd, name, 0) })
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}
