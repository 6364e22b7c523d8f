package rootdir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/filelock"
	"github.com/podvol/podvol/util/retry"
	"github.com/podvol/podvol/util/rootdir"
	"github.com/podvol/podvol/volume"
)

// ErrBusy says that another process owns the root directory.
var ErrBusy = errors.New("the root directory is in use")

// rootBusy names the process that owns the root directory, as "process 4711 (podvol)".
func rootBusy(rootDir, holder string) error {
	return &volume.Failure{
		Cause: ErrBusy, Subject: rootDir,
		What: fmt.Sprintf("%s is in use by %s", rootDir, holder),
		Next: "wait for it to end, or choose another root directory",
	}
}

// Error says that the root directory cannot be used.
type Error struct {
	RootDir string
	Err     error
}

func (e *Error) Error() string {
	if path, ok := errors.AsType[*rootdir.Error](e.Err); ok {
		return fmt.Sprintf("the root directory %s cannot be relied on: %s %s, and could lead to files that are not podvol's; choose another root directory, or %s", e.RootDir, path.Path, path.Reason, path.Advice)
	}
	advice := "choose another root directory"
	switch {
	case errors.Is(e.Err, fs.ErrPermission), errors.Is(e.Err, unix.EROFS):
		advice = "make it writable, or choose another root directory"
	case errors.Is(e.Err, unix.ENOTDIR):
		advice = "it, or one of its parents, is a file; choose another root directory"
	case e.Full():
		advice = "free some space (df and df -i), or choose another root directory"
	}
	return fmt.Sprintf("the root directory %s cannot be used: %v; %s", e.RootDir, e.Err, advice)
}

// Full reports whether the directory cannot be used because its disk, or a quota, has no room: it
// is the right one then.
func (e *Error) Full() bool { return errors.Is(e.Err, unix.ENOSPC) || errors.Is(e.Err, unix.EDQUOT) }

// Unwrap returns what the operating system said.
func (e *Error) Unwrap() error { return e.Err }

// StateDir returns the directory below a root that is podvol's own: for files of
// the manager and of programs around it that must outlive them. It has the mode
// 0700 and is not locked by itself; see the package comment.
func StateDir(rootDir string) string { return filepath.Join(rootDir, stateName) }

const stateName, lockName = "podvol", "lock"

// Lock makes the root directory ready and takes its lock. The lock is
// flock(2)'s: it goes with the process, however that ends.
func Lock(rootDir string) (unlock func(), err error) {
	// A process that leaves may remove its empty directories between two steps here.
	err = retry.Patiently(fs.ErrNotExist, func() error {
		unlock, err = tryLockRoot(rootDir)
		return err
	})
	return unlock, err
}

func tryLockRoot(rootDir string) (unlock func(), err error) {
	file, err := openLock(rootDir)
	if err != nil {
		return nil, &Error{rootDir, err}
	}
	if err := filelock.Lock(file, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		defer file.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, rootBusy(rootDir, holder(file))
		}
		return nil, &Error{rootDir, err}
	}
	if err := signHolder(file); err != nil {
		file.Close()
		return nil, &Error{rootDir, err}
	}
	return func() { _ = filelock.Close(file) }, nil
}

// openLock makes the directories, where they are missing, and opens the lock. It
// follows no other user's links.
func openLock(rootDir string) (*os.File, error) {
	root, err := rootdir.Make(rootDir, 0o750)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	if err := checkLayout(root); err != nil {
		return nil, err
	}
	state, err := rootdir.MakeDirAt(root, stateName, 0o700)
	if err != nil {
		return nil, err
	}
	defer state.Close()
	if err := state.Chmod(0o700); err != nil { // one that was there
		return nil, err
	}
	return rootdir.OpenFileAt(state, lockName, unix.O_RDWR|unix.O_CREAT, 0o600)
}

// signHolder writes down the holder of the lock. The command's name only: its
// arguments may be secret.
func signHolder(file *os.File) error {
	if err := file.Truncate(0); err != nil {
		return err
	}
	_, err := file.WriteAt(fmt.Appendf(nil, "process %d (%s)\n", os.Getpid(), filepath.Base(os.Args[0])), 0)
	return err
}

func holder(file *os.File) string {
	text := make([]byte, 256)
	n, _ := file.ReadAt(text, 0)
	if who := strings.TrimSpace(string(text[:n])); who != "" {
		return who
	}
	return "another process"
}
