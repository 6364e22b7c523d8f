package nfs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/util/blockingcall"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/podmount"
	"github.com/podvol/podvol/volume/lazyunmount"
)

// workGrace is how much longer than its context a caller waits, so that what
// notices the end at once leaves no mount behind.
const workGrace = time.Second

// workMount is an export that the agent mounts for itself, to make or remove
// directories of it.
type workMount struct {
	plugin  *plugin
	export  export
	options []string
	dir     string
}

// withExport mounts an export for the agent itself, nosuid, nodev and noexec, and calls f
// with its root directory; then it unmounts it. No pod ever sees that mount.
//
//   - There is one at a time for each name, which becomes a directory's: a mount that a
//     crash left there is unmounted first.
//   - f sees nothing but this export: the mount table is checked before the root is opened,
//     and for the opened root.
//   - Root is readable if the server lets the agent list it, and else opened with O_PATH;
//     it is closed when f has returned. Its name is the export's, for errors.
//   - The wait ends some seconds after ctx at the latest, with a
//     *[blockingcall.AbandonedError] that matches the cause of ctx's end. f may still run,
//     on a server that does not answer: it must not write to the caller's variables, and
//     should look at ctx between its steps. Its mount is forced away after ForceAfter,
//     which ends its calls, and detached after LazyAfter.
//   - The error is f's own, joined by the unmount's.
func (p *plugin) withExport(ctx context.Context, e export, options []string, name string, f func(ctx context.Context, root *os.File) error) error {
	if err := volume.CheckPathSegment("name of a work mount", name); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return volume.NothingDone(&blockingcall.AbandonedError{Err: context.Cause(ctx)})
	}
	unlock, err := p.working.Lock(ctx, name)
	if err != nil {
		return volume.NothingDone(&blockingcall.AbandonedError{Earlier: true, Err: err})
	}
	w := &workMount{plugin: p, export: e, options: withoutRights(options), dir: filepath.Join(p.GetWorkDir(), name)}
	done := make(chan error, 1)
	go func() {
		defer unlock()
		w.run(ctx, f, done)
	}()
	return awaitWork(ctx, done)
}

// awaitWork waits for done, and a little longer than ctx.
func awaitWork(ctx context.Context, done <-chan error) error {
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	patience := time.NewTimer(workGrace)
	defer patience.Stop()
	select {
	case err := <-done:
		return err
	case <-patience.C:
		return &blockingcall.AbandonedError{Started: true, Err: context.Cause(ctx)}
	}
}

// withoutRights adds what keeps the files of a server from meaning anything to
// this node.
func withoutRights(options []string) []string {
	return lastOptions(options, "nosuid", "nodev", "noexec")
}

// run mounts, calls f and unmounts, tells done the result, and returns when f
// has returned too.
func (w *workMount) run(ctx context.Context, f func(context.Context, *os.File) error, done chan<- error) {
	if err := w.mount(ctx); err != nil {
		done <- err
		return
	}
	used := make(chan error, 1)
	go func() { used <- w.use(ctx, f) }()
	err, returned := awaitUse(ctx, used)
	done <- errors.Join(err, w.unmount(ctx))
	if !returned {
		<-used
	}
}

// awaitUse waits for f, which has until shortly after ctx.
func awaitUse(ctx context.Context, used <-chan error) (err error, returned bool) {
	select {
	case err := <-used:
		return err, true
	case <-ctx.Done():
	}
	patience := time.NewTimer(workGrace / 2)
	defer patience.Stop()
	select {
	case err := <-used:
		return err, true
	case <-patience.C:
		return &blockingcall.AbandonedError{Started: true, Err: context.Cause(ctx)}, false
	}
}

// mount mounts the export in place of whatever a crash left there.
func (w *workMount) mount(ctx context.Context) error {
	err := w.plugin.removeWork(ctx, w.dir)
	if _, gone := errors.AsType[*lazyunmount.Error](err); err != nil && !gone {
		return volume.NothingDone(fmt.Errorf("unmounting what an earlier run has left: %w", err))
	}
	request := mount.Request{Source: w.export.String(), Target: w.dir, FSType: fsType, Options: w.options}
	never := func(mount.Entry) bool { return false }
	_, err = w.plugin.setUp(ctx, w.export, request, never)
	if err != nil {
		w.plugin.removeEmptyWorkDir()
	}
	return err
}

// use opens the root of the mount, if it is the export's, and calls f.
func (w *workMount) use(ctx context.Context, f func(context.Context, *os.File) error) error {
	mounts := table.Of(w.plugin.Host.GetMounter())
	found, mounted, err := mounts.At(w.dir)
	if err != nil {
		return err
	}
	if !mounted || !w.isExport(found) {
		return w.changed(found)
	}
	root, err := openRoot(w.dir)
	if err != nil {
		return err
	}
	defer root.Close()
	// The name may lead elsewhere by now.
	if found, err = table.Holding(mounts, root); err != nil {
		return err
	}
	if !w.isExport(found) {
		return w.changed(found)
	}
	shown, err := named(root, w.export)
	if err != nil {
		return err
	}
	defer shown.Close()
	return f(ctx, shown)
}

// named is another descriptor of a directory, so that errors name files in it as
// the server does, and not by the mount point.
func named(dir *os.File, e export) (*os.File, error) {
	fd, err := unix.FcntlInt(dir.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("fcntl", err)
	}
	return os.NewFile(uintptr(fd), e.String()), nil
}

// openRoot opens a directory for reading, if the server allows that, else just
// to find others from there.
func openRoot(dir string) (*os.File, error) {
	root, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY, 0)
	if errors.Is(err, unix.EACCES) {
		root, err = os.OpenFile(dir, unix.O_PATH|unix.O_DIRECTORY, 0)
	}
	return root, err
}

func (w *workMount) isExport(e mount.Entry) bool {
	found, ok := parseTableSource(e.Source)
	return ok && isNFS(e) && found.same(w.export) && (e.Root == "" || e.Root == "/")
}

func (w *workMount) changed(found mount.Entry) error {
	return fmt.Errorf("%s was mounted at %s, where the mount table now shows %q: who else mounts or unmounts there?", w.export, w.dir, found.Source)
}

// unmount works although ctx may have ended, for as long as the ladder takes.
func (w *workMount) unmount(ctx context.Context) error {
	ladder := w.plugin.ladder()
	patience := max(ladder.ForceAfter, ladder.LazyAfter, defaultLazyAfter) + workGrace
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	err := w.plugin.removeWork(ctx, w.dir)
	if err != nil {
		return &workLeftError{fmt.Errorf("unmounting %s from the agent's own %s: %w", w.export, w.dir, err)}
	}
	return nil
}

// workLeftError says that a work mount may still be there, which the next of its
// name, or the next start, unmounts.
type workLeftError struct{ error }

func (e *workLeftError) Unwrap() error { return e.error }

// leftWork reports whether an error of [plugin.withExport] left something mounted
// or running.
func leftWork(err error) bool {
	if _, left := errors.AsType[*workLeftError](err); left {
		return true
	}
	abandoned, ok := errors.AsType[*blockingcall.AbandonedError](err)
	return ok && (abandoned.Started || abandoned.Earlier)
}

// seenServer is what the kernel shows of a server while the agent itself has an
// export of it mounted: a server goes by names, addresses and aliases, of which
// a volume and a pod may have different ones.
type seenServer struct {
	addresses []string // of addr= of nfs(5), in their one spelling
	devices   []uint64 // which mounts of one file system of a server share
}

// seenOf returns what the agent's own mounts of a server show, which is nothing
// before there are any.
func (p *plugin) seenOf(server string, all []mount.Entry) (seen seenServer, err error) {
	work, err := placeOf(p.GetWorkDir())
	if err != nil {
		return seen, fmt.Errorf("which mounts are the agent's own cannot be told: %w", err)
	}
	own := export{server: server, path: "/"}
	for _, e := range all {
		found, ok := parseTableSource(e.Source)
		if !ok || !isNFS(e) || !work.holds(e.Target) || !own.overlaps(found) {
			continue
		}
		seen.devices = append(seen.devices, e.Device)
		if address, ok := e.Option("addr"); ok {
			seen.addresses = append(seen.addresses, normalServer(address))
		}
	}
	return seen, nil
}

func (s seenServer) has(e mount.Entry) bool {
	address, ok := e.Option("addr")
	return slices.Contains(s.devices, e.Device) || ok && slices.Contains(s.addresses, normalServer(address))
}

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
	// The directory itself is not read, since its server may not answer.
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
