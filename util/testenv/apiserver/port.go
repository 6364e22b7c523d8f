package apiserver

import (
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// port is a TCP port of 127.0.0.1 that is kept free: a socket is bound to it that
// does not listen. Who sets SO_REUSEPORT, too, can still bind and listen.
type port struct {
	number  int
	release func()
}

func reservePort() (p port, err error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return port{}, os.NewSyscallError("socket", err)
	}
	p.release = sync.OnceFunc(func() { _ = unix.Close(fd) })
	defer func() {
		if err != nil {
			p.release()
		}
	}()
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1); err != nil {
		return port{}, os.NewSyscallError("setsockopt", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return port{}, os.NewSyscallError("bind", err)
	}
	address, err := unix.Getsockname(fd)
	if err != nil {
		return port{}, os.NewSyscallError("getsockname", err)
	}
	v4, ok := address.(*unix.SockaddrInet4)
	if !ok {
		return port{}, fmt.Errorf("bound to %T", address)
	}
	p.number = v4.Port
	return p, nil
}
