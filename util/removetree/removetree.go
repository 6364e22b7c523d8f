// Package removetree deletes directory trees. It is the only recursive delete
// in this module, and the most careful one:
//
//   - It works by file descriptor. A user that swaps a directory for a symbolic
//     link while it runs cannot lead it anywhere else; links are removed and
//     never followed.
//   - It never crosses a mount, not even a bind mount of the same file system:
//     a forgotten mount below a directory costs an error, not the data of the
//     volume (kubernetes issues 72257, 37698, 12155).
//   - Neither the depth of the tree nor the number of its files costs file
//     descriptors, stack or long paths.
//
// Like every package below util, it carries no promise of compatibility.
package removetree

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/podvol/podvol/util/openat"
)

// MountError says that something is mounted in the tree. Nothing at or beneath
// Path was deleted; of the rest of the tree, something may have been.
type MountError struct {
	// Path is the mount point.
	Path string
}

func (e *MountError) Error() string {
	return fmt.Sprintf("%s is a mount point and is not deleted; unmount it first (findmnt -R %[1]s), then try again", e.Path)
}

// OpenError says that the file system refuses to delete an entry since something
// uses it, though nothing is mounted there. It matches the errno. Nothing at or
// beneath Path was deleted; of the rest of the tree, something may have been.
type OpenError struct {
	// Path is the entry.
	Path string
	Err  error
}

func (e *OpenError) Error() string {
	return fmt.Sprintf("%s is not deleted: %v; something has it open, and NFS keeps a deleted file as .nfs… until it is closed: end the processes that use it (fuser -v %[1]s), then try again", e.Path, e.Err)
}

// Unwrap returns the errno.
func (e *OpenError) Unwrap() error { return e.Err }

// Remove removes the file, link or directory tree with this name in the directory parent.
// A missing one, or a missing parent, is success. Links in the path of parent are followed.
// Directories without permissions are opened up if the caller owns them.
//
// Remove stops at the first failure: a *[MountError], an *[OpenError], the cause of ctx's
// end, or a *[fs.PathError]. A later call goes on. ctx is checked between system calls and
// cannot interrupt one. Entries that are added meanwhile are deleted too, within reason.
func Remove(ctx context.Context, parent, name string) error {
	dir, err := openat.Followed(parent)
	if errors.Is(err, fs.ErrNotExist) {
		return checkName(name)
	}
	if err != nil {
		return err
	}
	defer dir.Close()
	return RemoveAt(ctx, dir, name)
}

// RemoveAt is [Remove] in a directory that is already open, however it can be
// reached by now. The name under which it was opened appears in errors only.
func RemoveAt(ctx context.Context, parent *os.File, name string) error {
	return removeAt(ctx, parent, name, kernel{openat2: true, mountID: true})
}

func removeAt(ctx context.Context, parent *os.File, name string, k kernel) error {
	if err := checkName(name); err != nil {
		return err
	}
	fd := int(parent.Fd())
	id, err := k.identify(fd)
	if err != nil {
		return &fs.PathError{Op: "statx", Path: parent.Name(), Err: err}
	}
	w := &walk{
		kernel: k,
		stack:  []frame{{name: parent.Name(), fd: fd, id: id, pending: []string{name}}},
	}
	defer w.close()
	return w.run(ctx)
}

func checkName(name string) error {
	if name == "" || name == "." || name == ".." || strings.ContainsAny(name, "/\x00") {
		return &fs.PathError{Op: "remove", Path: name, Err: errors.New("this is not the name of a directory entry")}
	}
	return nil
}

func joinPath(frames []frame, name string) string {
	elements := make([]string, 0, len(frames)+1)
	for _, f := range frames {
		elements = append(elements, f.name)
	}
	return filepath.Join(append(elements, name)...)
}
