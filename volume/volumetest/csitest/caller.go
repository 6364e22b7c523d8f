package csitest

import (
	"context"
	"net"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/peer"

	"github.com/podvol/podvol/util/eintr"
)

// callers listens for callers.
type callers struct{ *net.UnixListener }

func (c callers) Accept() (net.Conn, error) {
	conn, err := c.AcceptUnix()
	if err != nil {
		return nil, err
	}
	return &caller{conn}, nil
}

// caller is a connection, which its address leads to: a call's context has that alone.
type caller struct{ *net.UnixConn }

type callerAddr struct {
	net.Addr
	caller *caller
}

func (c *caller) RemoteAddr() net.Addr { return callerAddr{c.UnixConn.RemoteAddr(), c} }

// callerOf returns the caller of a call; nil: it is unknown.
func callerOf(ctx context.Context) *caller {
	if p, ok := peer.FromContext(ctx); ok {
		if addr, ok := p.Addr.(callerAddr); ok {
			return addr.caller
		}
	}
	return nil
}

// isGone reports whether a caller has closed its connection, or has died: the kernel knows it at
// once, and the server when it has read all that came before.
func (c *caller) isGone() bool {
	if c == nil {
		return false
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return true
	}
	gone := false
	err = raw.Control(func(fd uintptr) {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
		_, err := eintr.Get(func() (int, error) { return unix.Poll(fds, 0) })
		gone = err == nil && fds[0].Revents != 0
	})
	return gone || err != nil // it is closed here, too
}
