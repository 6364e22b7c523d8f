package format_test

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/podvol/podvol/mount/format"
)

// sparse is a device of zeroes but for some sectors, and places that fail.
type sparse struct {
	size    int64
	sectors map[int64][]byte
	fail    func(from, to int64) error
}

func (s sparse) ReadAt(p []byte, offset int64) (int, error) {
	if s.fail != nil {
		if err := s.fail(offset, offset+int64(len(p))); err != nil {
			return 0, err
		}
	}
	clear(p)
	n := int(max(0, min(int64(len(p)), s.size-offset)))
	for at, data := range s.sectors {
		for i, c := range data {
			if j := at + int64(i) - offset; j >= 0 && j < int64(n) {
				p[j] = c
			}
		}
	}
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

// recorded is an image of testdata/signatures.txt with what should be found.
type recorded struct {
	name string
	sparse
	want []format.Signature
}

func readRecorded(t testing.TB) []recorded {
	t.Helper()
	text, err := os.ReadFile("testdata/signatures.txt")
	if err != nil {
		t.Fatal(err)
	}
	var all []recorded
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSuffix(line, "\n")
		if line == "" || line[0] == '#' {
			continue
		}
		if line[0] != '\t' {
			r := recorded{sparse: sparse{sectors: map[int64][]byte{}}}
			if _, err := fmt.Sscan(line, &r.name, &r.size); err != nil {
				t.Fatalf("%q: %v", line, err)
			}
			all = append(all, r)
			continue
		}
		last := &all[len(all)-1]
		what, bytes, _ := strings.Cut(line[1:], ": ")
		fields := strings.Split(what, ", ")
		var sector int64
		if _, err := fmt.Sscan(fields[2], &sector); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		data, err := hex.DecodeString(bytes + strings.Repeat("0", len(bytes)%2))
		if err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		last.sectors[sector] = data
		last.want = append(last.want, format.Signature{Type: fields[0], Kind: format.Kind(fields[1]), Offset: sector})
	}
	return all
}

func TestWhatTheToolsWriteIsRecognised(t *testing.T) {
	all := readRecorded(t)
	if len(all) < 15 {
		t.Fatalf("only %d images are recorded", len(all))
	}
	for _, r := range all {
		got, err := format.Inspect(t.Context(), r, r.size)
		if err != nil {
			t.Errorf("%s: %v", r.name, err)
		}
		for i := range got.Signatures {
			got.Signatures[i].Offset &^= 511 // of the sector
		}
		if diff := cmp.Diff(r.want, got.Signatures); diff != "" {
			t.Errorf("%s (-want +got):\n%s", r.name, diff)
		}
	}
}

// Signatures for which no tool was at hand, or that only damage leaves.
func TestFurtherSignatures(t *testing.T) {
	const size = 300<<20 + 5*512
	for _, c := range []struct {
		offset int64
		magic  string
		want   string
	}{
		{64<<20 + 0x40, "_BHRfS_M", "btrfs (remains at byte 67108928)"},
		{0x10040, "!BHRfS_M", "btrfs (remains at byte 65600)"},
		{32768*4096 + 0x38, "\x53\xef" + strings.Repeat("\x00", 0x20) + "\x01", "ext2 (remains at byte 134217784)"},
		{4096, "\xfc\x4e\x2b\xa9", "linux_raid_member (member at byte 4096)"},
		{0, "\xfc\x4e\x2b\xa9", "linux_raid_member (member at byte 0)"},
		{300<<20 + 5*512 - 21*512, "\xfc\x4e\x2b\xa9", "linux_raid_member (member at byte 314564608)"},
		{300<<20 - 64<<10, "\xa9\x2b\x4e\xfc", "linux_raid_member (member at byte 314507264)"},
		{128 << 10, "\x0c\xb1\xba\x00\x00\x00\x00\x00", "zfs_member (member at byte 131072)"},
		{300<<20 - 128<<10 + 5<<10, "\x00\x00\x00\x00\x00\xba\xb1\x0c", "zfs_member (member at byte 314446848)"},
		{0, "bluestore block device\n", "ceph_bluestore (member at byte 0)"},
		{size - 512, "EFI PART", "gpt (partition table at byte 314574848)"},
		{size - 4096, "EFI PART", "gpt (partition table at byte 314571264)"},
		{0x400000, "SKUL\xba\xbe", "crypto_LUKS (member at byte 4194304)"},
		{65536 - 10, "SWAPSPACE2", "swap (member at byte 65526)"},
		{510, "\x55\xaa", "dos (partition table at byte 510)"},
	} {
		device := sparse{size: size, sectors: map[int64][]byte{c.offset: []byte(c.magic)}}
		got, err := format.Inspect(t.Context(), device, size)
		if err != nil || got.String() != c.want {
			t.Errorf("%q at %d: %v, %v; want %s", c.magic, c.offset, got, err, c.want)
		}
	}
}

func TestOnlyZeroesAreBlank(t *testing.T) {
	for _, size := range []int64{0, 1, 512, 4095, 4 << 20, 5<<20 - 1, 1 << 40} {
		got, err := format.Inspect(t.Context(), sparse{size: size}, size)
		if err != nil || !got.Blank() {
			t.Errorf("%d zeroes: %v, %v", size, got, err)
		}
		for _, at := range []int64{0, 1, size/2 - 1, 4<<20 - 1, size - 1<<20, size - 1} {
			if at < 0 || at >= size || at >= 4<<20 && at < size-1<<20 {
				continue
			}
			device := sparse{size: size, sectors: map[int64][]byte{at: {1}}}
			got, err := format.Inspect(t.Context(), device, size)
			if err != nil || !got.Data || got.DataOffset != at {
				t.Errorf("%d bytes, not zero at %d: %+v, %v", size, at, got, err)
			}
		}
	}
}

// Wherever a read fails that decides on blank or not, the answer is an error.
func TestEveryReadErrorRefuses(t *testing.T) {
	const size = 16 << 20
	broken := errors.New("broken")
	var reads [][2]int64
	device := sparse{size: size, fail: func(from, to int64) error {
		reads = append(reads, [2]int64{from, to})
		return nil
	}}
	if _, err := format.Inspect(t.Context(), device, size); err != nil {
		t.Fatal(err)
	}
	if len(reads) < 20 {
		t.Fatalf("only %d reads", len(reads))
	}
	for _, read := range reads {
		device.fail = func(from, to int64) error {
			if from == read[0] && to == read[1] {
				return broken
			}
			return nil
		}
		got, err := format.Inspect(t.Context(), device, size)
		place, ok := errors.AsType[*format.ReadError](err)
		if !errors.Is(err, broken) || !ok || place.Offset != read[0] || !cmp.Equal(got, format.Content{}) {
			t.Errorf("reading %v fails: %v, %v", read, got, err)
		}
	}
	// So is an end that comes early.
	if _, err := format.Inspect(t.Context(), sparse{size: size - 1}, size); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("a short device: %v", err)
	}
}

func TestInspectEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	gone := errors.New("gone")
	reads := 0
	device := sparse{size: 64 << 20, fail: func(int64, int64) error {
		if reads++; reads == 3 {
			cancel(gone)
		}
		return nil
	}}
	if _, err := format.Inspect(ctx, device, device.size); !errors.Is(err, gone) || reads != 3 {
		t.Errorf("after %d reads: %v", reads, err)
	}
}

// Whatever is on a device, Inspect returns, and calls nothing blank that is not
// all zeroes.
func FuzzInspect(f *testing.F) {
	for _, r := range readRecorded(f) {
		for at, data := range r.sectors {
			f.Add(r.size, at, data)
		}
	}
	f.Fuzz(func(t *testing.T, size, at int64, data []byte) {
		if size < 0 || size > 1<<45 || at < 0 || at > size {
			return
		}
		device := sparse{size: size, sectors: map[int64][]byte{at: data}}
		got, err := format.Inspect(t.Context(), device, size)
		if err != nil {
			t.Fatalf("nothing fails here: %v", err)
		}
		shown := data[:min(int64(len(data)), size-at)]
		seen := at+int64(len(shown)) <= 4<<20 || at >= size-1<<20
		if seen && got.Blank() && slices.ContainsFunc(shown, func(b byte) bool { return b != 0 }) {
			t.Errorf("%d bytes at %d of %d are called blank", len(shown), at, size)
		}
	})
}
