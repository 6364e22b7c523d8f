package live

import (
	"context"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/examples/podvol/internal/plaintext"
	"github.com/podvol/podvol/util/eintr"
)

// whileRead returns a context that ends, with EPIPE for its cause, once nobody can read any more
// what is written to out, as head(1) goes after its lines. A write would say so, too, but the
// next may be due in days. stop must be called; it waits.
func whileRead(ctx context.Context, out io.Writer) (_ context.Context, stop func()) {
	file, ok := plaintext.AsGiven(out).(*os.File)
	if !ok {
		return ctx, func() {}
	}
	ended, end, err := os.Pipe()
	if err != nil { // the next write must do
		return ctx, func() {}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		fds := []unix.PollFd{{Fd: int32(file.Fd())}, {Fd: int32(ended.Fd()), Events: unix.POLLIN}}
		if _, err := eintr.Get(func() (int, error) { return unix.Poll(fds, -1) }); err == nil && fds[0].Revents != 0 {
			cancel(&os.PathError{Op: "write", Path: file.Name(), Err: unix.EPIPE})
		}
	}()
	return ctx, func() {
		end.Close()
		<-gone
		ended.Close()
		cancel(nil)
	}
}
