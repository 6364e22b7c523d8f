package hostpath

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/eintr"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/wipe"
	"github.com/podvol/podvol/volume/recyclerpod"
)

// archive moves the content of the volume, which lies at path, into the archive.
func (r *recycling) archive(ctx context.Context, root *os.File, path string, options wipe.Options) error {
	archives, err := r.openArchive(path)
	if err != nil {
		return volume.NothingDone(err)
	}
	defer archives.Close()
	r.events.normal("moving what is in %s to %s", r.path, r.config.Archive)
	archive, err := wipe.Archive(ctx, root, archives, archiveName(r.pv.Name, recyclerpod.ReleaseID(r.pv)), options)
	if archive != "" {
		r.events.normal("%s has what was in %s", filepath.Join(r.config.Archive, archive), r.path)
	}
	return r.finished("moved", err)
}

// archiveName leaves room for additions in a name of at most 255 bytes.
func archiveName(pv, release string) string {
	const most = 200
	return strings.TrimRight(pv[:min(len(pv), most)], ".-") + "-" + release
}

// openArchive opens the directory for archives, if it is safe from others and
// apart from the volume.
func (r *recycling) openArchive(volumePath string) (*os.File, error) {
	err := os.Mkdir(r.config.Archive, 0o700)
	if err != nil && !errors.Is(err, os.ErrExist) {
		return nil, err
	}
	dir, err := os.OpenFile(r.config.Archive, unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	if err := r.checkArchive(dir, volumePath); err != nil {
		dir.Close()
		return nil, err
	}
	return dir, nil
}

func (r *recycling) checkArchive(dir *os.File, volumePath string) error {
	path, err := pathOf(dir)
	if err != nil {
		return err
	}
	if overlap(path, volumePath) {
		return volume.Invalid("hostPath.path", "%q and the archive %q lie within one another, so that the next claim would see what is archived", volumePath, path)
	}
	var st unix.Stat_t
	if err := eintr.Do(func() error { return unix.Fstat(int(dir.Fd()), &st) }); err != nil {
		return &os.PathError{Op: "stat", Path: path, Err: err}
	}
	switch {
	case st.Mode&0o022 != 0:
		return fmt.Errorf("%s has mode %04o: nobody but its owner may write in the directory for archives (chmod go-w)", path, st.Mode&0o7777)
	case st.Uid != 0 && st.Uid != uint32(unix.Geteuid()):
		return fmt.Errorf("%s belongs to user %d: the directory for archives must be root's or the agent's own", path, st.Uid)
	}
	return nil
}
