package vmtest

import (
	"bytes"
	"context"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"os/exec"
)

// expand writes the kernel that is packed in a bzImage to a file of its own, which
// QEMU can start as it is: where a processor is emulated, half of a boot is the
// unpacking. It reports false, and writes nothing, where the kernel cannot be
// started so.
//
// The header is that of the Linux/x86 boot protocol 2.08 and later
// (Documentation/arch/x86/boot.rst).
func expand(ctx context.Context, image, to string) (done bool, err error) {
	packed, err := os.ReadFile(image)
	if err != nil {
		return false, err
	}
	payload := payloadOf(packed)
	if !bytes.HasPrefix(payload, []byte("\xfd7zXZ\x00")) {
		return false, nil
	}
	cmd := exec.CommandContext(ctx, "xz", "-dc", "--single-stream") // the length follows
	cmd.Stdin = bytes.NewReader(payload)
	kernel, err := cmd.Output()
	if err != nil {
		return false, fmt.Errorf("unpack the kernel in %s: %w", image, err)
	}
	if !startsAsItIs(kernel) {
		return false, nil
	}
	return true, os.WriteFile(to, kernel, 0o644)
}

// payloadOf returns the packed kernel within a bzImage; nil: it is none.
func payloadOf(image []byte) []byte {
	const sectors, magic, offset, length, end = 0x1f1, 0x202, 0x248, 0x24c, 0x250
	if len(image) < end || string(image[magic:magic+4]) != "HdrS" {
		return nil
	}
	setup := int64(image[sectors])
	if setup == 0 {
		setup = 4
	}
	from := (setup+1)*512 + int64(binary.LittleEndian.Uint32(image[offset:]))
	to := from + int64(binary.LittleEndian.Uint32(image[length:]))
	if to > int64(len(image)) {
		return nil
	}
	return image[from:to]
}

// startsAsItIs reports whether a kernel has the entry that QEMU starts uncompressed
// ones at, the note XEN_ELFNOTE_PHYS32_ENTRY of PVH.
func startsAsItIs(kernel []byte) bool {
	const owner, phys32Entry = "Xen\x00", 18
	file, err := elf.NewFile(bytes.NewReader(kernel))
	if err != nil {
		return false
	}
	for _, part := range file.Progs {
		if part.Type != elf.PT_NOTE {
			continue
		}
		notes := part.Open()
		for {
			var note struct{ Name, Desc, Type uint32 }
			if binary.Read(notes, file.ByteOrder, &note) != nil {
				break
			}
			name, rest := make([]byte, len(owner)), aligned(note.Name)+aligned(note.Desc)
			n, _ := io.ReadFull(notes, name[:min(len(owner), int(note.Name))])
			if note.Type == phys32Entry && string(name) == owner {
				return true
			}
			if _, err := notes.Seek(rest-int64(n), io.SeekCurrent); err != nil {
				break
			}
		}
	}
	return false
}

// aligned is what something of a length takes in a note.
func aligned(length uint32) int64 { return (int64(length) + 3) &^ 3 }
