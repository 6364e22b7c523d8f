package projectquota

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/eintr"
)

// Kernel is what [Projects] ask of the file system that an open directory is on.
// [System] is the real one; tests have others.
type Kernel interface {
	// Enforced returns nil if the file system holds projects to their limits.
	Enforced(dir *os.File) error
	// Project returns the project of a directory, 0 for none, and whether what is made
	// in it inherits it.
	Project(dir *os.File) (Project, error)
	SetProject(dir *os.File, to Project) error
	// Usage returns the zero value for a project that the file system does not know.
	Usage(dir *os.File, id uint32) (Usage, error)
	// SetLimit is the most that the files of a project may take, in bytes; 0 is no
	// limit. The kernel counts in blocks, and the limit is rounded up to them.
	SetLimit(dir *os.File, id uint32, bytes int64) error
	// Named returns the projects that the node's administrators and the kubelet have
	// given names to.
	Named() (map[uint32]bool, error)
}

// Project is the one of a directory.
type Project struct {
	ID       uint32
	Inherits bool
}

// Usage is what the files of a project take, and may take.
type Usage struct {
	Bytes, Inodes int64
	// Limit is in bytes; 0: there is none.
	Limit int64
	// OtherLimits says that somebody has set limits that this package never sets.
	OtherLimits bool
}

// System is the running kernel, by ioctl(2) and quotactl_fd(2), which Linux has had
// since 5.14. All but Enforced and Project need CAP_SYS_ADMIN in the first user
// namespace.
type System struct{}

const (
	// FS_IOC_FSGETXATTR and FS_IOC_FSSETXATTR, of linux/fs.h. Architectures differ in
	// the bits that say which way the structure goes.
	direction = 0xe0000000
	getXattr  = unix.FS_IOC_GETFLAGS&direction | unsafe.Sizeof(attributes{})<<16 | 'X'<<8 | 31
	setXattr  = unix.FS_IOC_SETFLAGS&direction | unsafe.Sizeof(attributes{})<<16 | 'X'<<8 | 32
	// projectInherit is FS_XFLAG_PROJINHERIT.
	projectInherit = 0x200

	projectType  = 2        // PRJQUOTA, of linux/quota.h
	getQuota     = 0x800007 // Q_GETQUOTA
	setQuota     = 0x800008 // Q_SETQUOTA
	getState     = 'X'<<8 | 5
	enforced     = 1<<4 | 1<<5 // FS_QUOTA_PDQ_ACCT and FS_QUOTA_PDQ_ENFD
	blockLimits  = 1           // QIF_BLIMITS
	limitUnit    = 1024        // QIF_DQBLKSIZE
	largestLimit = 1 << 62
)

// attributes is struct fsxattr.
type attributes struct {
	flags, extentSize, extents, project, copySize uint32
	_                                             [8]byte
}

// quota is struct if_dqblk.
type quota struct {
	blockHard, blockSoft, space, inodeHard, inodeSoft, inodes, blockTime, inodeTime uint64
	valid                                                                           uint32
	_                                                                               uint32
}

func attributesOf(dir *os.File, request uintptr, a *attributes) error {
	return call("the project of", dir, func(fd uintptr) unix.Errno {
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, fd, request, uintptr(unsafe.Pointer(a)))
		return errno
	})
}

func quotactl(dir *os.File, command uintptr, id uint32, argument unsafe.Pointer) error {
	return call("quotactl_fd", dir, func(fd uintptr) unix.Errno {
		_, _, errno := unix.Syscall6(unix.SYS_QUOTACTL_FD, fd, command<<8|projectType, uintptr(id), uintptr(argument), 0, 0)
		return errno
	})
}

func call(op string, dir *os.File, f func(fd uintptr) unix.Errno) error {
	err := eintr.Do(func() error {
		if errno := f(dir.Fd()); errno != 0 {
			return errno
		}
		return nil
	})
	if err != nil {
		return &fs.PathError{Op: op, Path: dir.Name(), Err: err}
	}
	return nil
}

func (System) Enforced(dir *os.File) error {
	var state [128]byte // struct fs_quota_stat is smaller; its flags are at the second byte
	if err := quotactl(dir, getState, 0, unsafe.Pointer(&state)); err != nil {
		return err
	}
	if binary.NativeEndian.Uint16(state[2:])&enforced != enforced {
		return &fs.PathError{Op: "quotactl_fd", Path: dir.Name(), Err: errors.New("the file system enforces no project quotas")}
	}
	return nil
}

func (System) Project(dir *os.File) (Project, error) {
	var a attributes
	err := attributesOf(dir, getXattr, &a)
	return Project{a.project, a.flags&projectInherit != 0}, err
}

func (System) SetProject(dir *os.File, to Project) error {
	var a attributes
	if err := attributesOf(dir, getXattr, &a); err != nil {
		return err
	}
	a.project = to.ID
	a.flags &^= projectInherit
	if to.Inherits {
		a.flags |= projectInherit
	}
	return attributesOf(dir, setXattr, &a)
}

func (System) Usage(dir *os.File, id uint32) (Usage, error) {
	var q quota
	err := quotactl(dir, getQuota, id, unsafe.Pointer(&q))
	if errors.Is(err, unix.ENOENT) {
		return Usage{}, nil
	}
	return Usage{
		Bytes: int64(q.space), Inodes: int64(q.inodes), Limit: int64(min(q.blockHard, largestLimit/limitUnit)) * limitUnit,
		OtherLimits: q.blockSoft|q.inodeHard|q.inodeSoft != 0,
	}, err
}

func (System) SetLimit(dir *os.File, id uint32, bytes int64) error {
	q := quota{blockHard: uint64(rounded(bytes)) / limitUnit, valid: blockLimits}
	return quotactl(dir, setQuota, id, unsafe.Pointer(&q))
}

// rounded is a limit as the kernel keeps it.
func rounded(bytes int64) int64 {
	return (min(bytes, largestLimit) + limitUnit - 1) / limitUnit * limitUnit
}

// Named reads /etc/projects and /etc/projid.
func (System) Named() (map[uint32]bool, error) {
	named := map[uint32]bool{}
	for path, field := range map[string]int{"/etc/projects": 0, "/etc/projid": 1} {
		if err := readNumbers(path, field, named); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	return named, nil
}

// readNumbers adds the numbers that lines of a file have in one of their fields.
func readNumbers(path string, field int, named map[uint32]bool) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		fields := strings.SplitN(lines.Text(), ":", 3)
		if len(fields) <= field {
			continue
		}
		if id, err := strconv.ParseUint(strings.TrimSpace(fields[field]), 10, 32); err == nil {
			named[uint32(id)] = true
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}
