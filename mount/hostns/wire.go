package hostns

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	k8smount "k8s.io/mount-utils"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/host"
)

// op is what the child is asked for.
type op string

const (
	opHello     op = "hello" // the first one: takes the settings
	opCancel    op = "cancel"
	opMount     op = "mount"
	opMountBy   op = "mount with flags"
	opUnmount   op = "unmount"
	opList      op = "list"
	opPoint     op = "is mount point"
	opRefs      op = "references"
	opAt        op = "at"
	opSource    op = "by source"
	opDevice    op = "by device"
	opAll       op = "all"
	opBelow     op = "below"
	opContains  op = "containing"
	opSubscribe op = "subscribe"
)

// question goes to the child.
type question struct {
	ID uint64 // of opCancel: the call that is to end
	Op op
	// Left is until the deadline; 0: there is none.
	Left     time.Duration
	Request  mount.Request
	Flags    []string
	Options  mount.UnmountOptions
	Path     string // of a target, a source, a directory, or of the descriptor that comes along
	Device   uint64
	Settings settings
}

// settings are for the child's whole life.
type settings struct {
	Via                                                                             host.Via
	MountCommand, FilesystemsFile, ModulesDir, OSReleaseFile, SystemdDir, CgroupDir string
	HelperDirs                                                                      []string
	Cgroup                                                                          string
	// OwnProcesses: the child is not in the host's PID namespace.
	OwnProcesses bool
}

// answer comes from the child.
type answer struct {
	ID      uint64
	Failed  *failed
	Rung    mount.Rung
	Found   bool
	Entry   mount.Entry
	Entries []mount.Entry
	Points  []k8smount.MountPoint
	Paths   []string
	// Changed is one of many answers to opSubscribe.
	Changed bool
	// Log is a record of a JSON handler, instead of an answer.
	Log []byte
	// Namespace is the child's mount namespace, after opHello.
	Namespace string
}

// failed is an error on its way.
type failed struct {
	Mount  *mount.Error // without Err
	Text   string       // of Mount.Err, or of the error
	Errnos []uint32
	// Canceled and Late: the child's context had ended.
	Canceled, Late bool
}

func send(err error) *failed {
	if err == nil {
		return nil
	}
	f := &failed{Text: err.Error(), Canceled: errors.Is(err, context.Canceled), Late: errors.Is(err, context.DeadlineExceeded)}
	collect(err, func(e syscall.Errno) {
		if !slices.Contains(f.Errnos, uint32(e)) {
			f.Errnos = append(f.Errnos, uint32(e))
		}
	})
	if own, ok := errors.AsType[*mount.Error](err); ok {
		known := *own
		f.Text = ""
		if own.Err != nil {
			f.Text = own.Err.Error()
		}
		known.Err = nil
		f.Mount = &known
	}
	return f
}

// collect calls found with each errno in an error's tree.
func collect(err error, found func(syscall.Errno)) {
	if errno, ok := err.(syscall.Errno); ok {
		found(errno)
	}
	switch e := err.(type) {
	case interface{ Unwrap() error }:
		if inner := e.Unwrap(); inner != nil {
			collect(inner, found)
		}
	case interface{ Unwrap() []error }:
		for _, inner := range e.Unwrap() {
			collect(inner, found)
		}
	}
}

// remoteError has the text of an error of the child, and matches what that matched.
type remoteError struct {
	text string
	is   []error
}

func (e *remoteError) Error() string   { return e.text }
func (e *remoteError) Unwrap() []error { return e.is }

// received is the error again. ctx is the caller's, whose cause the child does not know.
func (f *failed) received(ctx context.Context) error {
	if f == nil {
		return nil
	}
	remote := &remoteError{text: f.Text}
	for _, errno := range f.Errnos {
		remote.is = append(remote.is, syscall.Errno(errno))
	}
	if f.Canceled {
		remote.is = append(remote.is, context.Canceled)
	}
	if f.Late {
		remote.is = append(remote.is, context.DeadlineExceeded)
	}
	if cause := context.Cause(ctx); cause != nil && (f.Canceled || f.Late) {
		remote.is = append(remote.is, cause)
	}
	if f.Mount == nil {
		return remote
	}
	whole := *f.Mount
	if f.Text != "" {
		whole.Err = remote
	}
	return &whole
}

// maxFrame is more than the largest mount table takes.
const maxFrame = 1 << 30

// wire sends and receives values of two types in frames, with descriptors. Sending is safe
// for concurrent use, receiving is not.
type wire struct {
	conn *net.UnixConn

	sending sync.Mutex
	out     bytes.Buffer
	encoder *gob.Encoder

	in      bytes.Buffer
	decoder *gob.Decoder
}

func newWire(f *os.File) (*wire, error) {
	defer f.Close()
	conn, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	unixConn, ok := conn.(*net.UnixConn)
	if !ok {
		conn.Close()
		return nil, fmt.Errorf("a %T is no pair of sockets", conn)
	}
	w := &wire{conn: unixConn}
	w.encoder, w.decoder = gob.NewEncoder(&w.out), gob.NewDecoder(&w.in)
	return w, nil
}

// send sends a value, and a descriptor if file is not nil.
func (w *wire) send(value any, file *os.File) error {
	w.sending.Lock()
	defer w.sending.Unlock()
	w.out.Reset()
	w.out.Write(make([]byte, 4))
	if err := w.encoder.Encode(value); err != nil {
		return err
	}
	frame := w.out.Bytes()
	binary.LittleEndian.PutUint32(frame, uint32(len(frame)-4))
	var rights []byte
	if file != nil {
		rights = unix.UnixRights(int(file.Fd()))
	}
	// The descriptor goes with the first bytes.
	n, _, err := w.conn.WriteMsgUnix(frame, rights, nil)
	for err == nil && n < len(frame) {
		var more int
		more, err = w.conn.Write(frame[n:])
		n += more
	}
	return err
}

// receive receives a value, and the descriptor that came with it; else nil.
func (w *wire) receive(value any) (file *os.File, err error) {
	defer func() {
		if err != nil && file != nil {
			file.Close()
			file = nil
		}
	}()
	header, rights := make([]byte, 4), make([]byte, unix.CmsgSpace(4))
	n, r, _, _, err := w.conn.ReadMsgUnix(header, rights)
	if err != nil {
		return nil, err
	}
	if n == 0 {
		return nil, io.EOF
	}
	if file, err = fileOf(rights[:r]); err != nil {
		return nil, err
	}
	if _, err := io.ReadFull(w.conn, header[n:]); err != nil {
		return file, err
	}
	size := binary.LittleEndian.Uint32(header)
	if size > maxFrame {
		return file, fmt.Errorf("a message of %d bytes is no message", size)
	}
	if _, err := io.CopyN(&w.in, w.conn, int64(size)); err != nil {
		return file, err
	}
	return file, w.decoder.Decode(value)
}

// fileOf takes the descriptor out of a control message.
func fileOf(rights []byte) (*os.File, error) {
	if len(rights) == 0 {
		return nil, nil
	}
	messages, err := unix.ParseSocketControlMessage(rights)
	if err != nil || len(messages) != 1 {
		return nil, fmt.Errorf("%d control messages: %w", len(messages), err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		return nil, fmt.Errorf("%d descriptors: %w", len(fds), err)
	}
	return os.NewFile(uintptr(fds[0]), "sent"), nil
}
