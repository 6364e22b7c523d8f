// Package statmount is the kernel's way to ask for single mounts: listmount(2)
// and statmount(2), both since Linux 6.8, and fanotify(7)'s events of mounts,
// since 6.15. The calls are thin and behind [Kernel], so that a test can take
// each of them away.
//
// All act on the mount namespace, and name paths as seen from the root
// directory, of the calling thread.
package statmount

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Kernel is the calls.
type Kernel interface {
	// List fills ids with the ids of mounts that can be reached from the root
	// directory, in their order, beginning behind the id after (0 for the
	// start), and returns their number. Fewer than len(ids) means that there
	// are no more.
	List(after uint64, ids []uint64) (int, error)
	// Read asks for the fields in want of one mount. The record is valid until
	// the buffer is used again; EOVERFLOW says that the buffer is too small,
	// ENOENT that there is no such mount (any more).
	Read(id uint64, want Fields, buffer []byte) (Record, error)
	// Watch opens a group that tells of each mount that is attached to or
	// detached from the process's mount namespace. Reading never blocks: it is
	// EAGAIN while there is no event.
	Watch() (*os.File, error)
}

// Host is the running kernel.
type Host struct{}

// Fields is a mask of what [Kernel].Read shall return and, in a [Record], of
// what it has returned: a string that would be empty is missing.
type Fields uint64

// The fields (linux/mount.h).
const (
	SuperBasic  Fields = 1 << 0 // device and flags of the superblock
	MountBasic  Fields = 1 << 1 // ids, attributes, propagation
	Propagation Fields = 1 << 2 // the group it receives from, of those that can be seen
	Root        Fields = 1 << 3
	Target      Fields = 1 << 4
	Type        Fields = 1 << 5
	Options     Fields = 1 << 7 // since 6.11, complete since 6.13
	Subtype     Fields = 1 << 8 // since 6.13
	Source      Fields = 1 << 9 // since 6.13
)

// listRoot asks for the mounts below the root directory.
const listRoot = ^uint64(0)

// request is struct mnt_id_req in its first version.
type request struct {
	size  uint32
	_     uint32
	id    uint64
	param uint64
}

// List implements [Kernel].
func (Host) List(after uint64, ids []uint64) (int, error) {
	if len(ids) == 0 {
		return 0, nil
	}
	r := request{id: listRoot, param: after}
	r.size = uint32(unsafe.Sizeof(r))
	n, _, errno := unix.Syscall6(unix.SYS_LISTMOUNT, uintptr(unsafe.Pointer(&r)), uintptr(unsafe.Pointer(&ids[0])), uintptr(len(ids)), 0, 0, 0)
	if errno != 0 {
		return 0, os.NewSyscallError("listmount", errno)
	}
	return int(n), nil
}

// Read implements [Kernel].
func (Host) Read(id uint64, want Fields, buffer []byte) (Record, error) {
	if len(buffer) < headSize {
		return nil, os.NewSyscallError("statmount", unix.EOVERFLOW)
	}
	r := request{id: id, param: uint64(want)}
	r.size = uint32(unsafe.Sizeof(r))
	_, _, errno := unix.Syscall6(unix.SYS_STATMOUNT, uintptr(unsafe.Pointer(&r)), uintptr(unsafe.Pointer(&buffer[0])), uintptr(len(buffer)), 0, 0, 0)
	if errno != 0 {
		return nil, os.NewSyscallError("statmount", errno)
	}
	return Record(buffer), nil
}

// Record is what the kernel says of a mount: struct statmount. Its strings are
// parts of the buffer it was read into.
type Record []byte

// headSize is the size of struct statmount; its strings come behind it.
const headSize = 512

func (r Record) u32(offset int) uint32 { return binary.NativeEndian.Uint32(r[offset:]) }
func (r Record) u64(offset int) uint64 { return binary.NativeEndian.Uint64(r[offset:]) }

// Has reports whether all the fields were returned.
func (r Record) Has(f Fields) bool { return Fields(r.u64(8))&f == f }

// ID is unique as long as the machine runs; OldID is mountinfo's.
func (r Record) ID() uint64 { return r.u64(40) }

// Parent is the ID of the mount it is mounted on.
func (r Record) Parent() uint64 { return r.u64(48) }

// OldID is the id that mountinfo shows, used again after the mount is gone.
func (r Record) OldID() int { return int(r.u32(56)) }

// OldParent is the OldID of the mount it is mounted on.
func (r Record) OldParent() int { return int(r.u32(60)) }

// Device is the st_dev of the file system.
func (r Record) Device() uint64 { return unix.Mkdev(r.u32(16), r.u32(20)) }

// SuperFlags are SB_RDONLY, SB_SYNCHRONOUS, SB_DIRSYNC and SB_LAZYTIME, which
// have the values of MS_….
func (r Record) SuperFlags() uint32 { return r.u32(32) }

// Attributes are MOUNT_ATTR_….
func (r Record) Attributes() uint64 { return r.u64(64) }

// Flow says how mounts propagate to and from here.
type Flow struct {
	// Kind is MS_SHARED, MS_SLAVE, MS_PRIVATE and MS_UNBINDABLE.
	Kind uint64
	// Group, Master and From are ids of peer groups, 0 for none: its own, the
	// one it receives from, and the nearest one above that can be seen.
	Group, Master, From uint64
}

// Flow returns the propagation.
func (r Record) Flow() Flow {
	return Flow{Kind: r.u64(72), Group: r.u64(80), Master: r.u64(88), From: r.u64(96)}
}

// Root is the shown directory of the file system.
func (r Record) Root() []byte { return r.text(Root, 104) }

// Target is the mount point; it is empty if it cannot be reached from the root
// directory.
func (r Record) Target() []byte { return r.text(Target, 108) }

// Type is the file system's type without its subtype.
func (r Record) Type() []byte { return r.text(Type, 36) }

// Subtype is the part after the dot in "fuse.sshfs".
func (r Record) Subtype() []byte { return r.text(Subtype, 120) }

// Source is the mount source.
func (r Record) Source() []byte { return r.text(Source, 124) }

// Options are the security module's and the file system's, separated by commas
// and escaped as in mountinfo.
func (r Record) Options() []byte { return r.text(Options, 4) }

func (r Record) text(field Fields, offset int) []byte {
	if !r.Has(field) {
		return nil
	}
	start := headSize + int(r.u32(offset))
	if start >= len(r) {
		return nil
	}
	text := r[start:]
	if end := bytes.IndexByte(text, 0); end >= 0 {
		return text[:end]
	}
	return text
}

// IsGone tells the errors of [Kernel].Read for a mount that has left, or cannot
// be seen from, the namespace.
func IsGone(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EPERM)
}

// Watch implements [Kernel].
func (Host) Watch() (*os.File, error) {
	namespace, err := os.Open("/proc/self/ns/mnt")
	if err != nil {
		return nil, err
	}
	defer namespace.Close()
	fd, err := unix.FanotifyInit(unix.FAN_REPORT_MNT|unix.FAN_CLASS_NOTIF|unix.FAN_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("fanotify_init", err)
	}
	group := os.NewFile(uintptr(fd), "mount events")
	// Only now: a file of a non-blocking descriptor is handed to Go's own poller,
	// which would wake up for each event.
	if err := unix.SetNonblock(fd, true); err != nil {
		group.Close()
		return nil, os.NewSyscallError("fcntl", err)
	}
	err = unix.FanotifyMark(fd, unix.FAN_MARK_ADD|unix.FAN_MARK_MNTNS, unix.FAN_MNT_ATTACH|unix.FAN_MNT_DETACH, int(namespace.Fd()), "")
	if err != nil {
		group.Close()
		return nil, os.NewSyscallError("fanotify_mark", err)
	}
	return group, nil
}

// Offsets in struct fanotify_event_metadata and in the record of the type
// FAN_EVENT_INFO_TYPE_MNT behind it (linux/fanotify.h).
const (
	eventLength    = 0
	eventMetadata  = 6
	eventMask      = 8
	eventFixedSize = 24
	infoLength     = 2
	infoFixedSize  = 4
	infoMountID    = 8
	infoMountSize  = 16
)

// Events appends the ids of the mounts that the events in read concern: attached,
// detached, or both where a mount was moved. Complete is false where events were
// lost or cannot be understood.
func Events(read []byte, ids []uint64) (_ []uint64, complete bool) {
	complete = true
	for len(read) > 0 {
		if len(read) < eventFixedSize {
			return ids, false
		}
		length := int(binary.NativeEndian.Uint32(read[eventLength:]))
		head := int(binary.NativeEndian.Uint16(read[eventMetadata:]))
		if length < eventFixedSize || length > len(read) || head < eventFixedSize || head > length {
			return ids, false
		}
		if binary.NativeEndian.Uint64(read[eventMask:])&unix.FAN_Q_OVERFLOW != 0 {
			complete = false
		}
		var ok bool
		if ids, ok = mountIDs(read[head:length], ids); !ok {
			complete = false
		}
		read = read[length:]
	}
	return ids, complete
}

func mountIDs(info []byte, ids []uint64) (_ []uint64, ok bool) {
	for len(info) >= infoFixedSize {
		length := int(binary.NativeEndian.Uint16(info[infoLength:]))
		if length < infoFixedSize || length > len(info) {
			return ids, false
		}
		if info[0] == unix.FAN_EVENT_INFO_TYPE_MNT && length >= infoMountSize {
			ids = append(ids, binary.NativeEndian.Uint64(info[infoMountID:]))
		}
		info = info[length:]
	}
	return ids, true
}
