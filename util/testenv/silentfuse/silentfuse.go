// Package silentfuse serves FUSE file systems that hang: the tests' stand-in
// for a file server that no longer answers.
//
// It is for tests only.
package silentfuse

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/eintr"
)

// Getattr is the question about a file's attributes, as stat(2) asks it.
const Getattr = 3

// initialize is the first question, which the mount itself asks (linux/fuse.h).
const initialize = 26

// Server serves one mount of an empty directory until it falls silent.
type Server struct {
	device *os.File
	silent atomic.Bool
	asked  chan uint32
	gone   chan struct{}
}

type question struct {
	Len, Opcode          uint32
	Unique, Node         uint64
	UID, GID, PID, Extra uint32
}

type answer struct {
	Len    uint32
	Error  int32
	Unique uint64
}

const device = "/dev/fuse"

// Need skips a test where FUSE's device may not be opened, or is missing.
func Need(t testing.TB) {
	t.Helper()
	fd, err := eintr.Get(func() (int, error) { return unix.Open(device, unix.O_RDWR|unix.O_CLOEXEC, 0) })
	if err != nil {
		t.Skipf("%s cannot be opened (%v): udev opens it to all users, or else root does, by chmod 0666", device, err)
	}
	unix.Close(fd)
}

// Mount mounts an empty directory of the type "fuse.silent" and begins to serve
// it. The caller closes the server, and unmounts.
func Mount(source, target string) (*Server, error) {
	fd, err := eintr.Get(func() (int, error) { return unix.Open(device, unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0) })
	if err != nil {
		return nil, fmt.Errorf("open %s, see Need: %w", device, err)
	}
	options := fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", fd)
	if err := unix.Mount(source, target, "fuse.silent", unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
		unix.Close(fd)
		return nil, err
	}
	// Only now: the device cannot be polled before it is mounted.
	s := &Server{device: os.NewFile(uintptr(fd), device), asked: make(chan uint32, 64), gone: make(chan struct{})}
	go s.serve()
	return s, nil
}

// FallSilent lets all questions from now on wait for ever.
func (s *Server) FallSilent() { s.silent.Store(true) }

// Asked receives the number of each question that was left without an answer,
// up to 64 that nobody has read yet.
func (s *Server) Asked() <-chan uint32 { return s.asked }

// Gone is closed when the server has lost its mount or was closed.
func (s *Server) Gone() <-chan struct{} { return s.gone }

// Close ends the server, which fails all that waits for an answer. It may be
// called again.
func (s *Server) Close() {
	s.device.Close()
	<-s.gone
}

func (s *Server) serve() {
	defer close(s.gone)
	request := make([]byte, 1<<17)
	for {
		n, err := s.device.Read(request)
		if err != nil {
			return // unmounted, aborted or closed
		}
		var q question
		if _, err := binary.Decode(request[:n], binary.NativeEndian, &q); err != nil {
			return
		}
		switch {
		case q.Opcode == initialize: // which may be read after it fell silent
			body := make([]uint32, 16) // struct fuse_init_out
			body[0], body[1], body[5] = 7, 31, 4096
			s.answer(q, 0, body)
		case s.silent.Load():
			select {
			case s.asked <- q.Opcode:
			default:
			}
		case q.Opcode == Getattr:
			body := make([]uint32, 26) // struct fuse_attr_out, valid for no time
			body[4], body[19], body[20] = 1, unix.S_IFDIR|0o755, 2
			s.answer(q, 0, body)
		default:
			s.answer(q, unix.ENOSYS, nil)
		}
	}
}

func (s *Server) answer(q question, errno unix.Errno, body []uint32) {
	var b bytes.Buffer
	size := binary.Size(answer{}) + binary.Size(body)
	binary.Write(&b, binary.NativeEndian, answer{Len: uint32(size), Error: -int32(errno), Unique: q.Unique})
	binary.Write(&b, binary.NativeEndian, body)
	if _, err := s.device.Write(b.Bytes()); err != nil {
		s.device.Close() // so that nobody waits for a broken server
	}
}
