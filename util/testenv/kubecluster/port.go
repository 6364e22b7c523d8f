package kubecluster

import (
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// Port is a TCP port of 127.0.0.1 that is kept free: a socket is bound to it that
// does not listen. A program that sets SO_REUSEPORT, too, can still bind and listen.
type Port struct {
	Number  int
	Release func() // may be called again
}

// ReservePort returns a port until its Release.
func ReservePort() (p Port, err error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return Port{}, os.NewSyscallError("socket", err)
	}
	p.Release = sync.OnceFunc(func() { _ = unix.Close(fd) })
	defer func() {
		if err != nil {
			p.Release()
		}
	}()
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1); err != nil {
		return Port{}, os.NewSyscallError("setsockopt", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return Port{}, os.NewSyscallError("bind", err)
	}
	address, err := unix.Getsockname(fd)
	if err != nil {
		return Port{}, os.NewSyscallError("getsockname", err)
	}
	v4, ok := address.(*unix.SockaddrInet4)
	if !ok {
		return Port{}, fmt.Errorf("bound to %T", address)
	}
	p.Number = v4.Port
	return p, nil
}
