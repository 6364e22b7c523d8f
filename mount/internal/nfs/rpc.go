package nfs

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"time"

	"github.com/podvol/podvol/util/retry"
)

// program is an RPC program.
type program uint32

// The programs.
const (
	programPortmap program = 100000
	programNFS     program = 100003
	programMount   program = 100005
	programStatd   program = 100024
)

func (p program) String() string {
	switch p {
	case programPortmap:
		return "rpcbind"
	case programNFS:
		return "NFS"
	case programMount:
		return "mountd"
	case programStatd:
		return "rpc.statd"
	}
	return fmt.Sprintf("RPC program %d", uint32(p))
}

// The words of RFC 5531 that are needed here.
const (
	rpcVersion   = 2
	msgCall      = 0
	msgReply     = 1
	replyDenied  = 1
	acceptOK     = 0
	progUnavail  = 1
	progMismatch = 2

	procNull = 0

	// maxReply bounds a reply in bytes; those read here are short.
	maxReply = 4096
	// lastFragment marks the last fragment of a record over TCP.
	lastFragment = 1 << 31
)

// mismatchError is a server that has the program, or not even that, but not the
// version: it has from low to high.
type mismatchError struct {
	program   program
	version   uint32
	none      bool
	low, high uint32
}

func (e *mismatchError) Error() string {
	switch {
	case e.none:
		return fmt.Sprintf("the server has no %s", e.program)
	case e.low == e.high:
		return fmt.Sprintf("the server speaks version %d of %s, not %d", e.low, e.program, e.version)
	}
	return fmt.Sprintf("the server speaks versions %d to %d of %s, not %d", e.low, e.high, e.program, e.version)
}

// rejectedError is a server that answers, but not to this call.
type rejectedError struct{ status uint32 }

func (e *rejectedError) Error() string {
	return fmt.Sprintf("the server rejects the call (%d)", e.status)
}

// call is one remote procedure call.
type call struct {
	network   string // "tcp" or "udp"
	server    netip.AddrPort
	program   program
	version   uint32
	procedure uint32
	arguments []byte
}

// resend is after how long a datagram is sent again, doubled each time up to lastResend.
const (
	resend     = 500 * time.Millisecond
	lastResend = time.Minute
)

// do makes the call without credentials and returns the results. Errors of the
// network are a *[ReachError]; a server that answers without results gives a
// *mismatchError or *rejectedError.
func (c call) do(ctx context.Context) ([]byte, error) {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, c.network, c.server.String())
	if err != nil {
		return nil, c.unreachable(ctx, err)
	}
	defer conn.Close()
	// The deadline of a connection is all that interrupts its reads.
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	xid := rand.Uint32()
	reply, err := c.exchange(ctx, conn, c.message(xid), xid)
	if err != nil {
		return nil, c.unreachable(ctx, err)
	}
	return c.results(reply)
}

func (c call) unreachable(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return &ReachError{Service: fmt.Sprintf("%s at %s (%s)", c.program, c.server, c.network), Err: err}
}

func (c call) message(xid uint32) []byte {
	message := appendUint32(nil, xid, msgCall, rpcVersion, uint32(c.program), c.version, c.procedure,
		0, 0, 0, 0) // credential and verifier: none
	return append(message, c.arguments...)
}

func (c call) exchange(ctx context.Context, conn net.Conn, message []byte, xid uint32) ([]byte, error) {
	if c.network == "udp" {
		return exchangeDatagrams(ctx, conn, message, xid)
	}
	record := binary.BigEndian.AppendUint32(nil, lastFragment|uint32(len(message)))
	if _, err := conn.Write(append(record, message...)); err != nil {
		return nil, err
	}
	reply, err := readRecord(conn)
	if err == nil && !answers(reply, xid) {
		err = errors.New("it answers, but not in RPC")
	}
	return reply, err
}

// answers reports whether a message is the reply to the call xid.
func answers(reply []byte, xid uint32) bool {
	r := reader{left: reply}
	return r.uint32() == xid && r.uint32() == msgReply && !r.bad
}

func readRecord(conn io.Reader) ([]byte, error) {
	var record []byte
	for {
		var header [4]byte
		if _, err := io.ReadFull(conn, header[:]); err != nil {
			return nil, err
		}
		mark := binary.BigEndian.Uint32(header[:])
		n, ok := fragmentLength(mark, len(record))
		if !ok {
			return nil, errors.New("it answers, but not in RPC")
		}
		fragment := make([]byte, n)
		if _, err := io.ReadFull(conn, fragment); err != nil {
			return nil, err
		}
		if record = append(record, fragment...); mark&lastFragment != 0 {
			return record, nil
		}
	}
}

// fragmentLength checks the length in a fragment's mark against the bytes of
// the record that were read already. It is compared before it becomes an int,
// which has 32 bits on some machines.
func fragmentLength(mark uint32, have int) (n int, ok bool) {
	claimed := mark &^ uint32(lastFragment)
	if claimed > maxReply || int(claimed) > maxReply-have {
		return 0, false
	}
	return int(claimed), true
}

// exchangeDatagrams sends until it is answered.
func exchangeDatagrams(ctx context.Context, conn net.Conn, message []byte, xid uint32) ([]byte, error) {
	buffer := make([]byte, maxReply)
	wait := retry.Pause{First: resend, Last: lastResend}
	for {
		if _, err := conn.Write(message); err != nil {
			return nil, err
		}
		conn.SetReadDeadline(time.Now().Add(wait.Next()))
		if ctx.Err() != nil { // it may have ended before the deadline was set
			return nil, context.Cause(ctx)
		}
		for {
			n, err := conn.Read(buffer)
			if netErr, ok := errors.AsType[net.Error](err); ok && netErr.Timeout() && ctx.Err() == nil {
				break
			}
			if err != nil {
				return nil, err
			}
			if answers(buffer[:n], xid) {
				return buffer[:n], nil
			}
		}
	}
}

// results takes the results out of a reply.
func (c call) results(reply []byte) ([]byte, error) {
	r := reader{left: reply[8:]} // after xid and direction
	if r.uint32() == replyDenied {
		return nil, &rejectedError{r.uint32()}
	}
	r.uint32() // the verifier's flavour
	r.bytes()
	status := r.uint32()
	switch {
	case r.bad:
		return nil, errShort
	case status == acceptOK:
		return r.left, nil
	case status == progUnavail:
		return nil, &mismatchError{program: c.program, version: c.version, none: true}
	case status == progMismatch:
		low, high := r.uint32(), r.uint32()
		return nil, &mismatchError{program: c.program, version: c.version, low: low, high: high}
	}
	return nil, &rejectedError{status}
}

// errShort is a reply that ends too early.
var errShort = errors.New("the reply is too short")

// maxString bounds what a reply may claim a string's length to be, in bytes.
const maxString = 1024

func appendUint32(b []byte, values ...uint32) []byte {
	for _, v := range values {
		b = binary.BigEndian.AppendUint32(b, v)
	}
	return b
}

// appendString appends a string with its length, padded to four bytes.
func appendString(b []byte, s string) []byte {
	b = append(appendUint32(b, uint32(len(s))), s...)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return b
}

// reader reads XDR (RFC 4506) and remembers that something was missing.
type reader struct {
	left []byte
	bad  bool
}

func (r *reader) uint32() uint32 {
	if len(r.left) < 4 {
		r.bad, r.left = true, nil
		return 0
	}
	v := binary.BigEndian.Uint32(r.left)
	r.left = r.left[4:]
	return v
}

func (r *reader) bytes() []byte {
	n, padded, ok := opaqueLength(r.uint32(), len(r.left))
	if !ok {
		r.bad, r.left = true, nil
		return nil
	}
	b := r.left[:n]
	r.left = r.left[padded:]
	return b
}

// opaqueLength checks a length that a reply claims against the bytes that are
// left, and returns it without and with its padding. It is compared before it
// becomes an int, which has 32 bits on some machines.
func opaqueLength(claimed uint32, left int) (n, padded int, ok bool) {
	if claimed > maxString {
		return 0, 0, false
	}
	n = int(claimed)
	padded = (n + 3) &^ 3
	return n, padded, padded <= left
}

func (r *reader) err() error {
	if r.bad {
		return errShort
	}
	return nil
}
