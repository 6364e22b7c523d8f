package provisioned

import "golang.org/x/sys/unix"

// Medium is where a base lies. It changes nothing but the advice of errors.
type Medium int

const (
	// Share is a share of an NFS server.
	Share Medium = iota
	// Disk is a directory of this node.
	Disk
)

// named has all errors of this package in err say what suits the medium.
func (m Medium) named(err error) error {
	switch e := err.(type) {
	case *OccupiedError:
		e.On = m
	case *NestedError:
		e.On = m
	case *ReplacedError:
		e.On = m
	case *NoBookError:
		e.On = m
	case *LostError:
		e.On = m
	case *ForeignError:
		e.On = m
	case *ModeError:
		e.On = m
	case *Error:
		e.On = m
	}
	switch e := err.(type) {
	case interface{ Unwrap() error }:
		m.named(e.Unwrap())
	case interface{ Unwrap() []error }:
		for _, each := range e.Unwrap() {
			m.named(each)
		}
	}
	return err
}

// lookAtPath is what to do where a PersistentVolume leads to what is not its own.
func (m Medium) lookAtPath() string {
	field := "nfs.path"
	if m == Disk {
		field = "hostPath.path"
	}
	return "check its " + field + ", and delete the PersistentVolume by hand if it should go"
}

// otherInodes is why a directory can be another one although nobody touched it.
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

// otherUser is why the bookkeeping can be somebody else's.
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

// advised is what to do about an error of the kernel's.
type advised struct {
	err  unix.Errno
	text string
}

func (m Medium) advice() []advised {
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
