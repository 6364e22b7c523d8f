package intree

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

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

// SetReady makes the file for [IsReady], in the plugin's own directory for the
// volume (below GetPodPluginDir), whose missing parents it makes with mode 0750.
// Unlike the tree's it returns the error, which it must: a set-up that is not
// known to be complete begins anew. It is idempotent. It syncs nothing: after a
// power cut either may be gone, the mark or the contents that it stands for.
func SetReady(dir string) error {
	if _, err := podmount.MakeDir(dir, 0o750); err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(dir, readyName), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o640)
	if errors.Is(err, fs.ErrExist) && IsReady(dir) {
		return nil
	}
	if err != nil {
		return err
	}
	return f.Close()
}

// ClearReady undoes [SetReady], and removes the directory if nothing else is in
// it; what is not there is success. The tree has nothing like it: the kubelet
// removes all that is a pod's, while here a plugin takes back what it has made.
// Call it before the volume goes, so that half a volume never counts as one.
func ClearReady(dir string) error {
	if err := podmount.Unlink(filepath.Join(dir, readyName)); err != nil {
		return err
	}
	err := podmount.RemoveDir(dir)
	if _, others := errors.AsType[*podmount.NotEmptyError](err); others {
		return nil
	}
	return err
}
