package intree

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/durable"
	"github.com/podvol/podvol/util/eintr"
	"github.com/podvol/podvol/volume/internal/podmount"
)

// readyName is the tree's name of the file that says that set-up was completed.
const readyName = "ready"

// IsReady reports whether [SetReady] was called for the directory: whether there
// is a regular file "ready" in it. A link of that name is none.
func IsReady(dir string) bool {
	info, err := os.Lstat(filepath.Join(dir, readyName))
	return err == nil && info.Mode().IsRegular()
}

// SetReady makes the file for [IsReady], in the plugin's own directory for the volume
// (below GetPodPluginDir), whose missing parents it makes with mode 0750. It is
// idempotent. Unlike the tree's it returns the error: a set-up that is not known to be
// complete begins anew.
//
// First it brings all that was written to the directory's file system to disk (syncfs(2)),
// so that a power cut cannot take contents and leave the file. When it returns without
// error, the file is on disk too. The plugin must sync contents on other file systems.
func SetReady(dir string) error {
	if _, err := podmount.MakeDir(dir, 0o750); err != nil {
		return err
	}
	d, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer d.Close()
	if err := eintr.Do(func() error { return unix.Syncfs(int(d.Fd())) }); err != nil {
		return &os.PathError{Op: "syncfs", Path: dir, Err: err}
	}
	err = durable.CreateAt(d, readyName, nil, 0o640)
	if errors.Is(err, fs.ErrExist) && IsReady(dir) {
		return nil
	}
	return err
}

// ClearReady undoes [SetReady], and removes the directory if nothing else is in
// it; a missing one is success. The tree has nothing like it: the kubelet removes
// all that is a pod's, while here a plugin takes back what it has made. Call it
// before the volume goes, so that half a volume never counts as one, not even
// after a power cut: when it returns without error, the file is gone from the
// disk. It must not run beside [SetReady] for the same directory.
func ClearReady(dir string) error {
	if err := durable.Remove(filepath.Join(dir, readyName)); err != nil {
		return err
	}
	if _, err := durable.Sweep(dir); err != nil { // what a SetReady that crashed has left
		return err
	}
	err := podmount.RemoveDir(dir)
	if _, others := errors.AsType[*podmount.NotEmptyError](err); others {
		return nil
	}
	return err
}
