package atomicdir

import (
	"bytes"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/eintr"
)

// comparer reads a version back.
type comparer struct{ buffer []byte }

// compare marks the files below n that the directory fd holds just so, and
// reports whether it holds them all and nothing else. What cannot be read is
// not the same.
func (c *comparer) compare(fd int, n *node) bool {
	names, err := readNames(fd)
	same := err == nil && len(names) == len(n.children)
	for i := range n.children {
		child := &n.children[i]
		if child.file != nil {
			child.same = c.sameFile(fd, child.name, child.file)
			same = same && child.same
			continue
		}
		below, err := openDirAt(fd, child.name)
		if err != nil {
			same = false
			continue
		}
		if !isPlainDir(below) || !c.compare(below, child) {
			same = false
		}
		unix.Close(below)
	}
	return same
}

func isPlainDir(fd int) bool {
	var st unix.Stat_t
	return fstat(fd, &st) == nil && st.Mode&0o777 == dirMode
}

func (c *comparer) sameFile(dirfd int, name string, f *File) bool {
	fd, err := openUnnoticed(dirfd, name, unix.O_RDONLY|unix.O_NONBLOCK)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if fstat(fd, &st) != nil || st.Mode != unix.S_IFREG|uint32(f.Mode) || st.Size != int64(len(f.Data)) {
		return false
	}
	if f.UID != nil && int64(st.Uid) != *f.UID || f.GID != nil && int64(st.Gid) != *f.GID {
		return false
	}
	if c.buffer == nil {
		c.buffer = make([]byte, 64<<10)
	}
	for rest := f.Data; len(rest) > 0; {
		n, err := eintr.Get(func() (int, error) { return unix.Read(fd, c.buffer) })
		if err != nil || n == 0 || n > len(rest) || !bytes.Equal(c.buffer[:n], rest[:n]) {
			return false
		}
		rest = rest[n:]
	}
	return true
}
