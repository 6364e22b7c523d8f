package inotify

import (
	"encoding/binary"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/eintr"
)

// Event is one report of the kernel about a watch.
type Event struct {
	// Watch is the descriptor that Add returned, -1 where the kernel lost events.
	Watch int32
	// Mask has the bits IN_*.
	Mask uint32
	// Name is of a directory's entry; empty for the watched file itself.
	Name string
}

// Lost reports whether any event may be missing (IN_Q_OVERFLOW).
func (e Event) Lost() bool { return e.Mask&unix.IN_Q_OVERFLOW != 0 }

// Instance is one queue of events, of which a user may have few
// (fs.inotify.max_user_instances). All methods are safe for concurrent use, but one
// goroutine reads.
type Instance struct {
	file   *os.File
	buffer []byte // the reader's
}

// New returns an instance that watches nothing yet.
func New() (*Instance, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("inotify_init1: %w; fs.inotify.max_user_instances may be too small", err)
	}
	return &Instance{file: os.NewFile(uintptr(fd), "inotify"), buffer: make([]byte, 16<<10)}, nil
}

// Close ends Read. It does not wait for an Add that a file server does not answer.
func (i *Instance) Close() error { return i.file.Close() }

// Add watches a file or directory. A second Add of the same file returns the same descriptor,
// and replaces the mask. The error is the kernel's, with the path, or
// [os.ErrClosed].
func (i *Instance) Add(path string, mask uint32) (watch int32, err error) {
	fd, err := i.dup()
	if err != nil {
		return -1, err
	}
	defer unix.Close(fd)
	wd, err := eintr.Get(func() (int, error) { return unix.InotifyAddWatch(fd, path, mask) })
	if err != nil {
		return -1, &os.PathError{Op: "watch", Path: path, Err: hint(err)}
	}
	return int32(wd), nil
}

func hint(err error) error {
	if err == unix.ENOSPC {
		return fmt.Errorf("%w; fs.inotify.max_user_watches may be too small", err)
	}
	return err
}

// dup returns a descriptor that the caller closes. Close would wait for a call with the
// instance's own.
func (i *Instance) dup() (int, error) {
	conn, err := i.file.SyscallConn()
	if err != nil {
		return -1, err
	}
	fd := -1
	if conn.Control(func(own uintptr) { fd, err = unix.FcntlInt(own, unix.F_DUPFD_CLOEXEC, 0) }) != nil {
		return -1, os.ErrClosed
	}
	return fd, err
}

// Remove ends a watch. A watch may have ended already, with its file or directory.
func (i *Instance) Remove(watch int32) {
	if conn, err := i.file.SyscallConn(); err == nil {
		_ = conn.Control(func(fd uintptr) { _, _ = unix.InotifyRmWatch(int(fd), uint32(watch)) })
	}
}

// Read waits for events and returns them. After Close it returns [os.ErrClosed].
func (i *Instance) Read() ([]Event, error) {
	n, err := i.file.Read(i.buffer)
	if err != nil {
		return nil, err
	}
	return decode(i.buffer[:n]), nil
}

func decode(raw []byte) (events []Event) {
	for len(raw) >= unix.SizeofInotifyEvent {
		e := Event{Watch: int32(binary.NativeEndian.Uint32(raw)), Mask: binary.NativeEndian.Uint32(raw[4:])}
		end := unix.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(raw[12:]))
		e.Name = strings.TrimRight(string(raw[unix.SizeofInotifyEvent:end]), "\x00")
		events = append(events, e)
		raw = raw[end:]
	}
	return events
}
