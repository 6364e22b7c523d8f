//go:build linux || darwin || freebsd || netbsd || openbsd

package atomicdir

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"path"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/lazyregexp"
	"github.com/podvol/podvol/volume/fileset"
)

const (
	dataName    = "..data"
	newDataName = "..data_tmp"
	dirMode     = 0o755
)

// versionName is what the kubelet and we call directories of versions.
var versionName = lazyregexp.New(`^\.\.[0-9]{4}(_[0-9]{2}){5}\.[0-9]+$`)

// fileID tells files of one host apart while they exist.
type fileID struct{ dev, ino uint64 }

// version is a directory that holds one version of the files. The zero value
// is none.
type version struct {
	name string
	id   fileID
	// changed is the directory's time of change, since inode numbers are used
	// again. Once written, the directory of a version never changes.
	changed unix.Timespec
}

func versionOf(name string, st *unix.Stat_t) version {
	return version{name: name, id: idOf(st), changed: st.Ctim}
}

func (v version) exists() bool { return v.name != "" }

// target is the open directory of one publication.
type target struct {
	path string
	fd   int
	dir  *os.File // of fd, once it was needed as one
	id   fileID
	// changed is when the directory was last changed, as it was opened or, if later, locked.
	changed unix.Timespec
	// created owns the new files below.
	created owner
	before  func(op, name string) error
}

func openTarget(dir string, before func(op, name string) error) (*target, error) {
	fd, err := openDirAt(unix.AT_FDCWD, dir)
	if err != nil {
		return nil, err
	}
	t := &target{path: dir, fd: fd, before: before}
	var st unix.Stat_t
	if err := fstat(fd, &st); err != nil {
		t.close()
		return nil, err
	}
	t.id, t.changed = idOf(&st), st.Ctim
	t.created = owner{uint32(os.Geteuid()), uint32(os.Getegid())}
	if st.Mode&unix.S_ISGID != 0 {
		t.created.gid = st.Gid
	}
	return t, nil
}

// shows reports whether there is an entry for every visible name of files, which are valid.
func (t *target) shows(files map[string]fileset.File) (bool, error) {
	names, err := readNames(t.fd)
	if err != nil {
		return false, t.failed("list", "", err)
	}
	// Names are looked up among the files, since a set of all that are there costs more than
	// all else here.
	missing, missingDirs := len(files), make(map[string]bool)
	for p := range files {
		if strings.Contains(p, "/") {
			missing--
			name, _, _ := strings.Cut(path.Clean(p), "/")
			missingDirs[name] = true
		}
	}
	for _, name := range names {
		if _, ok := files[name]; ok {
			missing--
		}
		delete(missingDirs, name)
	}
	return missing == 0 && len(missingDirs) == 0, nil
}

// lastChange is when the directory was last changed, as of now.
func (t *target) lastChange() (unix.Timespec, error) {
	var st unix.Stat_t
	if err := fstat(t.fd, &st); err != nil {
		return unix.Timespec{}, t.failed("stat", "", err)
	}
	return st.Ctim, nil
}

// file is the directory as a file of the os package, which costs a system call.
func (t *target) file() *os.File {
	if t.dir == nil {
		t.dir = os.NewFile(uintptr(t.fd), t.path)
	}
	return t.dir
}

func (t *target) close() {
	if t.dir != nil {
		t.dir.Close()
		return
	}
	unix.Close(t.fd)
}

// step comes before every change to the disk: it is where a publication can be
// ended.
func (t *target) step(ctx context.Context, op, name string) error {
	if ctx.Err() != nil {
		return t.failed(op, name, context.Cause(ctx))
	}
	if t.before != nil {
		if err := t.before(op, name); err != nil {
			return t.failed(op, name, err)
		}
	}
	return nil
}

func (t *target) failed(op, name string, err error) error {
	return &Error{Op: op, Dir: t.path, Name: name, Err: err}
}

// currentVersion is where ..data leads. A link to a version that is gone is
// none; anything else in its place is not ours.
func (t *target) currentVersion() (version, error) {
	name, err := readlink(t.fd, dataName)
	switch {
	case errors.Is(err, unix.ENOENT):
		return version{}, nil
	case errors.Is(err, unix.EINVAL), err == nil && !versionName().MatchString(name):
		return version{}, &ForeignEntryError{Dir: t.path, Name: dataName}
	case err != nil:
		return version{}, t.failed("read", dataName, err)
	}
	var st unix.Stat_t
	err = statAt(t.fd, name, &st)
	if errors.Is(err, unix.ENOENT) || err == nil && st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return version{}, nil
	}
	if err != nil {
		return version{}, t.failed("stat", name, err)
	}
	return versionOf(name, &st), nil
}

// inventory is what a publication finds in the directory beside ..data.
type inventory struct {
	// versions are the directories of all versions.
	versions []string
	// missing are visible names without their link, stale are links of names
	// that shall not be visible any more.
	missing, stale []string
	// data says that there is a ..data, though it may lead nowhere.
	data bool
	// newData says that there is a link of ours at ..data_tmp, foreignNewData
	// that there is something else.
	newData, foreignNewData bool
}

// takeInventory compares the visible files with the desired ones. It refuses an
// entry in the way that is not ours.
func (t *target) takeInventory(tree *node) (inventory, error) {
	names, err := readNames(t.fd)
	if err != nil {
		return inventory{}, t.failed("list", "", err)
	}
	wanted := make(map[string]bool, len(tree.children)) // false: its link was not found
	for i := range tree.children {
		wanted[tree.children[i].name] = false
	}
	var inv inventory
	for _, name := range names {
		switch {
		case name == dataName:
			inv.data = true
		case name == newDataName:
			if inv.newData, inv.foreignNewData, err = t.lookAtNewData(); err != nil {
				return inventory{}, err
			}
		case versionName().MatchString(name):
			inv.versions = append(inv.versions, name)
		}
		if strings.HasPrefix(name, fileset.Reserved) {
			continue
		}
		_, isWanted := wanted[name]
		link, err := readlink(t.fd, name)
		switch {
		case err == nil && link == linkTo(name) && isWanted:
			wanted[name] = true
		case err == nil && link == linkTo(name):
			inv.stale = append(inv.stale, name)
		case err == nil || errors.Is(err, unix.EINVAL): // a foreign link or no link
			if isWanted {
				return inventory{}, &ForeignEntryError{Dir: t.path, Name: name}
			}
		case !errors.Is(err, unix.ENOENT):
			return inventory{}, t.failed("read", name, err)
		}
	}
	for i := range tree.children {
		if name := tree.children[i].name; !wanted[name] {
			inv.missing = append(inv.missing, name)
		}
	}
	return inv, nil
}

// lookAtNewData says what is at ..data_tmp: a link of ours, which a crash left,
// something else, or nothing.
func (t *target) lookAtNewData() (ours, foreign bool, err error) {
	link, err := readlink(t.fd, newDataName)
	switch {
	case errors.Is(err, unix.ENOENT):
		return false, false, nil
	case err == nil && versionName().MatchString(link):
		return true, false, nil
	case err == nil || errors.Is(err, unix.EINVAL): // a foreign link or no link
		return false, true, nil
	}
	return false, false, t.failed("read", newDataName, err)
}

func linkTo(name string) string { return dataName + "/" + name }

// makeVersion makes the empty directory of a new version.
func (t *target) makeVersion(ctx context.Context) (name string, fd int, err error) {
	for {
		stamp := time.Now().UTC().AppendFormat(make([]byte, 0, 40), "..2006_01_02_15_04_05.")
		name = string(strconv.AppendUint(stamp, uint64(rand.Uint32()), 10))
		if err := t.step(ctx, "make version", name); err != nil {
			return "", -1, err
		}
		fd, err = makeDir(t.fd, name)
		if errors.Is(err, unix.EEXIST) {
			continue
		}
		if err != nil {
			return "", -1, t.failed("make version", name, err)
		}
		return name, fd, nil
	}
}
