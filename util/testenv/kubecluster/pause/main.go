// Command pause is the only process of a pod's sandbox in tests: it keeps the pod's
// namespaces, and reaps the processes that containers leave where they share its PID
// namespace. SIGINT and SIGTERM end it.
//
// As "nc -lU path" it listens at a socket meanwhile, as tests ask of a program of this name.
package main

import (
	"fmt"
	"net"
	"os"
	"os/signal"

	"golang.org/x/sys/unix"
)

func main() {
	if len(os.Args) == 3 && os.Args[1] == "-lU" {
		listener, err := net.Listen("unix", os.Args[2])
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		defer listener.Close()
	}
	told := make(chan os.Signal, 1)
	signal.Notify(told, unix.SIGINT, unix.SIGTERM, unix.SIGCHLD)
	for s := range told {
		if s != unix.SIGCHLD {
			return
		}
		for {
			if pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil); err == unix.EINTR {
				continue
			} else if pid <= 0 {
				break
			}
		}
	}
}
