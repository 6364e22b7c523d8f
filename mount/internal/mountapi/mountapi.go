// Package mountapi makes the kernel's calls for mounts: the calls of the mount API
// of Linux 5.2 (fsopen, fsconfig, fsmount, fspick, open_tree, move_mount),
// mount_setattr of Linux 5.12, and mount(2).
//
// [Calls] is an interface so that a test can take away any of them, let it
// hang, or look at what it is told.
package mountapi

import (
	"strings"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/eintr"
)

// Calls are the kernel's calls. Descriptors that they return are closed on
// exec and belong to the caller. Errors are errnos; ENOSYS says that this
// kernel does not have the call. A file-system context is what Fsopen and
// Fspick return. All methods are safe for concurrent use.
type Calls interface {
	// Fsopen begins a new file system of a type; ENODEV says that the kernel
	// does not have it, nor a module for it.
	Fsopen(fstype string) (context int, err error)
	// Fspick begins the change of the file system whose mount's root is open
	// as mount; EINVAL says that mount is no mount's root.
	Fspick(mount int) (context int, err error)
	// SetFlag and SetString give a file-system context one parameter. A string
	// may have at most [MaxString] bytes.
	SetFlag(context int, key string) error
	SetString(context int, key, value string) error
	// Create makes the file system, and Reconfigure changes it. Neither can be
	// repeated on the same context after an error, EINTR included.
	Create(context int) error
	Reconfigure(context int) error
	// Log takes the messages that a context has collected, each with its level
	// in front: "e " an error, "w " a warning, "i " information.
	Log(context int) []string
	// Fsmount returns a mount of the created file system that is attached
	// nowhere, with MOUNT_ATTR_* attributes.
	Fsmount(context int, attributes uint64) (mount int, err error)
	// OpenTree returns a copy, attached nowhere, of the mount at path, from path
	// downwards; recursive takes the mounts below along. A link at the end of
	// path is followed.
	OpenTree(dir int, path string, recursive bool) (mount int, err error)
	// MoveMount attaches a mount to the open directory or file target, on top of
	// other mounts there.
	MoveMount(mount, target int) error
	// MountSetattr changes an open mount, and with recursive those below it, all
	// or none.
	MountSetattr(mount int, recursive bool, attributes unix.MountAttr) error
	// Mount is mount(2).
	Mount(source, target, fstype string, flags uintptr, data string) error
}

// MaxString is the longest value of SetString, and the longest key, in bytes:
// the kernel takes 256 with the NUL at the end.
const MaxString = 255

// maxLog bounds the messages taken from one context; the kernel keeps eight.
const maxLog = 16

// Kernel is the running kernel.
type Kernel struct{}

var _ Calls = Kernel{}

// Fsopen implements [Calls].
func (Kernel) Fsopen(fstype string) (int, error) {
	return eintr.Get(func() (int, error) { return unix.Fsopen(fstype, unix.FSOPEN_CLOEXEC) })
}

// Fspick implements [Calls].
func (Kernel) Fspick(mount int) (int, error) {
	const flags = unix.FSPICK_CLOEXEC | unix.FSPICK_EMPTY_PATH | unix.FSPICK_NO_AUTOMOUNT
	return eintr.Get(func() (int, error) { return unix.Fspick(mount, "", flags) })
}

// SetFlag implements [Calls].
func (Kernel) SetFlag(context int, key string) error {
	return eintr.Do(func() error { return unix.FsconfigSetFlag(context, key) })
}

// SetString implements [Calls].
func (Kernel) SetString(context int, key, value string) error {
	return eintr.Do(func() error { return unix.FsconfigSetString(context, key, value) })
}

// Create implements [Calls].
func (Kernel) Create(context int) error { return unix.FsconfigCreate(context) }

// Reconfigure implements [Calls].
func (Kernel) Reconfigure(context int) error { return unix.FsconfigReconfigure(context) }

// Log implements [Calls]: each read(2) takes one message (Linux 5.2).
func (Kernel) Log(context int) []string {
	var messages []string
	buffer := make([]byte, 4096)
	for range maxLog {
		n, err := eintr.Get(func() (int, error) { return unix.Read(context, buffer) })
		if err != nil || n <= 0 {
			break // ENODATA: that was all
		}
		messages = append(messages, strings.TrimSpace(string(buffer[:n])))
	}
	return messages
}

// Fsmount implements [Calls].
func (Kernel) Fsmount(context int, attributes uint64) (int, error) {
	return eintr.Get(func() (int, error) { return unix.Fsmount(context, unix.FSMOUNT_CLOEXEC, int(attributes)) })
}

// OpenTree implements [Calls].
func (Kernel) OpenTree(dir int, path string, recursive bool) (int, error) {
	flags := uint(unix.OPEN_TREE_CLONE | unix.OPEN_TREE_CLOEXEC)
	if path == "" {
		flags |= unix.AT_EMPTY_PATH
	}
	if recursive {
		flags |= unix.AT_RECURSIVE
	}
	return eintr.Get(func() (int, error) { return unix.OpenTree(dir, path, flags) })
}

// MoveMount implements [Calls].
func (Kernel) MoveMount(mount, target int) error {
	const flags = unix.MOVE_MOUNT_F_EMPTY_PATH | unix.MOVE_MOUNT_T_EMPTY_PATH
	return eintr.Do(func() error { return unix.MoveMount(mount, "", target, "", flags) })
}

// MountSetattr implements [Calls].
func (Kernel) MountSetattr(mount int, recursive bool, attributes unix.MountAttr) error {
	flags := uint(unix.AT_EMPTY_PATH)
	if recursive {
		flags |= unix.AT_RECURSIVE
	}
	return eintr.Do(func() error { return unix.MountSetattr(mount, "", flags, &attributes) })
}

// Mount implements [Calls].
func (Kernel) Mount(source, target, fstype string, flags uintptr, data string) error {
	return eintr.Do(func() error { return unix.Mount(source, target, fstype, flags, data) })
}
