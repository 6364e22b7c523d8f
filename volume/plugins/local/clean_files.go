package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/util/eintr"
	"github.com/podvol/podvol/util/openat"
	"github.com/podvol/podvol/util/pathin"
	"github.com/podvol/podvol/util/removetree"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/wipe"
	"github.com/podvol/podvol/volume/reclaim"
)

// lostFound is the directory that e2fsck(8) puts into what it finds; mkfs.ext4
// makes it in advance, with the first inode that is free (EXT4_GOOD_OLD_FIRST_INO).
const (
	lostFound      = "lost+found"
	lostFoundInode = 11
)

// cleanFiles empties the file system that is open as dir, mounted as e.
func (c *cleaning) cleanFiles(ctx context.Context, dir *os.File, e mount.Entry) error {
	if e.ReadOnly() {
		return volume.NothingDone(fmt.Errorf("%s is mounted read-only at %s; mount it for writing to have it cleaned: %w", e.Source, e.Target, unix.EROFS))
	}
	if err := c.unused(e); err != nil {
		return volume.NothingDone(err)
	}
	found, err := wipe.Survey(ctx, dir)
	switch {
	case err != nil:
		return volume.NothingDone(err)
	case c.plugin.config.Clean.Action != CleanDelete:
		return volume.NothingDone(&reclaim.DryRunError{
			Source: e.Source + " at " + c.path, Entries: found.Entries, Bytes: found.Bytes, First: found.First, Mounts: found.Mounts,
			Do: fmt.Sprintf("to have released volumes emptied, set local.Config.Clean.Action to %s", CleanDelete),
		})
	case found.Mounts > 0: // one that the mount table does not have here
		return volume.NothingDone(&removetree.MountError{Path: c.path})
	}
	if err := c.verify(ctx); err != nil { // the survey may have taken long
		return err
	}
	options := wipe.Options{Keep: keepIn(dir, e), MayGoOn: func(ctx context.Context) error {
		if err := c.verify(ctx); err != nil {
			return err
		}
		return c.unused(e)
	}}
	if err := wipe.Empty(ctx, dir, options); err != nil {
		return withAdvice(err)
	}
	if left, err := wipe.Survey(ctx, dir); err != nil || left.Entries+left.Mounts > kept(options) {
		return errors.Join(err, fmt.Errorf("%d entries are in the volume although it was emptied; another process writes to it", left.Entries+left.Mounts))
	}
	return syncFileSystem(dir)
}

func kept(options wipe.Options) int64 {
	if options.Keep == "" {
		return 0
	}
	return 1
}

// unused makes sure that the volume is where it was, and that nothing else on
// this node shows its content: no pod's bind, no mount below it, no other mount
// of its directory. A mount of the whole file system of which the volume is a
// directory is none of these, unless it is a volume's itself.
func (c *cleaning) unused(e mount.Entry) error {
	top, mounted, err := c.table.At(c.path)
	if err != nil {
		return err
	}
	if !mounted || top.ID != e.ID {
		return fmt.Errorf("%s is not mounted at %s any more", e.Source, c.path)
	}
	mounts, err := c.table.ByDevice(e.Device)
	if err != nil {
		return err
	}
	root := filepath.Dir(filepath.Dir(c.plugin.Host.GetPluginDir("any")))
	if real, err := filepath.EvalSymlinks(root); err == nil {
		root = real
	}
	for _, other := range mounts {
		ours := pathin.In(root, other.Target) && other.Target != "/"
		if other.ID != e.ID && (pathin.In(e.Root, other.Root) || ours && pathin.In(other.Root, e.Root)) {
			return stillMounted(other.Source, other.Target)
		}
	}
	nested, err := mount.Below(c.table, c.path)
	if err != nil {
		return err
	}
	if len(nested) > 0 {
		return &removetree.MountError{Path: nested[0].Target}
	}
	return nil
}

// keepIn returns the name of the directory that belongs to the file system and
// not to the volume's users.
func keepIn(dir *os.File, e mount.Entry) string {
	if !slices.Contains([]string{"ext2", "ext3", "ext4"}, e.FSType) || e.Root != "/" {
		return ""
	}
	var st unix.Stat_t
	err := eintr.Do(func() error { return unix.Fstatat(int(dir.Fd()), lostFound, &st, unix.AT_SYMLINK_NOFOLLOW) })
	if err != nil || st.Ino != lostFoundInode || st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return ""
	}
	return lostFound
}

// syncFileSystem makes sure that deleted files do not come back when the machine
// loses power after the PersistentVolume has gone (syncfs(2)).
func syncFileSystem(dir *os.File) error {
	readable, err := openat.Dir(dir, ".")
	if err != nil {
		return err
	}
	defer readable.Close()
	if err := eintr.Do(func() error { return unix.Syncfs(int(readable.Fd())) }); err != nil {
		return &os.PathError{Op: "syncfs", Path: dir.Name(), Err: err}
	}
	return nil
}

func withAdvice(err error) error {
	if errors.Is(err, unix.EPERM) {
		return fmt.Errorf("%w: the file may be immutable or only to be appended to (lsattr); allow its deletion (chattr -ia), and it is tried again", err)
	}
	return err
}
