package vmtest

import (
	"bytes"
	"fmt"
	"io/fs"

	"golang.org/x/sys/unix"
)

// archive is an initramfs in the making: a cpio archive in the format "newc"
// (the kernel's Documentation/driver-api/early-userspace/buffer-format.rst).
type archive struct {
	bytes.Buffer
	inode int
}

func (a *archive) directory(name string) { a.entry(name, unix.S_IFDIR|0o755, nil, 0) }

func (a *archive) link(name, target string) { a.entry(name, unix.S_IFLNK|0o777, []byte(target), 0) }

func (a *archive) file(name string, perm fs.FileMode, content []byte) {
	a.entry(name, unix.S_IFREG|uint32(perm.Perm()), content, 0)
}

// device adds a character device.
func (a *archive) device(name string, major, minor uint32) {
	a.entry(name, unix.S_IFCHR|0o600, nil, unix.Mkdev(major, minor))
}

func (a *archive) entry(name string, mode uint32, content []byte, rdev uint64) {
	a.inode++
	fields := []any{a.inode, mode, 0, 0, 1, 0, len(content), 0, 0, unix.Major(rdev), unix.Minor(rdev), len(name) + 1, 0}
	a.WriteString("070701")
	for _, field := range fields {
		fmt.Fprintf(a, "%08X", field)
	}
	a.WriteString(name + "\x00")
	a.pad()
	a.Write(content)
	a.pad()
}

func (a *archive) pad() {
	for a.Len()%4 != 0 {
		a.WriteByte(0)
	}
}

// finish ends the archive and returns it.
func (a *archive) finish() []byte {
	a.entry("TRAILER!!!", 0, nil, 0)
	return a.Bytes()
}
