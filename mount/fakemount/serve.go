package fakemount

import (
	"cmp"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/internal/failure"
	"github.com/podvol/podvol/util/eintr"
)

// Serve makes later mounts of source show dir, which must exist: the content of
// an export or a device.
//
//   - A mount of a directory below a network source shows that directory of dir:
//     "server:/export/sub" is below "server:/export". Of several served sources
//     the longest counts.
//   - If dir has no such directory, or a link leads to it, the mount fails with
//     [mount.ErrNoSuchExport], as on a server.
//   - Serve has no effect on binds and file systems that begin empty.
func (f *Mounter) Serve(source, dir string) {
	if real, err := filepath.EvalSymlinks(dir); err == nil {
		dir = real
	}
	f.ns.mu.Lock()
	defer f.ns.mu.Unlock()
	f.ns.served[source] = struct{}{}
	f.ns.serve(source, dir)
}

// Content returns the content of a mount: a directory that exists and
// outlives the mount. Its error is the mount's error. One goroutine at a time
// calls it, for each new mount of a file system, but not for a further mount of
// one that the kernel would share. It must not call the fake or change the
// request.
type Content func(mount.Request) (dir string, err error)

// ServeType makes later mounts of a type show what content says of their request,
// whatever their source was served: how a file system looks that the fake does
// not know. A nil content ends that. Each mount of a type that the fake knows to
// begin empty, as overlay, is a file system of its own; others are shared by
// source. Types that cannot be written to on Linux (squashfs, erofs, iso9660) are
// read-only with any content. Binds are not concerned.
//
// An overlay whose lower directory holds few files, for which a copy does:
//
//	f.ServeType("overlay", func(r mount.Request) (string, error) {
//		lower, upper := …                       // of r.Options
//		return upper, os.CopyFS(upper, os.DirFS(lower)) // where upper is empty
//	})
func (f *Mounter) ServeType(fstype string, content Content) {
	f.ns.mu.Lock()
	defer f.ns.mu.Unlock()
	if content == nil {
		delete(f.ns.types, fstype)
		return
	}
	f.ns.types[fstype] = content
}

// fill gives a new file system what it shows.
func (ns *namespace) fill(s *fakeSuper, content Content, r mount.Request) error {
	dir, err := content(r)
	if err == nil {
		dir, err = filepath.EvalSymlinks(dir)
	}
	if err != nil {
		return fmt.Errorf("what the fake shows of a %s: %w", s.fstype, err)
	}
	ns.rename(&s.dir, dir)
	return nil
}

// contentOf returns the directory that mounts of source show.
func (ns *namespace) contentOf(source string) (string, error) {
	if dir, ok := ns.sources[source]; ok {
		return dir, nil
	}
	if export, below, ok := ns.exportOf(source); ok {
		return directoryBelow(ns.sources[export], below)
	}
	dir, err := ns.scratchName("content")
	if err != nil {
		return "", err
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		return "", err
	}
	ns.serve(source, dir)
	return dir, nil
}

// exportOf finds the longest network source that was served and holds this one.
func (ns *namespace) exportOf(source string) (export, below string, ok bool) {
	for served := range ns.served {
		if !strings.Contains(served, ":/") || len(served) < len(export) {
			continue
		}
		rest, holds := strings.CutPrefix(source, strings.TrimRight(served, "/")+"/")
		if holds {
			export, below, ok = served, cmp.Or(strings.Trim(rest, "/"), "."), true
		}
	}
	return export, below, ok
}

// directoryBelow is what a server does with the path of a mount: it follows no
// links, and never leaves what it exports.
func directoryBelow(dir, below string) (string, error) {
	root, err := eintr.Get(func() (int, error) { return unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0) })
	if err != nil {
		return "", &os.PathError{Op: "open", Path: dir, Err: err}
	}
	defer unix.Close(root)
	how := &unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS}
	err = eintr.Do(func() error {
		found, err := unix.Openat2(root, below, how)
		if err == nil {
			unix.Close(found)
		}
		return err
	})
	if err != nil {
		return "", failure.Of(mount.ErrNoSuchExport, unix.ENOENT)
	}
	return path.Join(dir, below), nil
}
