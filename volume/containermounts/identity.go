//go:build unix

package containermounts

import (
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/eintr"
)

func identify(f *os.File) (fileIdentity, error) {
	var st unix.Stat_t
	if err := eintr.Do(func() error { return unix.Fstat(int(f.Fd()), &st) }); err != nil {
		return fileIdentity{}, &fs.PathError{Op: "stat", Path: f.Name(), Err: err}
	}
	return identityOf(&st), nil
}

func identityOf(st *unix.Stat_t) fileIdentity {
	return fileIdentity{uint64(st.Dev), uint64(st.Ino), st.Mode&unix.S_IFMT == unix.S_IFDIR}
}
