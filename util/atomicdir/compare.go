package atomicdir

import (
	"bytes"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/eintr"
)

// compareChunk is how many files are worth a goroutine of their own when a
// version is read back; system calls are most of that work.
const compareChunk = 128

// compare marks the files below n that the directory fd holds just so, and
// reports whether it holds them all and nothing else. What cannot be read is
// not the same.
func compare(fd int, n *node) bool {
	names, err := readNames(fd)
	same := err == nil && len(names) == len(n.children)
	compareFiles(fd, n.children)
	for i := range n.children {
		child := &n.children[i]
		if child.file == nil {
			child.same = compareDir(fd, child)
		}
		same = same && child.same
	}
	return same
}

func compareDir(fd int, n *node) bool {
	below, err := openDirAt(fd, n.name)
	if err != nil {
		return false
	}
	defer unix.Close(below)
	var st unix.Stat_t
	// Both, so that equal files are marked whatever the directory's mode.
	return compare(below, n) && fstat(below, &st) == nil && st.Mode&0o777 == dirMode
}

// compareFiles marks the files among the entries of one directory.
func compareFiles(dirfd int, children []node) {
	workers := min(runtime.GOMAXPROCS(0), (len(children)+compareChunk-1)/compareChunk)
	var wait sync.WaitGroup
	for w := range workers {
		part := children[w*len(children)/workers : (w+1)*len(children)/workers]
		wait.Go(func() {
			buffer := make([]byte, 16<<10)
			for i := range part {
				if part[i].file != nil {
					part[i].same = sameFile(dirfd, part[i].name, part[i].file, buffer)
				}
			}
		})
	}
	wait.Wait()
}

func sameFile(dirfd int, name string, f *File, buffer []byte) bool {
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
	for rest := f.Data; len(rest) > 0; {
		n, err := eintr.Get(func() (int, error) { return unix.Read(fd, buffer) })
		if err != nil || n == 0 || n > len(rest) || !bytes.Equal(buffer[:n], rest[:n]) {
			return false
		}
		rest = rest[n:]
	}
	return true
}
