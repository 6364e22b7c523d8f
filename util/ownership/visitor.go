package ownership

import (
	"errors"
	"sync/atomic"

	"golang.org/x/sys/cpu"
	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/treewalk"
)

// visitor is one worker's part of a change.
type visitor struct {
	*change
	// wrong: the last file was not right, so that the next one is opened at
	// once instead of being read first.
	wrong bool
	// done is counted by each on its own, on a cache line of its own, since
	// processors wait for each other where they count together.
	done atomic.Int64
	_    cpu.CacheLinePad
}

// Visit looks at a file. A directory is left to Enter, which has it open.
func (v *visitor) Visit(dirfd int, name treewalk.Name, kind uint8) (enter bool, err error) {
	if kind == unix.DT_DIR {
		return true, nil
	}
	v.done.Add(1)
	if !v.wrong {
		info, err := v.tree.Stat(dirfd, name)
		switch {
		case errors.Is(err, unix.ENOENT):
			return false, nil
		case err != nil:
			return false, pathError("statx", "", err)
		case !v.tree.Holds(info):
			return false, nil
		case info.IsDir():
			return true, nil
		case v.group.has(info):
			return false, nil
		}
	}
	return v.open(dirfd, name)
}

// open looks at a file by a descriptor, and changes it by that: the name may be
// another file's at any time.
func (v *visitor) open(dirfd int, name treewalk.Name) (enter bool, err error) {
	fd, info, err := v.tree.OpenPath(dirfd, name)
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.EXDEV):
		return false, nil
	case err != nil:
		return false, pathError("open", "", err)
	}
	defer unix.Close(fd)
	if info.IsDir() {
		return true, nil
	}
	if v.wrong = !v.group.has(info); !v.wrong {
		return false, nil
	}
	return false, v.fix(fd, info)
}

// Enter gives a directory to the group before it is read: later files inherit the
// group, and earlier ones are found.
func (v *visitor) Enter(fd int, info treewalk.Info) error {
	v.done.Add(1)
	return v.fix(fd, info)
}
