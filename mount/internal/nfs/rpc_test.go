package nfs

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestNull(t *testing.T) {
	s := serve(t, "127.0.0.1", map[program]service{
		programNFS:   {low: 3, high: 4},
		programMount: {low: 1, high: 3, denied: true},
		programStatd: {garbage: true},
		100021:       {rude: true},
		100011:       {low: 2, high: 2},
	})
	tests := []struct {
		program program
		version uint32
		want    string // in the error; none if empty
	}{
		{programNFS, 4, ""},
		{programNFS, 3, ""},
		{programNFS, 2, "speaks versions 3 to 4 of NFS, not 2"},
		{100011, 1, "speaks version 2 of RPC program 100011, not 1"},
		{100099, 1, "has no RPC program 100099"},
		{programMount, 3, ""}, // it is there, and wants credentials
	}
	for _, test := range tests {
		for _, network := range []string{"tcp", "udp"} {
			err := null(t.Context(), network, s.address, test.program, test.version)
			if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("%s %s %d: %v, want %q", network, test.program, test.version, err, test.want)
			}
		}
	}
	for _, p := range []program{programStatd, 100021} { // no RPC, and a closed connection
		err := null(t.Context(), "tcp", s.address, p, 1)
		if reach, ok := errors.AsType[*ReachError](err); !ok || reach.Timeout() {
			t.Errorf("%s: %v, want a *ReachError", p, err)
		}
	}
}

func TestCallToNobody(t *testing.T) {
	nobody := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), freePort(t, "127.0.0.1"))
	for _, network := range []string{"tcp", "udp"} {
		err := null(t.Context(), network, nobody, programNFS, 4)
		reach, ok := errors.AsType[*ReachError](err)
		if !ok || reach.Timeout() || !errors.Is(err, unix.ECONNREFUSED) || !strings.Contains(err.Error(), "NFS at "+nobody.String()) {
			t.Errorf("%s: %v", network, err)
		}
	}
}

// A server that does not answer holds no caller longer than the context.
func TestCallWithoutAnswer(t *testing.T) {
	s := serve(t, "127.0.0.1", map[program]service{programNFS: {silent: true}})
	for _, network := range []string{"tcp", "udp"} {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		err := null(ctx, network, s.address, programNFS, 4)
		cancel()
		if reach, ok := errors.AsType[*ReachError](err); !ok || !reach.Timeout() || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %v", network, err)
		}
		gaveUp := errors.New("the caller gave up")
		ctx, give := context.WithCancelCause(t.Context())
		time.AfterFunc(20*time.Millisecond, func() { give(gaveUp) })
		if err := null(ctx, network, s.address, programNFS, 4); !errors.Is(err, gaveUp) {
			t.Errorf("%s, given up: %v", network, err)
		}
	}
}

// What is lost on the way is sent again.
func TestDatagramIsRepeated(t *testing.T) {
	t.Parallel()
	s := serve(t, "127.0.0.1", map[program]service{programNFS: {low: 4, high: 4}})
	var sent atomic.Int32
	lossy := relay(t, s.address, func() bool { return sent.Add(1) > 1 })
	if err := null(t.Context(), "udp", lossy, programNFS, 4); err != nil || sent.Load() < 2 {
		t.Errorf("null = %v after %d datagrams", err, sent.Load())
	}
}

func TestPortOf(t *testing.T) {
	for _, address := range []string{"127.0.0.1", "::1"} {
		s := serve(t, address, map[program]service{
			programPortmap: {low: 2, high: 4},
			programNFS:     {low: 3, high: 4, ports: everywhere(2049)},
			programMount:   {low: 3, high: 3, ports: map[string]uint16{"udp": 635, "udp6": 635}},
		})
		host := s.address.Addr()
		if port, err := s.client().portOf(t.Context(), host, programNFS, 3, "tcp"); err != nil || port != 2049 {
			t.Errorf("%s: NFS at %d, %v", address, port, err)
		}
		if port, err := s.client().portOf(t.Context(), host, programMount, 3, "udp"); err != nil || port != 635 {
			t.Errorf("%s: mountd at %d, %v", address, port, err)
		}
		_, err := s.client().portOf(t.Context(), host, programMount, 3, "tcp")
		if _, ok := errors.AsType[*notRegisteredError](err); !ok {
			t.Errorf("%s: mountd over TCP: %v", address, err)
		}
	}
}

func TestUniversalAddresses(t *testing.T) {
	tests := map[string]uint16{"::.8.1": 2049, "10.0.0.1.0.111": 111, "": 0}
	for text, want := range tests {
		if port, err := readUniversalAddress(appendString(nil, text)); err != nil || port != want {
			t.Errorf("%q = %d, %v", text, port, err)
		}
	}
	for _, text := range []string{"x", "1.2", "::.256.1", "::.-1.1", "::.8."} {
		if port, err := readUniversalAddress(appendString(nil, text)); err == nil {
			t.Errorf("%q = %d", text, port)
		}
	}
}

// No reply, however broken, does more than fail.
func FuzzReply(f *testing.F) {
	f.Add(appendUint32(nil, 1, msgReply, 0, 0, 0, acceptOK, 5))
	f.Add(appendUint32(nil, 1, msgReply, 0, 0, 8, 1, 2, progMismatch, 3, 4))
	f.Add(appendUint32(nil, 1, msgReply, replyDenied, 0, 2, 2))
	f.Fuzz(func(t *testing.T, reply []byte) {
		if !answers(reply, 1) {
			return
		}
		results, err := call{program: programNFS, version: 4}.results(reply)
		if err == nil && len(results) > len(reply)-24 {
			t.Errorf("%d bytes of results from %d", len(results), len(reply))
		}
		readPort(results)
		readUniversalAddress(results)
	})
}
