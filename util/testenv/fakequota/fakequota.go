// Package fakequota has project quotas on file systems that have none, for tests. Nothing
// holds the files to their limits.
//
// Like every package below util, it carries no promise of compatibility.
package fakequota

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/projectquota"
)

// FileSystem is a tree that counts what its projects take. All that it knows is on disk,
// so that several processes may use it. Its fields are not changed after first use.
type FileSystem struct {
	// Root is the tree, and State a directory beside it.
	Root, State string
	// Taken are the projects that have names.
	Taken []uint32
	// Before, if set, is asked before each call that changes something, and in Usage. Its error
	// is the call's.
	Before func(op string, id uint32) error

	mu sync.Mutex
}

var _ projectquota.Kernel = (*FileSystem)(nil)

func (f *FileSystem) before(op string, id uint32) error {
	if f.Before == nil {
		return nil
	}
	return f.Before(op, id)
}

// Enforced is nil, unless Before has an error for it.
func (f *FileSystem) Enforced(*os.File) error { return f.before("Enforced", 0) }

// Project returns the project of a directory.
func (f *FileSystem) Project(dir *os.File) (projectquota.Project, error) { return of(dir.Name()) }

// The attribute of a directory. Old kernels have the first on no tmpfs, and the second takes root.
func attributes() [2]string { return [2]string{"user.podvol.project", "trusted.podvol.project"} }

// of returns the project that a directory was given.
func of(path string) (p projectquota.Project, err error) {
	var value [32]byte
	n, err := unix.Lgetxattr(path, attributes()[0], value[:])
	if errors.Is(err, unix.EOPNOTSUPP) {
		n, err = unix.Lgetxattr(path, attributes()[1], value[:])
	}
	if errors.Is(err, unix.ENODATA) || errors.Is(err, unix.ENOENT) {
		return p, nil
	}
	if err != nil {
		return p, &fs.PathError{Op: "getxattr", Path: path, Err: err}
	}
	text, inherits := strings.CutSuffix(string(value[:n]), "+")
	id, err := strconv.ParseUint(text, 10, 32)
	return projectquota.Project{ID: uint32(id), Inherits: inherits}, err
}

// SetProject gives a directory a project.
func (f *FileSystem) SetProject(dir *os.File, to projectquota.Project) error {
	if err := f.before("SetProject", to.ID); err != nil {
		return err
	}
	value := strconv.FormatUint(uint64(to.ID), 10)
	if to.Inherits {
		value += "+"
	}
	err := unix.Fsetxattr(int(dir.Fd()), attributes()[0], []byte(value), 0)
	if errors.Is(err, unix.EOPNOTSUPP) {
		err = unix.Fsetxattr(int(dir.Fd()), attributes()[1], []byte(value), 0)
	}
	return err
}

// Usage counts the tree.
func (f *FileSystem) Usage(_ *os.File, id uint32) (projectquota.Usage, error) {
	if err := f.before("Usage", id); err != nil {
		return projectquota.Usage{}, err
	}
	limits, err := f.Limits()
	use := projectquota.Usage{Limit: limits[id]}
	if err != nil {
		return use, err
	}
	return use, count(f.Root, id, 0, &use)
}

// count adds what a project takes in a tree, which inherits a project.
func count(path string, id, inherited uint32, use *projectquota.Usage) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	its := projectquota.Project{ID: inherited, Inherits: true}
	if info.IsDir() {
		own, err := of(path)
		if err != nil {
			return err
		}
		if own.ID != 0 {
			its = own
		}
	}
	if its.ID == id {
		use.Inodes++
		use.Bytes += info.Sys().(*syscall.Stat_t).Blocks * 512
	}
	if !info.IsDir() {
		return nil
	}
	if !its.Inherits {
		its.ID = 0
	}
	entries, err := os.ReadDir(path)
	if errors.Is(err, fs.ErrNotExist) { // since the look above
		return nil
	}
	for _, e := range entries {
		err = errors.Join(err, count(filepath.Join(path, e.Name()), id, its.ID, use))
	}
	return err
}

// SetLimit sets the limit of a project.
func (f *FileSystem) SetLimit(_ *os.File, id uint32, bytes int64) error {
	if err := f.before("SetLimit", id); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := os.MkdirAll(f.State, 0o700); err != nil {
		return err
	}
	path := filepath.Join(f.State, strconv.FormatUint(uint64(id), 10))
	if bytes == 0 {
		if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	// Links come and go whole.
	temp := filepath.Join(f.State, "new")
	if err := os.Remove(temp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Symlink(strconv.FormatInt((bytes+1023)/1024*1024, 10), temp); err != nil {
		return err
	}
	return os.Rename(temp, path)
}

// Limits are those of all projects.
func (f *FileSystem) Limits() (map[uint32]int64, error) {
	entries, err := os.ReadDir(f.State)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	limits := map[uint32]int64{}
	for _, e := range entries {
		id, notOne := strconv.ParseUint(e.Name(), 10, 32)
		text, gone := os.Readlink(filepath.Join(f.State, e.Name()))
		if notOne != nil || errors.Is(gone, fs.ErrNotExist) {
			continue
		}
		limit, unread := strconv.ParseInt(text, 10, 64)
		if err := errors.Join(gone, unread); err != nil {
			return nil, err
		}
		limits[uint32(id)] = limit
	}
	return limits, err
}

// Named returns Taken.
func (f *FileSystem) Named() (map[uint32]bool, error) {
	named := map[uint32]bool{}
	for _, id := range f.Taken {
		named[id] = true
	}
	return named, nil
}
