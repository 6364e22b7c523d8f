package sharedirs

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Advice says what to do, or is empty where nothing useful can be said.
func (e *Error) Advice() string {
	switch e.Cause {
	case nil:
		return e.On.advise(e.Err)
	case ErrOccupied:
		switch {
		case e.deleting:
			return e.On.lookAtPath()
		case e.Owner != (Owner{}):
			return "use a path template that gives each volume its own"
		}
		return "move it away, or use another path template"
	case ErrRetained:
		return "make a PersistentVolume for it by hand to use it again, or move it away, and try again"
	case ErrNested:
		if e.deleting {
			return e.On.lookAtPath()
		}
		return "use a path template without directories that are volumes too"
	case ErrReplaced:
		return "look at it, move it away, and try again"
	case ErrNoBook:
		return e.On.lookForDisk() + ". If it was emptied for good, make an empty .podvol there (mkdir -m 0700), and try again"
	case ErrLost:
		return e.On.lookForDisk() + ". If it is gone for good, its data is too: delete the volume and its claim, and make a new claim"
	case ErrTrashed:
		if e.Err == nil {
			return "delete the volume again to finish that, or move it back to keep it, and try again"
		}
		return "move it to where it shall be kept, and try again"
	case ErrDamaged:
		return "restore the mark, or move it and the directory away"
	case ErrExposed:
		return "see who made it, then chmod 0700 or move it away"
	case ErrForeign:
		return fmt.Sprintf("see who made it, then move it away, or, if it is podvol's and %s, chown -R it to %d", e.On.otherUser(), e.ours)
	case ErrMode:
		return "ask for another (" + e.On.modeParameter() + ")"
	case ErrBusy:
		return "try again"
	}
	return ""
}

// lookAtPath is the advice where a PersistentVolume leads to a directory that is
// not its own.
func (m Medium) lookAtPath() string {
	field := "nfs.path"
	if m == Disk {
		field = "hostPath.path"
	}
	return "check its " + field + ", and delete the PersistentVolume by hand if it should go"
}

// otherInodes is why a directory can be another one although it was not touched.
func (m Medium) otherInodes() string {
	if m == Disk {
		return "the disk was restored"
	}
	return "the server has changed its inodes"
}

func (m Medium) lookForDisk() string {
	if m == Disk {
		return "look whether its disk is mounted on this node"
	}
	return "look whether the disk of the share is mounted on the server"
}

// otherUser is why the bookkeeping can be another user's.
func (m Medium) otherUser() string {
	if m == Disk {
		return "it runs as another user than before"
	}
	return "the server squashes users otherwise than before"
}

func (m Medium) modeParameter() string {
	if m == Disk {
		return "mode"
	}
	return "mountPermissions"
}

// advise says what to do about an error of the kernel's.
func (m Medium) advise(err error) string {
	for _, a := range m.ofErrno() {
		if errors.Is(err, a.err) {
			return a.text
		}
	}
	return ""
}

// where is where the files of a base are changed by hand.
func (m Medium) where() string {
	if m == Disk {
		return ""
	}
	return " on the server"
}

// advised is what to do about an error of the kernel's.
type advised struct {
	err  unix.Errno
	text string
}

func (m Medium) ofErrno() []advised {
	if m == Disk {
		return []advised{
			{unix.EROFS, "the file system is read-only: mount it read-write, or look in the kernel's log for why it became so"},
			{unix.ENOSPC, "the file system is full or out of inodes: free some, then it goes on by itself"},
			{unix.EDQUOT, "the quota of the user that podvol runs as is used up: raise it or free space"},
			{unix.EACCES, "the user that podvol runs as may not do that: give him the directory, or run podvol as root"},
			{unix.EPERM, "the user that podvol runs as may not do that, or somebody has made it immutable (lsattr): give him the directory, or run podvol as root"},
			{unix.ENAMETOOLONG, "the file system's names are shorter than the path template makes them"},
			{unix.EMLINK, "the file system allows no more directories there: use a path template with directories of its own, such as ${pvc.metadata.namespace}/${pvc.metadata.name}"},
		}
	}
	return []advised{
		{unix.EROFS, "the share is read-only: export it rw (exports(5)), or use a share that is"},
		{unix.ENOSPC, "the share is full or out of inodes: free some, then it goes on by itself"},
		{unix.EDQUOT, "the quota of whom the server takes this node's root for is used up: raise it or free space"},
		{unix.EACCES, "the server does not let this node's root do that; with root_squash it is nobody there: " +
			"export with no_root_squash, or give the share's directory to the anonymous user (anonuid) and leave no volume of others in it"},
		{unix.EPERM, "the server does not let this node's root do that: export with no_root_squash, or give the share's directory to the anonymous user (anonuid)"},
		{unix.ESTALE, "the server no longer knows the directory: somebody has removed or replaced it there; try again"},
		{unix.ENAMETOOLONG, "the server's names are shorter than the path template makes them"},
		{unix.EMLINK, "the server allows no more directories there: use a path template with directories of its own, such as ${pvc.metadata.namespace}/${pvc.metadata.name}"},
	}
}
