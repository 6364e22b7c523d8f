package nfs

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"testing"
)

// What a server claims to send is held to what a reply may be, whatever the
// width of an int.
func TestClaimedLengths(t *testing.T) {
	const claims = "a claim of %#x bytes"
	for _, tc := range []struct {
		claimed   uint32
		left      int
		n, padded int
		ok        bool
	}{
		{claimed: 0, left: 0, ok: true},
		{claimed: 5, left: 8, n: 5, padded: 8, ok: true},
		{claimed: 5, left: 7},
		{claimed: maxString, left: maxString, n: maxString, padded: maxString, ok: true},
		{claimed: maxString + 1, left: math.MaxInt},
		{claimed: math.MaxInt32, left: math.MaxInt},
		{claimed: 1 << 31, left: math.MaxInt},
		{claimed: math.MaxUint32 - 3, left: math.MaxInt},
		{claimed: math.MaxUint32, left: math.MaxInt},
	} {
		n, padded, ok := opaqueLength(tc.claimed, tc.left)
		if ok != tc.ok || ok && (n != tc.n || padded != tc.padded) {
			t.Errorf(claims+", %d left: %d, %d, %v", tc.claimed, tc.left, n, padded, ok)
		}
	}
	for _, tc := range []struct {
		mark uint32
		have int
		n    int
		ok   bool
	}{
		{lastFragment, 0, 0, true},
		{lastFragment | 100, 28, 100, true},
		{maxReply - 28, 28, maxReply - 28, true},
		{maxReply - 27, 28, 0, false},
		{maxReply + 1, 0, 0, false},
		{math.MaxInt32, 0, 0, false},
		{math.MaxInt32, 28, 0, false}, // 28 more than an int of 32 bits can count
		{math.MaxUint32, maxReply, 0, false},
	} {
		if n, ok := fragmentLength(tc.mark, tc.have); n != tc.n || ok != tc.ok {
			t.Errorf(claims+" after %d: %d, %v", tc.mark, tc.have, n, ok)
		}
	}
}

func TestRepliesThatClaimTooMuch(t *testing.T) {
	r := reader{left: []byte{0xff, 0xff, 0xff, 0xff, 1, 2, 3, 4}}
	if b := r.bytes(); b != nil || !errors.Is(r.err(), errShort) {
		t.Errorf("read %v, %v", b, r.err())
	}
	first := append(binary.BigEndian.AppendUint32(nil, 8), "12345678"...)
	huge := bytes.NewReader(binary.BigEndian.AppendUint32(first, math.MaxUint32))
	if record, err := readRecord(huge); err == nil || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("read %q, %v", record, err)
	}
}
