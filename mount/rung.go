package mount

import (
	"fmt"

	"github.com/podvol/podvol/mount/internal/fstypes"
)

// Rung is a step of the unmount ladder.
type Rung int

// The rungs, from harmless to last resort.
const (
	// RungNone: nothing was tried.
	RungNone Rung = iota
	// RungNormal: umount2(2) without MNT_FORCE or MNT_DETACH.
	RungNormal
	// RungForce: MNT_FORCE was used. It hits all mounts of the file system. On
	// NFS unwritten data may be lost ([Rung.Loss], [UnmountOptions]).
	RungForce
	// RungLazy: the mount is out of sight, but its file system may still be in
	// use. Treat the volume as uncertain.
	RungLazy
)

func (r Rung) String() string {
	switch r {
	case RungNone:
		return "none"
	case RungNormal:
		return "normal"
	case RungForce:
		return "force"
	case RungLazy:
		return "lazy"
	}
	return fmt.Sprintf("Rung(%d)", int(r))
}

// Loss says in a sentence what may be lost, or left behind, by an unmount of
// a file system of this type that took this rung; it is empty where nothing is.
// An empty type stands for any. Force hits all mounts of the file system; of other
// mount namespaces' nothing is known.
func (r Rung) Loss(fstype string) string {
	switch r {
	case RungForce:
		return lossByForce(fstype)
	case RungLazy:
		return "The file system lives on out of sight until its last user is gone; what was not yet written is written then, or lost if its server or daemon stays away."
	}
	return ""
}

func lossByForce(fstype string) string {
	switch fstypes.Family(fstype) {
	case "fuse", "glusterfs":
		return "The daemon was cut off from all mounts of the file system: requests that it had not answered have failed, and what it had not stored yet may be lost."
	case "nfs", "cifs", "ceph", "9p", "lustre":
		return "Requests under way of all mounts of the file system have failed, and data that was written but had not reached the server may be lost."
	case "":
		return "Requests under way of all mounts of the file system may have failed, and data that had not reached the server or daemon may be lost."
	}
	return "" // the kernel does the same as without force
}
