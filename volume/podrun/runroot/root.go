package runroot

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/filelock"
	"github.com/podvol/podvol/util/openat"
	"github.com/podvol/podvol/util/removetree"
	"github.com/podvol/podvol/util/retry"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/volumemanager"
)

// Root is the root directory of one run. It is made and marked for the run,
// locked while the run lives, and removed with all its content. A marked
// directory with a free lock is from a killed run.
type Root struct {
	place *runsPlace
	name  string
	lock  *os.File // the directory itself
}

// Marker is a file that distinguishes a run's root directory from other
// directories. It is made first and removed last.
const Marker = ".podvol-run"

// Path is the root directory's path.
func (r *Root) Path() string { return filepath.Join(r.place.runs.Dir(), r.name) }

// maxLabel keeps a run's name well below the limit of file systems.
const maxLabel = 100

// New makes and locks a new root directory. label is for people who look there;
// its first 100 bytes are used. It must have no slash, asterisk or zero byte. The error is a *[volumemanager.RootError]. Close
// must be called in the end.
func (r Runs) New(label string) (*Root, error) {
	if len(label) > maxLabel {
		label = label[:maxLabel]
	}
	var root *Root
	// Another run may just have removed the empty directories around it.
	err := retry.Patiently(fs.ErrNotExist, func() (err error) {
		root, err = r.try(label)
		return err
	})
	if err != nil {
		r.RemoveEmpty()
		return nil, &volumemanager.RootError{RootDir: r.Base, Err: err}
	}
	return root, nil
}

func (runs Runs) try(label string) (_ *Root, err error) {
	place, err := runs.makePlace()
	if err != nil {
		return nil, err
	}
	r := &Root{place: place}
	defer func() {
		if err != nil {
			r.Unlock()
			place.close()
		}
	}()
	// No other process takes the directory for abandoned between its making and
	// its locking.
	if err := filelock.LockLinked(place.dirs, unix.LOCK_SH); err != nil {
		return nil, err
	}
	defer filelock.Unlock(place.dirs)
	if strings.ContainsAny(label, "/*\x00") { // os.MkdirTemp puts its number at an asterisk
		return nil, volume.Invalid("label", "%q must have no slash, asterisk or zero byte", label)
	}
	path, err := os.MkdirTemp(runs.Dir(), label+".") // no other user can change that path
	if err != nil {
		return nil, err
	}
	r.name = filepath.Base(path)
	if r.lock, err = openat.Dir(place.dirs, r.name); err != nil {
		return nil, err
	}
	if err := filelock.LockLinked(r.lock, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, err
	}
	return r, r.mark()
}

func (r *Root) mark() error {
	marker, err := openat.File(r.lock, Marker, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	return marker.Close()
}

// isOurs reports whether a run has made the directory. A run that was killed
// before it made the marker, or after it removed the marker, leaves the directory
// empty.
func (r *Root) isOurs() (bool, error) {
	if r.place.runs.checkOwn(r.lock, 0o077) != nil {
		return false, nil
	}
	var marker unix.Stat_t
	err := unix.Fstatat(int(r.lock.Fd()), Marker, &marker, unix.AT_SYMLINK_NOFOLLOW)
	if err == nil {
		return marker.Mode&unix.S_IFMT == unix.S_IFREG && int(marker.Uid) == os.Geteuid(), nil
	}
	number := r.name[strings.LastIndexByte(r.name, '.')+1:] // os.MkdirTemp's
	if _, unnumbered := strconv.ParseUint(number, 10, 64); unnumbered != nil || !errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	names, err := r.names()
	return len(names) == 0, err
}

func (r *Root) names() ([]string, error) {
	dir, err := openat.Dir(r.lock, ".")
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	return dir.Readdirnames(-1)
}

// Remove removes the directory with all its content, but no mounts there. It also
// removes the empty directories around it.
func (r *Root) Remove(ctx context.Context) error {
	defer r.Unlock()
	names, err := r.names()
	if err != nil {
		return err
	}
	names = slices.DeleteFunc(names, func(name string) bool { return name == Marker })
	for _, name := range append(names, Marker) {
		if err := removetree.RemoveAt(ctx, r.lock, name); err != nil {
			return err
		}
	}
	if err := removetree.RemoveAt(ctx, r.place.dirs, r.name); err != nil {
		return err
	}
	r.place.removeEmpty()
	return nil
}

// Unlock releases the lock and leaves the directory as it is, as a dead run does.
func (r *Root) Unlock() {
	if r.lock != nil {
		_ = filelock.Close(r.lock)
	}
}

// Close closes the files that New has opened, but not the lock. The directory
// stays unless it was removed.
func (r *Root) Close() { r.place.close() }

// Dead returns the runs whose process is gone, locked until done is called. A
// directory that no run has made is left out.
func (runs Runs) Dead() (dead []*Root, done func(), err error) {
	place, err := runs.openPlace()
	if errors.Is(err, fs.ErrNotExist) {
		return nil, func() {}, nil
	}
	if err != nil {
		return nil, func() {}, &volumemanager.RootError{RootDir: runs.Base, Err: err}
	}
	dead, err = place.dead()
	return dead, func() {
		for _, r := range dead {
			r.Unlock()
		}
		place.close()
	}, err
}

func (p *runsPlace) dead() (dead []*Root, err error) {
	err = filelock.LockLinked(p.dirs, unix.LOCK_EX)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer filelock.Unlock(p.dirs)
	names, err := p.dirs.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		r := &Root{place: p, name: name}
		abandoned, err := r.isAbandoned()
		if err != nil {
			r.Unlock()
			return dead, err
		}
		if !abandoned {
			r.Unlock()
			continue
		}
		dead = append(dead, r)
	}
	return dead, nil
}

// isAbandoned locks the directory of a dead run.
func (r *Root) isAbandoned() (bool, error) {
	var err error
	if r.lock, err = openat.Dir(r.place.dirs, r.name); err != nil {
		return false, nil // gone, or no run
	}
	if ours, err := r.isOurs(); err != nil || !ours {
		return false, err
	}
	err = filelock.LockLinked(r.lock, unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) || errors.Is(err, fs.ErrNotExist) { // it lives, or is gone
		return false, nil
	}
	return err == nil, err
}
