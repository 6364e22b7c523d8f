package statmount

import (
	"encoding/binary"
	"os"

	"golang.org/x/sys/unix"
)

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
