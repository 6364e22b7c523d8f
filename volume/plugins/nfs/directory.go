package nfs

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/util/blockingcall"
	"github.com/podvol/podvol/util/pathin"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/podmount"
)

// notMade says why the directory of an export could not be made below base. The
// error of the mount that missed it is kept.
func notMade(directory, base string, err, missing error) error {
	next := ""
	switch {
	case errors.Is(err, unix.EROFS):
		next = "export " + base + " writable to this node, or make the directory on the server"
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		next = "on the server root may be another user (root_squash): let that user write in the directory above, export " + base +
			" to this node with no_root_squash, or make the directory on the server"
	}
	what := fmt.Sprintf("the directory %s seems to be missing (the mount said: %v), and making it below %s failed: %v", directory, missing, base, err)
	return &volume.Failure{Cause: ErrNotMade, Subject: directory, What: what, Next: next, Err: errors.Join(err, missing)}
}

// directoryWish is a directory that shall be made if it is missing.
type directoryWish struct {
	base export
	path string // relative to base
	mode uint32
}

// directoryFor returns the wish for a directory, if a policy allows it.
func (p InlinePolicy) directoryFor(name string, e export, mode uint32) (*directoryWish, error) {
	entry, _ := p.forServer(e.server)
	wanted, base := path.Clean(e.path), ""
	for _, dir := range entry.MakeBelow {
		if dir = path.Clean(dir); pathin.Strictly(dir, wanted) && len(dir) > len(base) {
			base = dir
		}
	}
	if base == "" {
		next := fmt.Sprintf("remove the annotation, or have the node's administrator add {server: %q, makeBelow: [%q]}", e.server, path.Dir(wanted))
		if entry.Server != "" {
			next = fmt.Sprintf("remove the annotation, or have the node's administrator add %q to that entry's makeBelow", path.Dir(wanted))
		}
		return nil, volume.NothingDone(notAllowed(fmt.Sprintf("making the directory %q", wanted), name, e.server, entry.Server, next))
	}
	rest, _ := pathin.Cut(base, wanted)
	return &directoryWish{base: export{e.server, base}, path: rest, mode: mode}, nil
}

// isMissing reports whether a mount failed as it does where its directory is not
// there or not finished, and left nothing. NFSv3 servers deny access to missing
// directories.
func isMissing(err error) bool {
	return err != nil && !volume.IsUncertain(err) &&
		(errors.Is(err, mount.ErrNoSuchExport) || errors.Is(err, mount.ErrAccessDenied) || errors.Is(err, errUnfinished))
}

var errUnfinished = errors.New("somebody's making of it was interrupted, so that it lacks its mode")

// refuseUnfinished undoes a new mount at dir that seems to show a directory that
// did not get its mode.
func (m *mounter) refuseUnfinished(ctx context.Context, dir string) error {
	if m.directory.mode&0o1777 == unfinished {
		return nil
	}
	found := make(chan fs.FileMode, 1)
	err := new(blockingcall.Group[string]).Do(ctx, dir, func() error {
		info, err := os.Stat(dir)
		if err == nil {
			found <- info.Mode()
		}
		return err
	})
	if err == nil {
		if mode := <-found; mode.Perm() != 0o700 || mode&fs.ModeSticky == 0 {
			return nil
		}
		err = errUnfinished
	}
	if left := podmount.TearDown(ctx, m.Host.GetMounter(), dir, m.plugin.ladder()); left != nil {
		return errors.Join(err, left)
	}
	return volume.NothingDone(err)
}

// makeAndMount makes the directory that a mount has missed, and mounts again. Of
// several volumes with one directory the first makes it.
func (m *mounter) makeAndMount(ctx context.Context, request mount.Request, args volume.MounterArgs, missing error) error {
	unlock, free := m.plugin.making.TryLock(request.Source)
	if !free {
		var err error
		if unlock, err = m.plugin.making.Lock(ctx, request.Source); err != nil {
			return m.notMade(&blockingcall.AbandonedError{Earlier: true, Err: err}, missing)
		}
	}
	defer unlock()
	if !free { // it may be there by now
		if missing = m.mount(ctx, request); !isMissing(missing) {
			return missing
		}
	}
	if args.Progress != nil {
		args.Progress(volume.Progress{Doing: "making the directory " + m.export.String()})
	}
	wish := *m.directory
	options := slices.DeleteFunc(slices.Clone(m.options), func(o string) bool { return o == "ro" })
	err := m.plugin.withExport(ctx, wish.base, options, wish.workName(options), func(ctx context.Context, root *os.File) error {
		return makeBelow(root, wish.path, wish.mode)
	})
	if err != nil {
		return m.notMade(err, missing)
	}
	// It may be another directory by now; only ours gets the mode.
	_, err = m.plugin.setUp(ctx, m.export, request, m.isMounted)
	return err
}

// notMade is marked unless a mount of the agent's own may be left.
func (m *mounter) notMade(err, missing error) error {
	failed := notMade(m.export.String(), m.directory.base.String(), err, missing)
	if leftWork(err) {
		return failed
	}
	return volume.NothingDone(failed)
}

// workName is the same for all that can share one mount of the agent's own.
func (w directoryWish) workName(options []string) string {
	sum := sha256.Sum256([]byte(w.base.normal().String() + "\n" + strings.Join(options, ",")))
	return "make-" + hex.EncodeToString(sum[:16])
}
