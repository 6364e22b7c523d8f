package sharedirs

import (
	"context"
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

// Former is a directory that was made for a claim, as its mark says.
type Former struct {
	// Path is below the base.
	Path string
	// Claim is the claim's namespace and name.
	Claim string
	Owner Owner
	// Records is [Request].Records, empty where it was not given.
	Records string

	directory identity
}

// Formers returns the directories that were made below root, by the claim's
// namespace and name. Marks that cannot be used are left out: the volumes that
// they are about say so. Errors are as in [Make]. It changes nothing.
func Formers(ctx context.Context, root *os.File) (map[string][]Former, error) {
	formers, err := newBase(root).formers(ctx)
	return formers, Disk.named(err)
}

func (b *base) formers(ctx context.Context) (map[string][]Former, error) {
	k, err := b.openBook(ctx, false)
	if err != nil || k == nil {
		return nil, err
	}
	defer k.close()
	names, err := list(k.marks)
	if err != nil {
		return nil, err
	}
	formers := make(map[string][]Former)
	for _, name := range names {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		var m mark
		found, err := readJSON(k.marks, name, &m)
		if errors.As(err, new(*jsonError)) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if found && m.Version == markVersion && name == keyOf(m.Path) && CheckPath(m.Path) == nil {
			formers[m.Claim] = append(formers[m.Claim], Former{Path: m.Path, Claim: m.Claim, Owner: m.Owner, Records: m.Records, directory: m.Directory})
		}
	}
	return formers, nil
}

// Remains reports whether the directory is where it was made, with its mark.
// Another directory in its place does not count. Errors are as in [Make].
func (f Former) Remains(ctx context.Context, root *os.File) (bool, error) {
	remains, err := newBase(root).remains(ctx, f)
	return remains, Disk.named(err)
}

func (b *base) remains(ctx context.Context, f Former) (bool, error) {
	k, err := b.openBook(ctx, false)
	if err != nil || k == nil {
		return false, err
	}
	defer k.close()
	m, err := readMark(k.marks, keyOf(f.Path), f.Path)
	if err != nil || m == nil || m.Owner != f.Owner || m.Directory != f.directory {
		return false, err
	}
	dir, err := b.find(m)
	if errors.Is(err, ErrReplaced) || errors.Is(err, ErrOccupied) {
		return false, nil
	}
	if dir != nil {
		b.close(dir)
	}
	return dir != nil, err
}

// HasLeft reports whether a volume's path is no longer its own: its mark names
// another volume, or nothing is there. All that [Remove] still has to delete is
// then in the trash, where no pod sees it, so users of the path do not matter. It
// changes nothing, but completes a bookkeeping with a missing part. Errors are as
// in [Remove].
func HasLeft(ctx context.Context, root *os.File, r Removal) (bool, error) {
	left, err := newBase(root).hasLeft(ctx, r.Path, r.Owner)
	return left, r.On.named(err)
}

func (b *base) hasLeft(ctx context.Context, p string, owner Owner) (bool, error) {
	if err := CheckPath(p); err != nil {
		return false, err
	}
	k, err := b.openBook(ctx, false)
	if err != nil || k == nil {
		return false, err
	}
	defer k.close()
	m, err := readMark(k.marks, keyOf(p), p)
	switch {
	case err != nil:
		return false, err
	case m == nil:
		err := b.unmarked(k, p, owner, Delete)
		return err == nil, err
	}
	return m.Volume != owner.Volume, nil
}
