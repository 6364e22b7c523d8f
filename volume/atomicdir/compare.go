//go:build linux || darwin || freebsd || netbsd || openbsd

package atomicdir

import (
	"bytes"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/eintr"
	"github.com/podvol/podvol/volume/fileset"
)

// compareChunk is how many files are worth a goroutine of their own when a
// version is read back; system calls are most of that work.
const compareChunk = 128

// owner is what files are given by their creation.
type owner struct{ uid, gid uint32 }

// of is the owner that a file shall have: its own, else that of creation.
func (o owner) of(f *fileset.File) owner {
	if f.UID != nil {
		o.uid = uint32(*f.UID)
	}
	if f.GID != nil {
		o.gid = uint32(*f.GID)
	}
	return o
}

// compare marks the files below n that the directory fd holds just so, created
// being the owner of those without one, and reports whether it holds them all
// and nothing else, and has the mode of a directory. What cannot be read is not
// the same. Equal files are marked whatever else differs.
func compare(fd int, n *node, created owner) bool {
	names, err := readNames(fd)
	same := err == nil && len(names) == len(n.children)
	var st unix.Stat_t
	same = same && fstat(fd, &st) == nil && uint32(st.Mode)&0o777 == dirMode
	compareFiles(fd, n.children, created)
	for i := range n.children {
		child := &n.children[i]
		if child.file == nil {
			child.same = compareDir(fd, child, created)
		}
		same = same && child.same
	}
	return same
}

func compareDir(fd int, n *node, created owner) bool {
	below, err := openDirAt(fd, n.name)
	if err != nil {
		return false
	}
	defer unix.Close(below)
	return compare(below, n, created)
}

// compareFiles marks the files among the entries of one directory.
func compareFiles(dirfd int, children []node, created owner) {
	workers := min(runtime.GOMAXPROCS(0), (len(children)+compareChunk-1)/compareChunk)
	if workers == 1 {
		comparePart(dirfd, children, created)
		return
	}
	var wait sync.WaitGroup
	for w := range workers {
		part := children[w*len(children)/workers : (w+1)*len(children)/workers]
		wait.Go(func() { comparePart(dirfd, part, created) })
	}
	wait.Wait()
}

func comparePart(dirfd int, part []node, created owner) {
	buffer := make([]byte, 16<<10)
	for i := range part {
		if part[i].file != nil {
			part[i].same = sameFile(dirfd, part[i].name, part[i].file, created, buffer)
		}
	}
}

func sameFile(dirfd int, name string, f *fileset.File, created owner, buffer []byte) bool {
	fd, err := openUnnoticed(dirfd, name, unix.O_RDONLY|unix.O_NONBLOCK)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if fstat(fd, &st) != nil || uint32(st.Mode) != unix.S_IFREG|uint32(f.Mode) || st.Size != int64(len(f.Data)) {
		return false
	}
	if created.of(f) != (owner{st.Uid, st.Gid}) {
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
