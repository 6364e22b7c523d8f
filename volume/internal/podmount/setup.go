package podmount

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/util/eintr"
	"github.com/podvol/podvol/util/retry"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/meter"
)

const (
	// DirMode is the mode of the kubelet's directories below pods/.
	DirMode = 0o750
	// undoTimeout bounds the clean-up after a failure, whose own context may
	// have ended already.
	undoTimeout = 5 * time.Second
)

// OccupiedError says that something else is mounted where a volume should be.
type OccupiedError struct {
	// Want describes the mount that was asked for, without options.
	Want string
	// Found is what the mount table shows.
	Found mount.Entry
}

func (e *OccupiedError) Error() string {
	return fmt.Sprintf("%s is wanted at %s, but %s is mounted there already; tear the volume down, then set it up again",
		e.Want, e.Found.Target, describeEntry(e.Found))
}

func describeEntry(e mount.Entry) string {
	access := "writable"
	if e.ReadOnly() {
		access = "read-only"
	}
	return describe(e.FSType, e.Source) + " (" + access + ")"
}

func describeRequest(r mount.Request) string {
	if slices.Contains(r.Options, "ro") {
		return describe(r.FSType, r.Source) + " (read-only)"
	}
	return describe(r.FSType, r.Source)
}

func describe(fsType, source string) string {
	if fsType == "" {
		return source
	}
	return fsType + " " + source
}

// SetUp mounts what request says at request.Target, whose missing parents it
// makes with mode 0750. Where the topmost mount of the target is already the
// wanted one, as same reports, it does nothing and made is false; any other mount
// there is an *[OccupiedError]. When the mount fails, a mount that appeared all
// the same is taken off again and the directory is removed if it is empty. The
// error keeps the *[mount.Error]. It is marked by [volume.NothingDone] where
// nothing was left and nothing may still appear.
func SetUp(ctx context.Context, m mount.Interface, request mount.Request, same func(mount.Entry) bool) (made bool, err error) {
	return SetUpBy(ctx, m, request, same, func() error { return mount.Mount(ctx, m, request) })
}

// SetUpBy is SetUp by a mount of the caller's own, which is called where the
// wanted one is not there yet. An error of it that is marked by
// [volume.NothingDone] stays so.
func SetUpBy(ctx context.Context, m mount.Interface, request mount.Request, same func(mount.Entry) bool, makeIt func() error) (made bool, err error) {
	if NewDir(request.Target, DirMode) != nil { // on a new directory nothing is mounted
		mounted, err := Mounted(m, request, same)
		if err != nil || mounted {
			return false, err
		}
		if _, err := MakeDir(request.Target, DirMode); err != nil {
			return false, volume.NothingDone(err)
		}
	}
	err = MountOn(ctx, m, request.Target, makeIt)
	return err == nil, err
}

// MountOn is the part of [SetUpBy] once dir is there and nothing is mounted on it.
func MountOn(ctx context.Context, m mount.Interface, dir string, makeIt func() error) error {
	if err := makeIt(); err != nil {
		return undo(ctx, m, dir, err)
	}
	return nil
}

// Mounted reports whether the topmost mount of the request's target is the
// wanted one. Any other mount there is an *[OccupiedError].
func Mounted(m mount.Interface, request mount.Request, same func(mount.Entry) bool) (bool, error) {
	found, mounted, err := at(m, request.Target)
	if err != nil || !mounted {
		return false, volume.NothingDone(err)
	}
	if !same(found) {
		return false, volume.NothingDone(&OccupiedError{Want: describeRequest(request), Found: found})
	}
	return true, nil
}

func at(m mount.Interface, dir string) (mount.Entry, bool, error) {
	mounts := table.Of(m)
	return mounts.At(dir)
}

// undo cleans up after the failed mount and returns its error, marked where
// that is deserved.
func undo(ctx context.Context, m mount.Interface, dir string, failure error) error {
	if err := Undo(ctx, m, dir); err != nil {
		return fmt.Errorf("%w; and cleaning up after it failed: %w", failure, err)
	}
	if e, ok := errors.AsType[*mount.Error](failure); ok && !e.Uncertain {
		return volume.NothingDone(failure)
	}
	return failure
}

// Undo is [TearDown] after a failed set-up: it works although ctx may have
// ended, for a few seconds at most, and leaves a directory that is not empty
// without complaint, since it held something before.
func Undo(ctx context.Context, m mount.Interface, dir string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
	defer cancel()
	// Removing the directory also makes a mount fail that is still under way.
	err := TearDown(ctx, m, dir, mount.UnmountOptions{})
	if _, held := errors.AsType[*NotEmptyError](err); held {
		return nil
	}
	return err
}

// MakeDir makes dir, with perm less the umask, and its missing parents with
// mode 0750, and reports whether dir was made or was there. Anything else of
// that name, a link to a directory too, is an error.
func MakeDir(dir string, perm fs.FileMode) (made bool, err error) {
	err = NewDir(dir, perm)
	if errors.Is(err, fs.ErrExist) {
		return false, checkDir(dir)
	}
	return err == nil, err
}

// NewDir is [MakeDir] for a directory that must not be there; else the error matches
// [fs.ErrExist]. It does not look at an existing one, which may be a mount whose server never
// answers.
func NewDir(dir string, perm fs.FileMode) error {
	if err := os.Mkdir(dir, perm); !errors.Is(err, unix.ENOENT) {
		return err
	}
	// Another process that leaves a parent empty may remove it meanwhile.
	return retry.Patiently(unix.ENOENT, func() error {
		if err := NewDir(filepath.Dir(dir), DirMode); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		return os.Mkdir(dir, perm)
	})
}

// checkDir refuses any other file in the place of a volume's directory: a link
// would lead the pod, and the volume's files, somewhere else.
func checkDir(dir string) error {
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return fmt.Errorf("%s is a %s where the volume's directory should be; find out who put it there, and remove it: %w",
			dir, kindOf(info.Mode()), unix.ENOTDIR)
	}
	return nil
}

func kindOf(mode fs.FileMode) string {
	switch {
	case mode&fs.ModeSymlink != 0:
		return "symbolic link"
	case mode.IsRegular():
		return "file"
	}
	return "special file"
}

// MakePoint makes an empty directory or file to mount on, and its missing
// parents with mode 0750. Where there is anything, the error matches
// [fs.ErrExist].
func MakePoint(path string, dir bool) error {
	if err := os.MkdirAll(filepath.Dir(path), DirMode); err != nil {
		return err
	}
	if dir {
		return os.Mkdir(path, DirMode)
	}
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_CLOEXEC, 0o640)
	if err != nil {
		return err
	}
	return file.Close()
}

// RemovePoint removes an empty directory or file; a missing one is success.
// Anything else stays, and is an error, which for a directory is a
// *[NotEmptyError].
func RemovePoint(path string) error {
	err := RemoveDir(path)
	if !errors.Is(err, unix.ENOTDIR) {
		return err
	}
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case !info.Mode().IsRegular() || info.Size() > 0:
		return fmt.Errorf("nothing is mounted at %s any more, but it is no empty file; nothing was deleted: find out who put it there: %w", path, fs.ErrExist)
	}
	return Unlink(path)
}

// Unlink removes a name; a missing one is success.
func Unlink(path string) error {
	err := eintr.Do(func() error { return unix.Unlink(path) })
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return &fs.PathError{Op: "unlink", Path: path, Err: err}
	}
	return nil
}

// Metrics measures the file system that is mounted at dir. Where nothing is
// mounted the error matches [mount.ErrNotMounted]: the numbers would be the
// node's own disk's.
func Metrics(ctx context.Context, m mount.Interface, meter *meter.Meter, dir string) (*volume.Metrics, error) {
	_, mounted, err := at(m, dir)
	if err != nil {
		return nil, err
	}
	if !mounted {
		return nil, fmt.Errorf("%s: %w", dir, mount.ErrNotMounted)
	}
	return meter.FileSystem(ctx, dir)
}
