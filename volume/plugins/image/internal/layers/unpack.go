package layers

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/eintr"
	"github.com/podvol/podvol/util/openat"
	"github.com/podvol/podvol/volume/plugins/image/internal/oci"
)

// Unpack reads a layer from body into an empty directory. It returns an error unless all
// of it was read and has its digests; then what is in the directory is of no use. The
// directory is not synced.
func Unpack(ctx context.Context, dir *os.File, body io.Reader, layer oci.Layer, budget *Budget) (Layer, error) {
	sent := sha256.New()
	in := bufio.NewReaderSize(io.TeeReader(&sized{ctx: ctx, r: body, left: layer.Size, size: layer.Size}, sent), bufferSize)
	l := Layer{Digest: layer.Digest, File: layer.File != ""}
	u := &unpacking{tree: newTree(dir), budget: budget, layer: &l, buffer: make([]byte, bufferSize)}
	u.imply = u.count
	defer u.close()
	var err error
	if l.File {
		err = u.single(in)
	} else {
		l.DiffID, err = u.compressed(in)
	}
	if err == nil {
		_, err = io.Copy(io.Discard, in)
	}
	switch {
	case err != nil:
		return Layer{}, err
	case digestOf(sent) != layer.Digest:
		return Layer{}, fmt.Errorf("%w: it has %s", oci.ErrDigestMismatch, digestOf(sent))
	case layer.DiffID != "" && l.DiffID != layer.DiffID:
		return Layer{}, fmt.Errorf("%w: unpacked, it has %s, and the image says %s", oci.ErrDigestMismatch, l.DiffID, layer.DiffID)
	}
	return l, nil
}

const bufferSize = 256 << 10

func digestOf(h hash.Hash) string { return "sha256:" + hex.EncodeToString(h.Sum(nil)) }

// sized is a body of exactly so many bytes.
type sized struct {
	ctx        context.Context
	r          io.Reader
	left, size int64
}

func (s *sized) Read(p []byte) (int, error) {
	if err := context.Cause(s.ctx); err != nil {
		return 0, err
	}
	n, err := s.r.Read(p[:min(int64(len(p)), s.left+1)])
	s.left -= int64(n)
	switch {
	case s.left < 0:
		return 0, fmt.Errorf("%w: it goes on after its %d bytes", oci.ErrDigestMismatch, s.size)
	case errors.Is(err, io.EOF) && s.left > 0:
		return n, fmt.Errorf("%w: it ends after %d of its %d bytes", oci.ErrDigestMismatch, s.size-s.left, s.size)
	}
	return n, err
}

// decompress tells by the first bytes how a tar is compressed: media types are not to be
// relied on.
func decompress(in *bufio.Reader) (io.ReadCloser, error) {
	magic, err := in.Peek(4)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	switch {
	case bytes.HasPrefix(magic, []byte{0x1f, 0x8b}):
		return gzip.NewReader(in)
	case bytes.Equal(magic, []byte{0x28, 0xb5, 0x2f, 0xfd}), len(magic) == 4 && magic[0]&0xf0 == 0x50 && bytes.Equal(magic[1:], []byte{0x2a, 0x4d, 0x18}):
		d, err := zstd.NewReader(in, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(128<<20))
		if err != nil {
			return nil, err
		}
		return d.IOReadCloser(), nil
	}
	return io.NopCloser(in), nil
}

// unpacking is one layer's.
type unpacking struct {
	*tree
	budget *Budget
	layer  *Layer
	buffer []byte
}

// compressed unpacks a tar, and returns its digest.
func (u *unpacking) compressed(in *bufio.Reader) (diffID string, err error) {
	plain, err := decompress(in)
	if err != nil {
		return "", malformedTar(err)
	}
	defer plain.Close()
	sum := sha256.New()
	out := bufio.NewReaderSize(io.TeeReader(plain, sum), bufferSize)
	if err := u.tar(out); err != nil {
		return "", err
	}
	if err := u.rest(out); err != nil {
		return "", malformedTar(err)
	}
	u.layer.Implied = slices.Sorted(maps.Keys(u.implied))
	return digestOf(sum), u.finish()
}

// malformedTar marks an error of the format, and leaves errors of reading as they are.
func malformedTar(err error) error {
	for _, e := range []error{tar.ErrHeader, gzip.ErrHeader, gzip.ErrChecksum, zstd.ErrMagicMismatch, zstd.ErrCRCMismatch, zstd.ErrWindowSizeExceeded, zstd.ErrDecoderSizeExceeded, io.ErrUnexpectedEOF} {
		if errors.Is(err, e) {
			return fmt.Errorf("%w: %w", oci.ErrMalformed, err)
		}
	}
	return err
}

// rest reads what comes after the end of the tar. It counts as content.
func (u *unpacking) rest(r io.Reader) error {
	for {
		n, err := r.Read(u.buffer)
		if tooMuch := u.budget.take(u.top, int64(n), 0); tooMuch != nil {
			return tooMuch
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// heads counts what is read of a tar between the contents of its files.
type heads struct {
	io.Reader
	budget *Budget
	counts bool
}

func (h *heads) Read(p []byte) (int, error) {
	n, err := h.Reader.Read(p)
	if h.counts {
		if tooMuch := h.budget.head(int64(n)); tooMuch != nil {
			return n, tooMuch
		}
	}
	return n, err
}

func (u *unpacking) tar(in io.Reader) error {
	heads := &heads{Reader: in, budget: u.budget}
	from := tar.NewReader(heads)
	for {
		heads.counts = true
		h, err := from.Next()
		heads.counts = false
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return malformedTar(err)
		}
		if err := u.budget.take(u.top, 0, 1); err != nil {
			return err
		}
		u.layer.Entries++
		if h.Typeflag == tar.TypeXGlobalHeader {
			continue
		}
		p, err := localPath(h.Name)
		if err != nil {
			return err
		}
		if hidden, is := strings.CutPrefix(path.Base(p), whiteout); is {
			if err = u.budget.take(u.top, h.Size, 0); err == nil { // which is passed over, and costs time
				err = u.hide(h.Name, path.Dir(p), hidden)
			}
		} else {
			err = u.entry(p, h, from)
		}
		if err != nil {
			return err
		}
	}
}

// count takes one entry whose path is kept.
func (u *unpacking) count(p string) error {
	u.layer.Entries++
	if err := u.budget.take(u.top, 0, 1); err != nil {
		return err
	}
	return u.keep(p)
}

func (u *unpacking) keep(p string) error {
	u.layer.PathBytes += int64(len(p))
	return u.budget.keep(int64(len(p)))
}

// localPath returns the clean path of an entry, which is below the top or ".".
func localPath(name string) (string, error) {
	p := strings.TrimLeft(name, "/")
	if p == "" && name != "" {
		p = "."
	}
	switch {
	case !filepath.IsLocal(p):
		return "", hostile(name, "it leads out of the layer")
	case strings.ContainsRune(p, 0):
		return "", hostile(name, "it has a zero byte")
	}
	p = path.Clean(p)
	if len(p) > maxPath || strings.Count(p, "/") >= maxDepth {
		return "", hostile(name, "it has more than %d bytes, or %d directories", maxPath, maxDepth)
	}
	return p, nil
}

// Names that begin so hide something of the layers below.
const (
	whiteout = ".wh."
	opaque   = ".wh..opq" // after whiteout
)

func (u *unpacking) hide(name, dir, hidden string) error {
	switch {
	case hidden != opaque && strings.HasPrefix(hidden, whiteout): // of aufs itself
		return nil
	case hidden == "" || hidden == "." || hidden == ".." || !utf8.ValidString(dir+hidden):
		return hostile(name, "it hides what is no name")
	case hidden == opaque:
		u.layer.Opaque = append(u.layer.Opaque, dir)
	default:
		u.layer.Whiteouts = append(u.layer.Whiteouts, path.Join(dir, hidden))
	}
	return u.keep(path.Join(dir, hidden))
}

func attributesOf(h *tar.Header, kept int64) attributes {
	a := attributes{mode: uint32(h.Mode & kept), uid: h.Uid, gid: h.Gid}
	if !h.ModTime.IsZero() {
		a.mtime = unix.NsecToTimespec(h.ModTime.UnixNano())
	}
	return a
}

func (u *unpacking) entry(p string, h *tar.Header, from io.Reader) error {
	if h.Typeflag == tar.TypeDir {
		return u.makeDirectory(p, h)
	}
	if p == "." {
		return hostile(h.Name, "the top is no directory")
	}
	parent, name, err := u.parent(p)
	if err != nil {
		return err
	}
	if err := makeWay(parent, name, h.Name); err != nil {
		return err
	}
	switch h.Typeflag {
	case tar.TypeReg, tar.TypeGNUSparse:
		return u.file(parent, name, attributesOf(h, keptOfFiles), h.Size, from)
	case tar.TypeSymlink:
		return u.symlink(parent, name, h)
	case tar.TypeLink:
		return u.hardLink(p, h)
	}
	return hostile(h.Name, "it is a %s; a volume has files, directories and links only", kind(h.Typeflag))
}

func kind(flag byte) string {
	switch flag {
	case tar.TypeChar, tar.TypeBlock:
		return "device"
	case tar.TypeFifo:
		return "pipe"
	}
	return fmt.Sprintf("entry of type %q", flag)
}

// makeWay removes an earlier entry of the same name, unless it is a directory.
func makeWay(parent *os.File, name, entry string) error {
	err := unix.Unlinkat(int(parent.Fd()), name, 0)
	switch {
	case err == nil, errors.Is(err, unix.ENOENT):
		return nil
	case errors.Is(err, unix.EISDIR), errors.Is(err, unix.EPERM):
		return hostile(entry, "the layer has a directory of that name already")
	}
	return &fs.PathError{Op: "unlink", Path: entry, Err: err}
}

func (u *unpacking) makeDirectory(p string, h *tar.Header) error {
	if p != "." {
		parent, name, err := u.parent(p)
		if err != nil {
			return err
		}
		err = unix.Mkdirat(int(parent.Fd()), name, 0o700)
		if errors.Is(err, unix.EEXIST) && !isDirectory(parent, name) {
			if err = makeWay(parent, name, h.Name); err == nil {
				err = unix.Mkdirat(int(parent.Fd()), name, 0o700)
			}
		}
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return err
		}
	}
	_, again := u.directories[p]
	again = again || u.implied[p]
	delete(u.implied, p)
	u.directories[p] = attributesOf(h, keptOfDirectories)
	if again {
		return nil
	}
	return u.keep(p)
}

func isDirectory(parent *os.File, name string) bool {
	var s unix.Stat_t
	return unix.Fstatat(int(parent.Fd()), name, &s, unix.AT_SYMLINK_NOFOLLOW) == nil && s.Mode&unix.S_IFMT == unix.S_IFDIR
}

func (u *unpacking) file(parent *os.File, name string, a attributes, size int64, from io.Reader) error {
	if err := u.budget.take(u.top, size, 0); err != nil {
		return err
	}
	u.layer.Bytes += size
	f, err := createAt(parent, name)
	if err != nil {
		return err
	}
	defer f.Close()
	n, err := io.CopyBuffer(struct{ io.Writer }{f}, io.LimitReader(from, size), u.buffer)
	if err == nil && n < size {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return malformedTar(err)
	}
	return a.apply(parent, name)
}

func createAt(parent *os.File, name string) (*os.File, error) {
	fd, err := eintr.Get(func() (int, error) {
		return unix.Openat(int(parent.Fd()), name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	})
	at := path.Join(parent.Name(), name)
	if err != nil {
		return nil, &fs.PathError{Op: "create", Path: at, Err: err}
	}
	return os.NewFile(uintptr(fd), at), nil
}

func (u *unpacking) symlink(parent *os.File, name string, h *tar.Header) error {
	if h.Linkname == "" || len(h.Linkname) > maxPath || strings.ContainsRune(h.Linkname, 0) {
		return hostile(h.Name, "it links to %.80q", h.Linkname)
	}
	fd := int(parent.Fd())
	if err := unix.Symlinkat(h.Linkname, fd, name); err != nil {
		return &fs.PathError{Op: "symlink", Path: h.Name, Err: err}
	}
	a := attributesOf(h, 0)
	if err := a.own(fd, name); err != nil {
		return &fs.PathError{Op: "chown", Path: h.Name, Err: err}
	}
	return a.date(fd, name)
}

// hardLink links to an earlier entry of the same layer. The parent is opened again: two
// directories are needed at once.
func (u *unpacking) hardLink(p string, h *tar.Header) error {
	to, err := localPath(h.Linkname)
	if err != nil || to == "." {
		return hostile(h.Name, "it links to %.200q, which leads out of the layer", h.Linkname)
	}
	parent, name, err := u.parent(p)
	if err != nil {
		return err
	}
	own, err := openat.File(parent, ".", unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer own.Close()
	dir, err := u.directory(path.Dir(to), false)
	if err == nil {
		err = unix.Linkat(int(dir.Fd()), path.Base(to), int(own.Fd()), name, 0)
	}
	if errors.Is(err, unix.ENOENT) {
		return hostile(h.Name, "it links to %.200q, which this layer does not have", h.Linkname)
	}
	if errors.Is(err, unix.EPERM) {
		return hostile(h.Name, "it links to %.200q, which is a directory", h.Linkname)
	}
	return err
}

// single makes the one file of a layer that is no tar.
func (u *unpacking) single(in io.Reader) error {
	f, err := createAt(u.top, fileName)
	if err != nil {
		return err
	}
	defer f.Close()
	u.layer.Entries = 1
	for {
		n, err := in.Read(u.buffer)
		if n > 0 {
			if err := u.budget.take(u.top, int64(n), 0); err != nil {
				return err
			}
			if _, err := f.Write(u.buffer[:n]); err != nil {
				return err
			}
			u.layer.Bytes += int64(n)
		}
		if errors.Is(err, io.EOF) {
			return f.Chmod(0o444)
		}
		if err != nil {
			return err
		}
	}
}
