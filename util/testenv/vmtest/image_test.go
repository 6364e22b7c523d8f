package vmtest

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/podvol/podvol/util/testenv/testtool"
)

// A kernel is expanded where QEMU can start it, and else left packed.
func TestExpand(t *testing.T) {
	pvh, other := elfWithNotes(t, 6, 18), elfWithNotes(t, 6, 17)
	for name, tc := range map[string]struct {
		image []byte
		want  []byte
	}{
		"Debian's":               {bzImage(t, pvh), pvh},
		"without the entry":      {bzImage(t, other), nil},
		"no kernel within":       {bzImage(t, []byte("no ELF file")), nil},
		"packed by others":       {bzImageOf([]byte("\x1f\x8bgzip")), nil},
		"longer than the file":   {bzImage(t, pvh)[:2048], nil},
		"no image":               {[]byte("HdrS"), nil},
		"an image without magic": {make([]byte, 4096), nil},
	} {
		t.Run(name, func(t *testing.T) {
			image := filepath.Join(t.TempDir(), "vmlinuz-1")
			if err := os.WriteFile(image, tc.image, 0o644); err != nil {
				t.Fatal(err)
			}
			done, err := expand(t.Context(), image, expandedName(image))
			if err != nil || done != (tc.want != nil) {
				t.Fatalf("done %v, %v", done, err)
			}
			got, err := os.ReadFile(filepath.Join(filepath.Dir(image), "vmlinux-1"))
			if !bytes.Equal(got, tc.want) || (err == nil) != done {
				t.Errorf("%d bytes, %v", len(got), err)
			}
		})
	}
}

func bzImage(t *testing.T, kernel []byte) []byte {
	t.Helper()
	testtool.Need(t, "xz")
	cmd := exec.CommandContext(t.Context(), "xz", "--check=crc32", "-c")
	cmd.Stdin = bytes.NewReader(kernel)
	packed, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	return bzImageOf(binary.LittleEndian.AppendUint32(packed, uint32(len(kernel))))
}

func bzImageOf(payload []byte) []byte {
	const setup, offset = 3, 700
	image := make([]byte, (setup+1)*512+offset)
	image[0x1f1] = setup
	copy(image[0x202:], "HdrS")
	binary.LittleEndian.PutUint32(image[0x248:], offset)
	binary.LittleEndian.PutUint32(image[0x24c:], uint32(len(payload)))
	return append(image, payload...)
}

// elfWithNotes is an ELF file that has but Xen's notes, of these types.
func elfWithNotes(t *testing.T, types ...uint32) []byte {
	t.Helper()
	var notes, file bytes.Buffer
	write := func(to *bytes.Buffer, value any) {
		if err := binary.Write(to, binary.LittleEndian, value); err != nil {
			t.Fatal(err)
		}
	}
	for _, kind := range types {
		write(&notes, [3]uint32{4, 6, kind})
		notes.WriteString("Xen\x00linux\x00\x00\x00")
	}
	write(&file, elf.Header64{
		Ident: [elf.EI_NIDENT]byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)},
		Type:  uint16(elf.ET_EXEC), Machine: uint16(elf.EM_X86_64), Version: uint32(elf.EV_CURRENT),
		Phoff: 64, Ehsize: 64, Phentsize: 56, Phnum: 1,
	})
	write(&file, elf.Prog64{Type: uint32(elf.PT_NOTE), Off: 64 + 56, Filesz: uint64(notes.Len()), Memsz: uint64(notes.Len())})
	file.Write(notes.Bytes())
	return file.Bytes()
}
