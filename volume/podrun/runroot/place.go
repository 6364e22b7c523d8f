package runroot

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/openat"
	"github.com/podvol/podvol/util/rootdir"
	"github.com/podvol/podvol/volume/volumemanager"
)

// Runs are the runs below a base directory. As long as a run lives, it has a root
// directory of its own there, DIR/podvol/runs/<run>.
type Runs struct {
	// Base is the absolute path of the base directory.
	Base string
	// Option names the way in which a person chooses Base, for errors, such as
	// "--root-dir". Empty: "Runs.Base".
	Option string
}

func (r Runs) option() string { return cmp.Or(r.Option, "Runs.Base") }

// Dir is the parent of the runs' root directories.
func (r Runs) Dir() string { return filepath.Join(volumemanager.StateDir(r.Base), runsName) }

// runsPlace is DIR/podvol/runs, the parent of the runs' root directories, open
// from DIR on. Files are found and removed only in the opened and checked
// directories. Another directory or a link in their place has no effect.
type runsPlace struct {
	runs              Runs
	dir, podvol, dirs *os.File
}

const runsName = "runs"

// makePlace is openPlace, but makes missing directories.
func (r Runs) makePlace() (*runsPlace, error) {
	dir, err := rootdir.Make(r.Base, 0o700)
	if err != nil {
		return nil, err
	}
	dir.Close()
	return r.openOrMake(func(parent *os.File, name string) error {
		if err := unix.Mkdirat(int(parent.Fd()), name, 0o700); err != nil && err != unix.EEXIST {
			return &fs.PathError{Op: "mkdir", Path: filepath.Join(parent.Name(), name), Err: err}
		}
		return nil
	})
}

// openPlace opens the place. If there is none, the error is [fs.ErrNotExist]. It
// is an error if another user could change the place.
func (r Runs) openPlace() (*runsPlace, error) {
	return r.openOrMake(func(*os.File, string) error { return nil })
}

func (r Runs) openOrMake(makeDir func(parent *os.File, name string) error) (_ *runsPlace, err error) {
	p := &runsPlace{runs: r}
	defer func() {
		if err != nil {
			p.close()
		}
	}()
	if p.dir, err = openBase(r.Base); err != nil {
		return nil, err
	}
	if p.podvol, err = openBelow(p.dir, filepath.Base(volumemanager.StateDir(r.Base)), makeDir); err != nil {
		return nil, err
	}
	if p.dirs, err = openBelow(p.podvol, runsName, makeDir); err != nil {
		return nil, err
	}
	for _, dir := range []*os.File{p.dir, p.podvol, p.dirs} {
		if err = r.checkOwn(dir, 0o022); err != nil {
			return nil, err
		}
	}
	return p, nil
}

func openBelow(parent *os.File, name string, makeDir func(parent *os.File, name string) error) (*os.File, error) {
	if err := makeDir(parent, name); err != nil {
		return nil, err
	}
	return openat.Dir(parent, name)
}

func (p *runsPlace) close() {
	for _, dir := range []*os.File{p.dir, p.podvol, p.dirs} {
		if dir != nil {
			dir.Close()
		}
	}
}

// removeEmpty removes the empty directories around runs. A directory that is not
// empty keeps its parents, and is no error.
func (p *runsPlace) removeEmpty() {
	if unix.Unlinkat(int(p.podvol.Fd()), runsName, unix.AT_REMOVEDIR) == nil {
		_ = unix.Unlinkat(int(p.dir.Fd()), filepath.Base(p.podvol.Name()), unix.AT_REMOVEDIR)
	}
}

// RemoveEmpty removes the empty directories around runs, for example of a run
// that did not get further. The next run, or a repair, removes the rest.
func (r Runs) RemoveEmpty() {
	place, err := r.openPlace()
	if err != nil {
		return
	}
	defer place.close()
	place.removeEmpty()
}

// openBase follows a link only if it is this user's own.
func openBase(base string) (*os.File, error) {
	dir, err := openat.Dir(nil, base)
	if !errors.Is(err, unix.ENOTDIR) && !errors.Is(err, unix.ELOOP) {
		return dir, err
	}
	var link unix.Stat_t
	if lookErr := unix.Lstat(base, &link); lookErr != nil || link.Mode&unix.S_IFMT != unix.S_IFLNK || int(link.Uid) != os.Geteuid() {
		return nil, err
	}
	return os.OpenFile(base, os.O_RDONLY|unix.O_DIRECTORY, 0)
}

// checkOwn refuses a directory of another user, and one with a forbidden
// permission.
func (r Runs) checkOwn(dir *os.File, forbidden uint32) error {
	var stat unix.Stat_t
	if err := unix.Fstat(int(dir.Fd()), &stat); err != nil {
		return &fs.PathError{Op: "stat", Path: dir.Name(), Err: err}
	}
	switch {
	case int(stat.Uid) != os.Geteuid():
		return fmt.Errorf("%s belongs to another user: name a directory of your own with %s, or come as that user", dir.Name(), r.option())
	case stat.Mode&forbidden != 0:
		return fmt.Errorf("%s can be changed by others (mode %#o): name another directory with %[3]s, or take that away (chmod go-w %[1]s)",
			dir.Name(), stat.Mode&0o7777, r.option())
	}
	return nil
}
