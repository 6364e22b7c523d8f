package sharedirs

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/util/durable"
)

// Owner is whose a directory is.
type Owner struct {
	// Volume is the PersistentVolume's name.
	Volume string `json:"volume"`
	// ClaimUID is the UID of the volume's claim. A later volume of the same name has
	// another.
	ClaimUID types.UID `json:"claimUID"`
}

func (o Owner) String() string {
	return fmt.Sprintf("PersistentVolume %q of the claim with UID %q", o.Volume, o.ClaimUID)
}

// mark says whose a directory below the base is. It is written once.
type mark struct {
	Version int    `json:"version"`
	Path    string `json:"path"`
	Owner
	// Claim is the claim's namespace and name, for people.
	Claim string `json:"claim,omitempty"`
	// Records names the records that have the PersistentVolume, where others make
	// volumes below the base too.
	Records  string   `json:"records,omitempty"`
	OnDelete OnDelete `json:"onDelete,omitempty"`
	// Directory is the directory made.
	Directory identity `json:"directory"`
}

const markVersion = 1

// id names the staged or deleted directory of this owner and path.
func (m *mark) id() string { return stagingID(m.Path, m.Owner) }

func stagingID(path string, owner Owner) string {
	return digest(path, owner.Volume, string(owner.ClaimUID))
}

func keyOf(path string) string { return digest(path) + markSuffix }

const (
	markSuffix     = ".json"
	retainedSuffix = ".retained" + markSuffix
)

// digest is as long as a name may be, whatever the parts are.
func digest(parts ...string) string {
	h := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	return hex.EncodeToString(h[:20])
}

// maxMark limits the size of a mark.
const maxMark = 64 << 10

// readMark reads a mark in a directory of the bookkeeping. If there is none the
// result is nil.
func readMark(dir *os.File, name, path string) (*mark, error) {
	var m mark
	found, err := readJSON(dir, name, &m)
	file := filepath.Join(dir.Name(), name)
	if reason, damaged := errors.AsType[*jsonError](err); damaged {
		return nil, &Error{Cause: ErrDamaged, Path: path, Other: file, Reason: reason.Error()}
	}
	if err != nil || !found {
		return nil, err
	}
	switch {
	case m.Version != markVersion:
		return nil, &Error{Cause: ErrDamaged, Path: path, Other: file, Reason: fmt.Sprintf("its version is %d, this podvol knows %d", m.Version, markVersion)}
	case m.Path != path:
		return nil, &Error{Cause: ErrDamaged, Path: path, Other: file, Reason: fmt.Sprintf("it is about the path %q", m.Path)}
	case m.Directory.Inode == 0:
		return nil, &Error{Cause: ErrDamaged, Path: path, Other: file, Reason: "it has no inode"}
	case !m.OnDelete.valid():
		return nil, &Error{Cause: ErrDamaged, Path: path, Other: file, Reason: fmt.Sprintf("onDelete is %q", m.OnDelete)}
	}
	return &m, nil
}

// jsonError says that a file is there and cannot be used.
type jsonError struct{ error }

// readJSON reads a file of the bookkeeping, if it is there.
func readJSON(dir *os.File, name string, into any) (found bool, err error) {
	fd, err := openat(dir, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	file := filepath.Join(dir.Name(), name)
	if err != nil {
		return false, failed("open", file, err)
	}
	f := os.NewFile(uintptr(fd), file)
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxMark))
	if err != nil {
		return false, failed("read", file, err)
	}
	if err := json.Unmarshal(data, into); err != nil {
		return true, &jsonError{err}
	}
	return true, nil
}

// writeMark makes a mark where there is none; else the error matches
// [fs.ErrExist].
func writeMark(dir *os.File, m *mark) error {
	data, err := json.Marshal(m)
	if err != nil {
		return err
	}
	return failed("mark", filepath.Join(dir.Name(), keyOf(m.Path)), durable.CreateAt(dir, keyOf(m.Path), append(data, '\n'), 0o600))
}
