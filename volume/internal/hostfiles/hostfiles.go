// Package hostfiles reaches the host's files for hostPath and local volumes:
// through the host's role, or in the process's own file system, where a path
// may lie on a server that does not answer.
package hostfiles

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/blockingcall"
	"github.com/podvol/podvol/util/eintr"
	"github.com/podvol/podvol/util/justmade"
	"github.com/podvol/podvol/util/openat"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/fsgroup"
)

// Own is the process's own file system as a [volume.HostFiles]. Each call ends
// with its context, and at most one is outstanding for each path. The zero
// value is ready; it must not be copied after first use. Safe for concurrent
// use.
type Own struct {
	calls blockingcall.Group[string]
	owner fsgroup.Setter
	// made is called between the making of a directory and its opening, by tests.
	made func(path string)
}

// Of returns the host's role, or o where the host has none.
func (o *Own) Of(host volume.VolumeHost) volume.HostFiles {
	if files, err := volume.Role[volume.HostFiles](host); err == nil {
		return files
	}
	return o
}

// OwnerOf returns the role that gives the host's trees to groups: o, unless the
// host has a role for its files; then that role, or a *[volume.MissingRoleError]
// where it cannot.
func (o *Own) OwnerOf(host volume.VolumeHost) (volume.HostOwnership, error) {
	owner, err := volume.Role[volume.HostOwnership](host)
	if err == nil {
		return owner, nil
	}
	if o.Of(host) == volume.HostFiles(o) {
		return o, nil
	}
	return nil, err
}

// SetOwnership implements [volume.HostOwnership].
func (o *Own) SetOwnership(ctx context.Context, path string, attributes volume.Attributes, args volume.MounterArgs) error {
	return o.owner.Set(ctx, path, attributes, args)
}

// Stat implements [volume.HostFiles].
func (o *Own) Stat(ctx context.Context, path string) (fs.FileInfo, error) {
	found := make(chan fs.FileInfo, 1)
	err := o.calls.Do(ctx, path, func() error {
		info, err := os.Stat(path)
		found <- info
		return err
	})
	if err != nil {
		return nil, err
	}
	return <-found, nil
}

// MakeDir implements [volume.HostFiles]. A directory that exists is success
// and stays as it is, also one that appears in place of the one just made.
func (o *Own) MakeDir(ctx context.Context, path string, perm fs.FileMode) error {
	return o.calls.Do(ctx, path, func() error { return o.makeDirs(filepath.Clean(path), perm) })
}

func (o *Own) makeDirs(path string, perm fs.FileMode) error {
	err := o.makeDir(path, perm)
	if errors.Is(err, fs.ErrNotExist) && filepath.Dir(path) != path {
		if err := o.makeDirs(filepath.Dir(path), perm); err != nil {
			return err
		}
		err = o.makeDir(path, perm)
	}
	if !errors.Is(err, fs.ErrExist) && !errors.Is(err, justmade.ErrOther) {
		return err
	}
	info, statErr := os.Stat(path)
	if statErr != nil {
		return statErr
	}
	if !info.IsDir() {
		return &fs.PathError{Op: "mkdir", Path: path, Err: unix.ENOTDIR}
	}
	return nil
}

// makeDir gives the new directory its mode whatever the umask. Another user who
// may write in the one above can put another in its place meanwhile, which stays
// as it is: the mode is changed by descriptor, and only of a directory that looks
// as just made.
func (o *Own) makeDir(path string, perm fs.FileMode) error {
	parent, err := os.OpenFile(filepath.Dir(path), unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer parent.Close()
	at, name := int(parent.Fd()), filepath.Base(path)
	if err := eintr.Do(func() error { return unix.Mkdirat(at, name, uint32(perm.Perm())) }); err != nil {
		return &fs.PathError{Op: "mkdir", Path: path, Err: err}
	}
	if o.made != nil {
		o.made(path)
	}
	d, err := openat.Dir(parent, name)
	if err != nil {
		return err
	}
	defer d.Close()
	if err := justmade.Check(at, int(d.Fd()), uint32(perm.Perm())); err != nil {
		return fmt.Errorf("%s was made, and not given its mode: %w", path, err)
	}
	return d.Chmod(perm)
}

// MakeFile implements [volume.HostFiles]. A file that exists is an error that
// matches [fs.ErrExist], and stays as it is.
func (o *Own) MakeFile(ctx context.Context, path string, perm fs.FileMode) error {
	return o.calls.Do(ctx, path, func() error {
		f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, perm)
		if err != nil {
			return err
		}
		return errors.Join(f.Chmod(perm), f.Close())
	})
}
