package mounttable

import (
	"context"
	"os"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/eintr"
)

// watchMountinfo sends after each change of the table in the file at path,
// coalesced, until ctx ends; then the channel is closed and nothing of the
// watch is left. Changes count from the call on.
func watchMountinfo(ctx context.Context, path string) <-chan struct{} {
	changes := make(chan struct{}, 1)
	table, err := OpenMountinfo(path)
	if err != nil {
		close(changes)
		return changes
	}
	wakeRead, wakeWrite, err := os.Pipe()
	if err != nil {
		table.Close()
		close(changes)
		return changes
	}
	// Closing the write end is what wakes the poll.
	stop := context.AfterFunc(ctx, func() { wakeWrite.Close() })
	go func() {
		defer close(changes)
		defer table.Close()
		defer wakeRead.Close()
		defer func() {
			if stop() {
				wakeWrite.Close()
			}
		}()
		forwardChanges(ctx, table, wakeRead, changes)
	}()
	return changes
}

// OpenMountinfo opens a mount table out of reach of Go's own poller, which would
// take notice of changes in our place: each is told once for an open file.
func OpenMountinfo(path string) (*os.File, error) {
	fd, err := eintr.Get(func() (int, error) { return unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0) })
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

func forwardChanges(ctx context.Context, table, wake *os.File, changes chan<- struct{}) {
	for ctx.Err() == nil {
		changed, err := pollChange(table, -1, wake)
		if err != nil || ctx.Err() != nil {
			return
		}
		if !changed {
			continue
		}
		select {
		case changes <- struct{}{}:
		default: // one is waiting to be received already
		}
	}
}

// pollChange waits until the table has changed since it was opened or last
// polled, or one of wake becomes readable or is closed at its other end, for
// at most timeout milliseconds; -1 means without limit.
func pollChange(table *os.File, timeout int, wake ...*os.File) (changed bool, err error) {
	fds := []unix.PollFd{{Fd: int32(table.Fd()), Events: unix.POLLPRI}}
	for _, w := range wake {
		fds = append(fds, unix.PollFd{Fd: int32(w.Fd()), Events: unix.POLLIN})
	}
	_, err = eintr.Get(func() (int, error) { return unix.Poll(fds, timeout) })
	return fds[0].Revents&(unix.POLLPRI|unix.POLLERR) != 0, err
}
