package nfs

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/util/eintr"
	"github.com/podvol/podvol/util/justmade"
	"github.com/podvol/podvol/volume/internal/wipe"
	"github.com/podvol/podvol/volume/recyclerpod"
)

// archive moves the volume's content into the archive, through a mount of the
// share that has both.
func (r *recycling) archive(ctx context.Context, root *os.File, options wipe.Options) error {
	c := r.plugin.config.Recycle.Embedded
	rest, err := c.inShare(r.export)
	if err != nil {
		return err
	}
	share := export{server: r.export.server, path: c.ArchiveShare}
	return r.plugin.withExport(ctx, share, r.options, r.workName()+"-archive", func(ctx context.Context, base *os.File) error {
		from, err := descend(base, rest, false)
		if err != nil {
			return withAdvice(share, err)
		}
		defer from.Close()
		if err := sameDirectory(root, from); err != nil {
			return withAdvice(share, err)
		}
		archives, err := descend(base, c.ArchiveDir, true)
		if err != nil {
			return withAdvice(share, err)
		}
		defer archives.Close()
		return r.moveInto(ctx, from, archives, options)
	})
}

func (r *recycling) moveInto(ctx context.Context, from, archives *os.File, options wipe.Options) error {
	if err := r.verifyUnused(ctx); err != nil {
		return err
	}
	r.record(v1.EventTypeNormal, fmt.Sprintf("moving what is in %s to %s", r.export, archives.Name()))
	archive, err := wipe.Archive(ctx, from, archives, nameWithin(r.pv.Name, maxArchiveName)+"-"+recyclerpod.ReleaseID(r.pv), options)
	if archive != "" {
		r.record(v1.EventTypeNormal, fmt.Sprintf("%s has what was in %s", path.Join(archives.Name(), archive), r.export))
	}
	return r.finished("moved", options.Count, withAdvice(r.export, err))
}

// maxArchiveName leaves room for additions in a name of at most 255 bytes.
const maxArchiveName = 200

// descend opens a directory below another one, and makes it where it is missing
// if it may. Nothing on the way may be a link: a user who can write there must
// not choose where an archive is.
func descend(base *os.File, rel string, create bool) (*os.File, error) {
	at := base
	for element := range strings.SplitSeq(path.Clean(rel), "/") {
		dir, err := openElement(at, element, create)
		if at != base {
			at.Close()
		}
		if err != nil {
			return nil, err
		}
		at = dir
	}
	return at, nil
}

func openElement(at *os.File, name string, create bool) (*os.File, error) {
	where, dirfd := path.Join(at.Name(), name), int(at.Fd())
	if create {
		err := eintr.Do(func() error { return unix.Mkdirat(dirfd, name, 0o700) })
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return nil, &os.PathError{Op: "mkdir", Path: where, Err: err}
		}
	}
	fd, err := eintr.Get(func() (int, error) {
		return unix.Openat(dirfd, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: where, Err: err}
	}
	dir := os.NewFile(uintptr(fd), where)
	if create {
		if err := keptFromOthers(at, dir); err != nil {
			dir.Close()
			return nil, err
		}
	}
	return dir, nil
}

// keptFromOthers refuses a directory above archives in which others could put
// something in place of them.
func keptFromOthers(above, dir *os.File) error {
	var st unix.Stat_t
	if err := eintr.Do(func() error { return unix.Fstat(int(dir.Fd()), &st) }); err != nil {
		return &os.PathError{Op: "stat", Path: dir.Name(), Err: err}
	}
	if st.Mode&0o022 != 0 {
		return fmt.Errorf("%s has mode %04o: nobody but its owner may write in the directories above an archive (chmod go-w)", dir.Name(), st.Mode&modeBits)
	}
	if st.Uid == 0 {
		return nil
	}
	ours, err := justmade.Owns(int(above.Fd()), st.Uid)
	if err == nil && !ours {
		err = fmt.Errorf("%s belongs to user %d: the directories above an archive must be root's, or those of the user that the server takes this node's root for", dir.Name(), st.Uid)
	}
	return err
}

// sameDirectory refuses to go on with a directory that is not the volume's root:
// the server may export something else under the volume's path. Device and inode
// numbers do not tell, since each export may have an fsid of its own; so it looks
// for a new directory, made in one, in the other.
func sameDirectory(root, other *os.File) error {
	name := ".podvol-recycle-" + rand.Text()
	in, seen := int(root.Fd()), int(other.Fd())
	if err := eintr.Do(func() error { return unix.Mkdirat(in, name, 0o700) }); err != nil {
		return &os.PathError{Op: "mkdir", Path: path.Join(root.Name(), name), Err: err}
	}
	var st unix.Stat_t
	err := eintr.Do(func() error { return unix.Fstatat(seen, name, &st, unix.AT_SYMLINK_NOFOLLOW) })
	if removed := eintr.Do(func() error { return unix.Unlinkat(in, name, unix.AT_REMOVEDIR) }); removed != nil {
		return &os.PathError{Op: "rmdir", Path: path.Join(root.Name(), name), Err: removed}
	}
	switch {
	case errors.Is(err, unix.ENOENT):
		return fmt.Errorf("%s and %s are not the same directory: the server exports the volume from elsewhere, so that it cannot be archived there", root.Name(), other.Name())
	case err != nil:
		return &os.PathError{Op: "stat", Path: path.Join(other.Name(), name), Err: err}
	}
	return nil
}
