package nfs

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/volume/internal/podmount"
	"github.com/podvol/podvol/volume/lazyunmount"
)

// workDir is where the plugin mounts exports for itself, below its own
// directory and so in no pod.
const workDir = "work"

// GetWorkDir implements [volume.WorkMountPlugin]. It asks InitHost for the host: a
// manager's sweep may run while another manager initialises the shared plugin.
func (p *plugin) GetWorkDir() string {
	return filepath.Join(p.InitHost().GetPluginDir(PluginName), workDir)
}

// SweepWork implements [volume.WorkMountPlugin]. It works on all leftovers at the
// same time, by the ladder: a dead server does not delay another's.
func (p *plugin) SweepWork(ctx context.Context) error {
	names, err := p.workNames()
	if err != nil {
		return err
	}
	errs := make([]error, len(names))
	var all sync.WaitGroup
	for i, name := range names {
		unlock, free := p.working.TryLock(name)
		if !free {
			continue // a process works there, or clears it up already
		}
		all.Go(func() {
			defer unlock()
			errs[i] = p.removeWork(ctx, filepath.Join(p.GetWorkDir(), name))
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// removeWork unmounts a place below the work directory and removes it, and the
// work directory if it is empty then. Mounts that the kernel has made below it by
// itself, for other file systems of the server, go first. If one had to be
// detached, the error is a *[lazyunmount.Error], and nothing is left to do.
func (p *plugin) removeWork(ctx context.Context, dir string) error {
	if err := p.unmountBelow(ctx, dir); err != nil {
		return err
	}
	err := podmount.TearDown(ctx, p.Host.GetMounter(), dir, p.ladder())
	_, detached := errors.AsType[*lazyunmount.Error](err)
	if detached {
		err = errors.Join(err, podmount.RemoveDir(dir))
	}
	if err == nil || detached {
		p.removeEmptyWorkDir()
	}
	return err
}

// unmountBelow unmounts all mounts below a work directory, deepest first.
func (p *plugin) unmountBelow(ctx context.Context, dir string) error {
	mounts := table.Of(p.Host.GetMounter())
	// The directory itself is not looked at, since its server may not answer.
	work, err := placeOf(filepath.Dir(dir))
	if err != nil {
		return err
	}
	entries, err := mount.Below(mounts, filepath.Join(work.real, filepath.Base(dir)))
	for _, e := range slices.Backward(entries) {
		if _, unmountErr := mount.Unmount(ctx, p.Host.GetMounter(), e.Target, p.ladder()); !errors.Is(unmountErr, mount.ErrNotMounted) {
			err = errors.Join(err, unmountErr)
		}
	}
	return err
}

// removeEmptyWorkDir removes the work directory if nothing is in it; it may be in
// use, or just being made. Those above it are shared with other plugins, and one
// that makes its own there would miss them.
func (p *plugin) removeEmptyWorkDir() { _ = podmount.RemoveDir(p.GetWorkDir()) }

// workNames are the names in the work directory, which is this node's own.
func (p *plugin) workNames() (names []string, err error) {
	entries, err := os.ReadDir(p.GetWorkDir())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, err
}
