package csivolume

import (
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"syscall"

	"github.com/podvol/podvol/volume"
)

// CheckUnused refuses to delete or detach a volume of which the node has something left,
// staged or published. Where only the data says of which volume something is staged, and it
// is torn, that may be this volume. A directory with neither is what a crash has left before
// the driver was called, or after it has unstaged the volume.
func (d Disk) CheckUnused(s *Source) error {
	trace, err := d.StagedTrace(d.DeviceDir(s))
	if err != nil {
		return err
	}
	if trace != "" {
		return leftAt(trace)
	}
	if err := d.checkOther(s, filepath.Join(d.Dir(), LegacyDir), true); err != nil {
		return err
	}
	root := filepath.Dir(filepath.Dir(filepath.Dir(d.Dir()))) // <root>/plugins/kubernetes.io/csi
	for _, above := range []struct {
		dir, sub string
		stages   bool
	}{{filepath.Join(root, "pods"), "volumes/kubernetes.io~csi", false}, {d.BlockDir(), "", true}} {
		for dir, err := range below(above.dir, above.sub) {
			if err == nil {
				err = d.checkOther(s, dir, above.stages)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// checkOther refuses where one of the volumes in a directory is the source's, and with stages
// where nobody can tell.
func (d Disk) checkOther(s *Source, dir string, stages bool) error {
	for place, err := range below(dir, "") {
		if err != nil {
			return err
		}
		data, err := ReadData(place)
		if err != nil {
			return err
		}
		if data != nil && data.DriverName == s.Driver && data.VolumeHandle == s.Handle {
			return leftAt(place)
		}
		if data != nil || !stages {
			continue
		}
		torn, err := d.IsThere(filepath.Join(place, DataFile))
		if err != nil {
			return err
		}
		if torn {
			return fmt.Errorf("%w: %s is torn or empty, so this volume may be the one that is staged on this node; remove the file if nothing is", volume.ErrInUse, filepath.Join(place, DataFile))
		}
	}
	return nil
}

func leftAt(place string) error {
	return fmt.Errorf("%w: by %s the volume is staged or published on this node", volume.ErrInUse, place)
}

// below are the directories <dir>/*/<sub>; none without dir.
func below(dir, sub string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR) {
			yield("", err)
			return
		}
		for _, e := range entries {
			if e.IsDir() && !yield(filepath.Join(dir, e.Name(), sub), nil) {
				return
			}
		}
	}
}
