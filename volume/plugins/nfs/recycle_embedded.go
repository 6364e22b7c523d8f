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

	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/util/eintr"
	"github.com/podvol/podvol/util/justmade"
	"github.com/podvol/podvol/util/openat"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/wipe"
	"github.com/podvol/podvol/volume/recyclerpod"
)

// stillMounted says that a released volume is still mounted for a pod of this node.
func stillMounted(source, target string) error {
	return &volume.Failure{
		Cause: volume.ErrInUse, Subject: target,
		What: fmt.Sprintf("%s is still mounted at %s", source, target),
		Next: "it is emptied once its pod is torn down",
	}
}

// recycleHere empties the volume in this process.
func (r *recycling) recycleHere(ctx context.Context) error {
	if r.plugin.config.Recycle.Embedded.Action == RecycleArchive {
		if _, err := r.plugin.config.Recycle.Embedded.inShare(r.export); err != nil {
			return err
		}
	}
	return r.Run(ctx, func(ctx context.Context) error {
		return r.plugin.withExport(ctx, r.export, r.options, r.workName(), func(ctx context.Context, root *os.File) error {
			return r.Empty(ctx, root, func(ctx context.Context, options wipe.Options) error { return r.archive(ctx, root, options) })
		})
	})
}

func (r *recycling) workName() string { return "recycle-" + recyclerpod.ReleaseID(r.PV) }

// verifyUnused adds to what the role knows what this node's mount table says.
func (r *recycling) verifyUnused(ctx context.Context) error {
	if err := r.verify(ctx); err != nil {
		return err
	}
	host := r.plugin.Host
	shown := table.Of(host.GetMounter())
	all, err := shown.All()
	if err != nil {
		return volume.NothingDone(err)
	}
	const anyPod = "pod"
	pods, err := placeOf(path.Dir(path.Dir(path.Dir(host.GetPodPluginDir(anyPod, PluginName)))))
	if err != nil {
		return volume.NothingDone(fmt.Errorf("cannot match mounts to this node's pods: %w", err))
	}
	server, err := r.plugin.seenOf(r.export.server, all)
	if err != nil {
		return volume.NothingDone(err)
	}
	for _, e := range all {
		found, ok := parseTableSource(e.Source)
		if !ok || !isNFS(e) || !pods.holds(e.Target) {
			continue
		}
		if server.has(e) { // whatever name the pod's volume has for it
			found.server = r.export.server
		}
		if found.overlaps(r.export) {
			return volume.NothingDone(stillMounted(e.Source, e.Target))
		}
	}
	return nil
}

// withAdvice adds advice to an error of the server.
func withAdvice(e export, err error) error {
	advice := ""
	switch {
	case errors.Is(err, unix.EROFS):
		advice = "the server exports it read-only to this node; export it read-write"
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		advice = "the server does not let this node's root touch the files of others; export it to this node with no_root_squash, or have a pod that runs as their owner empty it"
	case errors.Is(err, unix.ESTALE):
		advice = "the server has exported another file system there, or restored it; try again"
	default:
		return err
	}
	return fmt.Errorf("%w: %s: %s", err, e, advice)
}

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
		return r.Move(ctx, from, archives, options)
	})
}

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
	if create {
		err := eintr.Do(func() error { return unix.Mkdirat(int(at.Fd()), name, 0o700) })
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return nil, &os.PathError{Op: "mkdir", Path: path.Join(at.Name(), name), Err: err}
		}
	}
	dir, err := openat.File(at, name, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
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
		return fmt.Errorf("%s has mode %04o: only its owner may write in the directories above an archive (chmod go-w)", dir.Name(), st.Mode&modeBits)
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
