package layers_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/testenv/ociimage"
	"github.com/podvol/podvol/volume/plugins/image/internal/layers"
	"github.com/podvol/podvol/volume/plugins/image/internal/oci"
)

type entry = ociimage.Entry

// unpack unpacks a blob, of which the tar is plain, into a new directory.
func unpack(t testing.TB, blob, plain []byte, budget *layers.Budget) (layers.Part, error) {
	t.Helper()
	path := t.TempDir()
	dir, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	l := oci.Layer{Descriptor: oci.Descriptor{Digest: ociimage.Digest(blob), Size: int64(len(blob))}, DiffID: ociimage.Digest(plain)}
	made, err := layers.Unpack(t.Context(), dir, bytes.NewReader(blob), l, budget)
	return layers.Part{Layer: made, Dir: path}, err
}

func enough() *layers.Budget { return &layers.Budget{Bytes: 1 << 30, Entries: 1000} }

func layer(t testing.TB, entries ...entry) layers.Part {
	t.Helper()
	plain := ociimage.Tar(entries...)
	part, err := unpack(t, ociimage.Gzip(plain), plain, enough())
	if err != nil {
		t.Fatal(err)
	}
	return part
}

func merge(t testing.TB, parts ...layers.Part) string {
	t.Helper()
	path := t.TempDir()
	dir, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	if _, err := layers.Merge(t.Context(), dir, parts, enough()); err != nil {
		t.Fatal(err)
	}
	return path
}

// tree describes all files: their mode, and their content or target.
func tree(t testing.TB, dir string) map[string]string {
	t.Helper()
	found := make(map[string]string)
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		text := info.Mode().String()
		switch {
		case d.Type() == fs.ModeSymlink:
			to, err := os.Readlink(path)
			if err != nil {
				return err
			}
			text = "-> " + to
		case d.Type().IsRegular():
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			text += " " + string(data)
		}
		rel, err := filepath.Rel(dir, path)
		found[rel] = text
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func dir(name string, mode int64) entry { return entry{Name: name, Type: tar.TypeDir, Mode: mode} }

func TestUnpack(t *testing.T) {
	got := layer(t,
		dir("./", 0o755), dir("a/", 0o2750), entry{Name: "/a/f", Content: "f", Mode: 0o4755}, entry{Name: "b/c/g", Content: "g"},
		entry{Name: "a/l", Type: tar.TypeSymlink, Link: "/etc/shadow"}, entry{Name: "h", Type: tar.TypeLink, Link: "a/f"},
		entry{Name: "twice", Content: "1"}, entry{Name: "twice", Content: "2"},
		entry{Name: ".wh.x"}, entry{Name: "a/.wh..wh..opq"}, entry{Name: ".wh..wh.plnk"}, entry{Name: ".hidden/.wh.y"})
	want := map[string]string{
		"a": "drwxr-x---", "a/f": "-rwxr-xr-x f", "a/l": "-> /etc/shadow", "b": "drwxr-xr-x", "b/c": "drwxr-xr-x", "b/c/g": "-rw-r--r-- g",
		"h": "-rwxr-xr-x f", "twice": "-rw-r--r-- 2",
	}
	if diff := cmp.Diff(want, tree(t, got.Dir)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([][]string{{"x", ".hidden/y"}, {"a"}, {"b", "b/c"}}, [][]string{got.Whiteouts, got.Opaque, got.Implied}); diff != "" {
		t.Errorf("whiteouts, opaque, implied (-want +got):\n%s", diff)
	}
}

func zstandard(t testing.TB, data []byte) []byte {
	t.Helper()
	w, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	return w.EncodeAll(data, nil)
}

func TestCompressions(t *testing.T) {
	plain := ociimage.Tar(entry{Name: "f", Content: strings.Repeat("x", 1<<20)})
	for name, blob := range map[string][]byte{"none": plain, "gzip": ociimage.Gzip(plain), "zstd": zstandard(t, plain)} {
		part, err := unpack(t, blob, plain, enough())
		if err != nil || part.Bytes != 1<<20 || part.DiffID != ociimage.Digest(plain) {
			t.Errorf("%s: %+v, %v", name, part.Layer, err)
		}
		if len(blob) > 100 {
			if _, err := unpack(t, blob[:len(blob)-20], plain, enough()); err == nil {
				t.Errorf("%s: a torn layer is taken", name)
			}
		}
	}
}

// What a layer must not do is refused, and changes nothing beside its directory.
func TestHostileLayers(t *testing.T) {
	outside := t.TempDir()
	deep := strings.Repeat("d/", 300)
	tests := map[string]struct {
		entries []entry
		because string
	}{
		"parent":                 {[]entry{{Name: "../x"}}, "out of the layer"},
		"parent inside":          {[]entry{{Name: "a/../../x"}}, "out of the layer"},
		"absolute link":          {[]entry{{Name: "l", Type: tar.TypeSymlink, Link: outside}, {Name: "l/x", Content: "x"}}, "leads through"},
		"relative link":          {[]entry{{Name: "l", Type: tar.TypeSymlink, Link: "../.."}, {Name: "l/x", Content: "x"}}, "leads through"},
		"directory on a link":    {[]entry{{Name: "l", Type: tar.TypeSymlink, Link: outside}, dir("l/x/", 0o777)}, "leads through"},
		"file as directory":      {[]entry{{Name: "f"}, {Name: "f/x"}}, "leads through"},
		"character device":       {[]entry{{Name: "null", Type: tar.TypeChar}}, "device"},
		"block device":           {[]entry{{Name: "sda", Type: tar.TypeBlock}}, "device"},
		"pipe":                   {[]entry{{Name: "p", Type: tar.TypeFifo}}, "pipe"},
		"hard link outside":      {[]entry{{Name: "h", Type: tar.TypeLink, Link: "../../../etc/passwd"}}, "out of the layer"},
		"hard link to no entry":  {[]entry{{Name: "h", Type: tar.TypeLink, Link: "/etc/passwd"}}, "does not have"},
		"hard link by a link":    {[]entry{{Name: "l", Type: tar.TypeSymlink, Link: "/etc"}, {Name: "h", Type: tar.TypeLink, Link: "l/passwd"}}, "leads through"},
		"hard link to itself":    {[]entry{{Name: "h"}, {Name: "h", Type: tar.TypeLink, Link: "h"}}, "does not have"},
		"hard link to the top":   {[]entry{{Name: "h", Type: tar.TypeLink, Link: "."}}, "out of the layer"},
		"hard link to directory": {[]entry{dir("d/", 0o755), {Name: "h", Type: tar.TypeLink, Link: "d"}}, "directory"},
		"whiteout of the parent": {[]entry{{Name: ".wh..."}}, "hides"},
		"whiteout of itself":     {[]entry{{Name: "a/.wh.."}}, "hides"},
		"whiteout outside":       {[]entry{{Name: "../.wh.x"}}, "out of the layer"},
		"whiteout in no text":    {[]entry{{Name: "\xff/.wh..wh..opq"}}, "hides"},
		"whiteout of no name":    {[]entry{{Name: ".wh."}}, "hides"},
		"directory replaced":     {[]entry{dir("d/", 0o755), {Name: "d"}}, "directory of that name"},
		"too deep":               {[]entry{{Name: deep + "f"}}, "more than"},
		"top as a file":          {[]entry{{Name: "."}}, "the top"},
		"link to nothing":        {[]entry{{Name: "l", Type: tar.TypeSymlink}}, "links to"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			plain := ociimage.Tar(test.entries...)
			_, err := unpack(t, plain, plain, enough())
			if !errors.Is(err, layers.ErrHostile) || !strings.Contains(err.Error(), test.because) {
				t.Errorf("Unpack = %v", err)
			}
			if left := tree(t, outside); len(left) > 0 {
				t.Errorf("outside of the layer there is %v", left)
			}
		})
	}
}

func TestBombs(t *testing.T) {
	big := ociimage.Tar(entry{Name: "zeros", Content: strings.Repeat("\x00", 4<<20)})
	var many []entry
	for i := range 200 {
		many = append(many, entry{Name: fmt.Sprint("f", i)})
	}
	tail := append(ociimage.Tar(entry{Name: "f"}), make([]byte, 4<<20)...) // after the end
	parents := ociimage.Tar(entry{Name: strings.Repeat("d/", 200) + "f"})
	hides := ociimage.Tar(entry{Name: ".wh.f", Content: strings.Repeat("\x00", 4<<20)})
	for name, plain := range map[string][]byte{"bytes": big, "entries": ociimage.Tar(many...), "after the end": tail, "parents": parents, "a whiteout": hides} {
		_, err := unpack(t, ociimage.Gzip(plain), plain, &layers.Budget{Bytes: 1 << 20, Entries: 100})
		if !errors.Is(err, layers.ErrTooLarge) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := unpack(t, big, big, &layers.Budget{Bytes: 1 << 30, Entries: 100, Reserve: 101}); !errors.Is(err, layers.ErrNoSpace) {
		t.Errorf("on a disk that must stay free: %v", err)
	}
}

// The paths of a small layer can be many: each of its directories has its whole path.
func TestManyPaths(t *testing.T) {
	nearlyFull := func() *layers.Budget {
		budget := enough()
		if err := budget.Count(layers.Layer{PathBytes: 64<<20 - 1000}); err != nil {
			t.Fatal(err)
		}
		return budget
	}
	deep := strings.Repeat("d/", 100)
	for name, e := range map[string]entry{"directory": dir(strings.Repeat("d", 200)+"/"+strings.Repeat("e", 200), 0o755), "parents": {Name: deep + "f"},
		"whiteout": {Name: deep + ".wh.f"}, "opaque": {Name: deep + ".wh..wh..opq"}} {
		plain := ociimage.Tar(e)
		part, err := unpack(t, plain, plain, nearlyFull())
		if name == "parents" { // 2 + 4 + …, less a separator each
			if !errors.Is(err, layers.ErrTooLarge) || !strings.Contains(err.Error(), "paths") {
				t.Errorf("%s: %v", name, err)
			}
			part, err = unpack(t, plain, plain, enough())
		}
		if err != nil || part.PathBytes < 200 {
			t.Errorf("%s: %d bytes, %v", name, part.PathBytes, err)
		}
	}
	if err := nearlyFull().Count(layers.Layer{PathBytes: 1001}); !errors.Is(err, layers.ErrTooLarge) {
		t.Errorf("a layer that is there: %v", err)
	}
}

// endless sends the same for ever.
type endless struct{ r *bytes.Reader }

func (e endless) Read(p []byte) (int, error) {
	n, err := e.r.Read(p)
	if errors.Is(err, io.EOF) {
		for i := range p {
			p[i] = 0
		}
		return len(p), nil
	}
	return n, err
}

func TestWrongBodies(t *testing.T) {
	plain := ociimage.Tar(entry{Name: "f", Content: "f"})
	blob := ociimage.Gzip(plain)
	right := oci.Layer{Descriptor: oci.Descriptor{Digest: ociimage.Digest(blob), Size: int64(len(blob))}, DiffID: ociimage.Digest(plain)}
	changed := bytes.Clone(blob)
	changed[9] ^= 1 // the system in gzip's header, which no checksum of gzip has
	other := right
	other.DiffID = ociimage.Digest(nil)
	for name, test := range map[string]struct {
		body  io.Reader
		layer oci.Layer
	}{
		"changed":       {bytes.NewReader(changed), right},
		"short":         {bytes.NewReader(blob[:len(blob)-1]), right},
		"longer":        {bytes.NewReader(append(bytes.Clone(blob), 0)), right},
		"endless":       {endless{bytes.NewReader(blob)}, right},
		"other diff id": {bytes.NewReader(blob), other},
	} {
		d, err := os.Open(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := layers.Unpack(t.Context(), d, test.body, test.layer, enough()); !errors.Is(err, oci.ErrDigestMismatch) {
			t.Errorf("%s: %v", name, err)
		}
		d.Close()
	}
}

func TestMerge(t *testing.T) {
	lower := layer(t, dir("a/", 0o700), entry{Name: "a/f", Content: "1"}, entry{Name: "a/gone", Content: "1"}, entry{Name: "o/old/x", Content: "1"},
		entry{Name: "l", Type: tar.TypeSymlink, Link: "a"}, entry{Name: "file", Content: "1"}, dir("dir/", 0o711), entry{Name: "dir/x"}, entry{Name: ".x", Content: "1"})
	upper := layer(t, entry{Name: "a/f", Content: "2"}, entry{Name: "a/.wh.gone"}, entry{Name: "o/.wh..wh..opq"}, entry{Name: "o/new", Content: "2"},
		dir("l/", 0o755), entry{Name: "l/in", Content: "2"}, dir("file/", 0o755), entry{Name: "dir", Type: tar.TypeSymlink, Link: "a"},
		entry{Name: ".wh.missing"}, entry{Name: "no/.wh.such"}, entry{Name: ".x/.wh.y"}, entry{Name: ".wh..x"})
	got := merge(t, lower, upper)
	want := map[string]string{
		"a": "drwx------", "a/f": "-rw-r--r-- 2", "o": "drwxr-xr-x", "o/new": "-rw-r--r-- 2", "l": "drwxr-xr-x", "l/in": "-rw-r--r-- 2",
		"file": "drwxr-xr-x", "dir": "-> a",
	}
	if diff := cmp.Diff(want, tree(t, got)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	var of, in unix.Stat_t
	if errors.Join(unix.Stat(filepath.Join(upper.Dir, "a/f"), &of), unix.Stat(filepath.Join(got, "a/f"), &in)) != nil || of.Ino != in.Ino {
		t.Errorf("the file of the image is inode %d, that of its layer %d", in.Ino, of.Ino)
	}
}

// A directory of a lower layer that an upper one removes and replaces by a link takes its
// attributes to nowhere else.
func TestAttributesFollowNoLink(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "kept")
	if err := os.Mkdir(outside, 0o700); err != nil {
		t.Fatal(err)
	}
	lower := layer(t, dir("d/", 0o777), dir("d/e/", 0o777))
	upper := layer(t, entry{Name: "d", Type: tar.TypeSymlink, Link: outside})
	merge(t, lower, upper)
	info, err := os.Stat(outside)
	if err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the link's target is %v, %v", info.Mode(), err)
	}
}

func TestMergeOfFiles(t *testing.T) {
	blob := []byte("weights")
	path := t.TempDir()
	d, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	l := oci.Layer{Descriptor: oci.Descriptor{Digest: ociimage.Digest(blob), Size: int64(len(blob))}, File: "model/w"}
	made, err := layers.Unpack(t.Context(), d, bytes.NewReader(blob), l, enough())
	if err != nil {
		t.Fatal(err)
	}
	got := merge(t, layers.Part{Layer: made, Dir: path, Name: "model/w"}, layers.Part{Layer: made, Dir: path, Name: "again"})
	want := map[string]string{"model": "drwxr-xr-x", "model/w": "-r--r--r-- weights", "again": "-r--r--r-- weights"}
	if diff := cmp.Diff(want, tree(t, got)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestUnpackEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	left := errors.New("left")
	cancel(left)
	d, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	_, err = layers.Unpack(ctx, d, endless{bytes.NewReader(nil)}, oci.Layer{Descriptor: oci.Descriptor{Size: 1 << 40}}, enough())
	if !errors.Is(err, left) {
		t.Errorf("Unpack = %v", err)
	}
}

// Whatever a tar has, nothing but an error comes of it, or a tree that merges.
func FuzzUnpack(f *testing.F) {
	f.Add(ociimage.Tar(dir("a/", 0o755), entry{Name: "a/f", Content: "f"}, entry{Name: "h", Type: tar.TypeLink, Link: "a/f"}))
	f.Add(ociimage.Gzip(ociimage.Tar(entry{Name: "../x"}, entry{Name: "l", Type: tar.TypeSymlink, Link: "/"})))
	f.Add([]byte("no tar"))
	f.Fuzz(func(t *testing.T, blob []byte) {
		path := t.TempDir()
		d, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		budget := layers.Budget{Bytes: 1 << 20, Entries: 100}
		l := oci.Layer{Descriptor: oci.Descriptor{Digest: ociimage.Digest(blob), Size: int64(len(blob))}}
		made, err := layers.Unpack(t.Context(), d, bytes.NewReader(blob), l, &budget)
		if err == nil {
			merge(t, layers.Part{Layer: made, Dir: path})
		}
	})
}

// headsForEver is a tar of headers that extend the next one, which never comes.
type headsForEver struct {
	block []byte
	read  int64
}

func (h *headsForEver) Read(p []byte) (int, error) {
	n := 0
	for n < len(p) {
		n += copy(p[n:], h.block[(h.read+int64(n))%int64(len(h.block)):])
	}
	h.read += int64(n)
	return n, nil
}

func TestHeadersWithoutAnEnd(t *testing.T) {
	var one bytes.Buffer
	w := tar.NewWriter(&one)
	if err := w.WriteHeader(&tar.Header{Name: "f", Typeflag: tar.TypeReg, Format: tar.FormatPAX, PAXRecords: map[string]string{"PODVOL.x": "y"}}); err != nil {
		t.Fatal(err)
	}
	endless := &headsForEver{block: one.Bytes()[:one.Len()-512]} // without the file's own
	path := t.TempDir()
	dir, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	l := oci.Layer{Descriptor: oci.Descriptor{Digest: ociimage.Digest(nil), Size: 1 << 40}, DiffID: ociimage.Digest(nil)}
	_, err = layers.Unpack(t.Context(), dir, endless, l, &layers.Budget{Bytes: 1 << 40, Entries: 1000})
	if !errors.Is(err, layers.ErrTooLarge) || !strings.Contains(err.Error(), "headers") || endless.read > 8<<20 {
		t.Errorf("after %d bytes: %v", endless.read, err)
	}
}
