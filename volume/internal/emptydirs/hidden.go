package emptydirs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
)

// HiddenFilesError says that a mount is refused because it would hide files:
// the volume was set up on disk before.
type HiddenFilesError struct {
	Dir string
	// Medium is the medium asked for.
	Medium v1.StorageMedium
}

func (e *HiddenFilesError) Error() string {
	return fmt.Sprintf("medium %s is wanted at %s, but the volume has files on disk there, which the mount would hide; "+
		"nothing was changed: use the medium that the volume had, or tear it down and set it up again", e.Medium, e.Dir)
}

func checkNothingHidden(dir string, medium v1.StorageMedium) error {
	d, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer d.Close()
	_, err = d.Readdirnames(1)
	switch {
	case errors.Is(err, io.EOF):
		return nil
	case err != nil:
		return err
	}
	return &HiddenFilesError{Dir: dir, Medium: medium}
}
