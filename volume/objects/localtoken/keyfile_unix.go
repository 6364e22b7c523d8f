//go:build unix

package localtoken

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// readKeyFile checks the file by its descriptor. So the file cannot be replaced
// in between. It does not wait for the writer of a pipe.
func readKeyFile(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	switch {
	case errors.Is(err, unix.ELOOP), errors.Is(err, unix.EMLINK): // the latter on FreeBSD
		return nil, refusedKeyFile(path, "is a symbolic link", "name the file itself, or "+adviseNew, nil)
	case errors.Is(err, unix.ENXIO):
		return nil, refusedKeyFile(path, "is no regular file", adviseNew, nil)
	case err != nil:
		return nil, refusedKeyFile(path, "cannot be opened", "", err)
	}
	defer f.Close()
	if err := checkKeyFile(path, f); err != nil {
		return nil, err
	}
	data, err := io.ReadAll(io.LimitReader(f, maxKeyFile+1))
	if err != nil {
		return nil, refusedKeyFile(path, "cannot be read", "", err)
	}
	if len(data) > maxKeyFile {
		return nil, refusedKeyFile(path, "is too large for a key", adviseNew, nil)
	}
	return data, nil
}

func checkKeyFile(path string, f *os.File) error {
	var stat unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &stat); err != nil {
		return refusedKeyFile(path, "cannot be read", "", err)
	}
	if stat.Mode&unix.S_IFMT != unix.S_IFREG {
		return refusedKeyFile(path, "is no regular file", adviseNew, nil)
	}
	if mode := stat.Mode & 0o7777; mode&^0o600 != 0 {
		return refusedKeyFile(path, fmt.Sprintf("has permissions %#o, so others may know the key", mode), "if no other user could read it, run chmod 600 on it; otherwise "+adviseNew, nil)
	}
	if uid := os.Geteuid(); stat.Uid != 0 && int(stat.Uid) != uid {
		return refusedKeyFile(path, fmt.Sprintf("belongs to user %d, not to user %d who runs this", stat.Uid, uid), "if that user may know the key, run chown on it; otherwise "+adviseNew, nil)
	}
	return nil
}
