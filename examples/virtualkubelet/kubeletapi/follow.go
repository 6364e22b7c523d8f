package kubeletapi

import (
	"context"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// awaitMore returns nil when the file may have grown, and io.EOF when the container has
// ended and all was read. The kernel tells of writes; whether the container has ended is
// looked at every second.
func awaitMore(ctx context.Context, file *os.File, ended func() bool) error {
	over := ended() // before the size: what is written later was written after its end
	at, err := file.Seek(0, io.SeekCurrent)
	if err != nil {
		return err
	}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return os.NewSyscallError("inotify_init1", err)
	}
	events := os.NewFile(uintptr(fd), "inotify")
	defer events.Close()
	if _, err := unix.InotifyAddWatch(fd, file.Name(), unix.IN_MODIFY); err != nil && !os.IsNotExist(err) {
		return os.NewSyscallError("inotify_add_watch", err)
	}
	if info, err := file.Stat(); err != nil || info.Size() > at {
		return err
	}
	if over {
		return io.EOF
	}
	stop := context.AfterFunc(ctx, func() { _ = events.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	if err := events.SetReadDeadline(time.Now().Add(time.Second)); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	_, _ = events.Read(make([]byte, 4096)) // an event, the deadline, or the end of ctx
	return context.Cause(ctx)
}
