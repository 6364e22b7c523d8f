package podfiles

import (
	"archive/tar"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/fileset"
	"github.com/podvol/podvol/volume/internal/payload"
)

// Set is all files of one volume. It may hold secrets: printing it shows paths, sizes and
// modes only.
type Set struct {
	// Files are the files by their paths in the volume: relative, clean, separated by
	// slashes. No path is a directory of another.
	Files map[string]File
	// Dirs are directories that are there although no file is in them. A volume has none;
	// [Set.Put] makes one of a volume without files.
	Dirs []string
	// RefreshAfter is when the set should be rendered again although nothing has changed,
	// since a token in it expires; zero: never.
	RefreshAfter time.Time
	// DependsOn are the objects whose change makes another set. One without a name stands
	// for all of its kind.
	DependsOn []volume.ObjectRef
}

// File is one file of a [Set]. Printing it shows no contents.
type File = fileset.File

func newSet(files payload.Files, dependsOn []volume.ObjectRef, o Options) *Set {
	s := &Set{Files: make(map[string]File, len(files.ByPath)), RefreshAfter: files.RefreshAfter, DependsOn: dependsOn}
	for p, f := range files.ByPath {
		if o.NoOwners {
			f.UID, f.GID = nil, nil
		}
		s.Files[p] = cloneFile(f)
	}
	return s
}

func cloneFile(f File) File {
	return File{Data: slices.Clone(f.Data), Mode: f.Mode, UID: clone(f.UID), GID: clone(f.GID)}
}

func clone(id *int64) *int64 {
	if id == nil {
		return nil
	}
	return new(*id)
}

// Paths are the paths of the files, sorted.
func (s *Set) Paths() []string { return slices.Sorted(maps.Keys(s.Files)) }

// Equal reports whether another set has the same files: contents, modes and owners.
func (s *Set) Equal(other *Set) bool {
	return slices.Equal(s.Dirs, other.Dirs) && maps.EqualFunc(s.Files, other.Files, func(a, b File) bool {
		return a.Mode == b.Mode && string(a.Data) == string(b.Data) && equalID(a.UID, b.UID) && equalID(a.GID, b.GID)
	})
}

func equalID(a, b *int64) bool { return a == b || a != nil && b != nil && *a == *b }

// Put adds another set's files, below a directory of this one: so the volumes of a pod become
// one set. A set without files makes the directory alone. RefreshAfter becomes the earlier
// one, and DependsOn has both. The bytes are shared.
func (s *Set) Put(dir string, other *Set) {
	if s.Files == nil {
		s.Files = make(map[string]File)
	}
	for p, f := range other.Files {
		s.Files[path.Join(dir, p)] = f
	}
	for _, d := range other.Dirs {
		s.Dirs = append(s.Dirs, path.Join(dir, d))
	}
	if len(other.Files)+len(other.Dirs) == 0 {
		s.Dirs = append(s.Dirs, path.Clean(dir))
	}
	if at := other.RefreshAfter; s.RefreshAfter.IsZero() || !at.IsZero() && at.Before(s.RefreshAfter) {
		s.RefreshAfter = at
	}
	for _, ref := range other.DependsOn {
		if !slices.Contains(s.DependsOn, ref) {
			s.DependsOn = append(s.DependsOn, ref)
		}
	}
}

// dirMode is the mode of a volume's directories: the kubelet's.
const dirMode fs.FileMode = 0o755

// WriteTar writes the files as a tar archive (PAX), with the directories that they are in,
// in the order of their paths. The same files give the same bytes: all times are the
// beginning of 1970. A file without an owner belongs to 0:0 there, and so does every
// directory, with mode 0755. The archive is complete when WriteTar returns nil; w is not
// closed. A set with paths that are not as [Set] says, absolute for example, is refused with
// *fileset.PathError before anything is written.
func (s *Set) WriteTar(w io.Writer) error {
	if err := s.check(); err != nil {
		return err
	}
	archive := tar.NewWriter(w)
	for _, dir := range s.dirs() {
		if err := archive.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir + "/", Mode: int64(dirMode), ModTime: time.Unix(0, 0), Format: tar.FormatPAX}); err != nil {
			return err
		}
	}
	for _, p := range s.Paths() {
		f := s.Files[p]
		h := &tar.Header{Typeflag: tar.TypeReg, Name: p, Mode: int64(f.Mode.Perm()), Size: int64(len(f.Data)), ModTime: time.Unix(0, 0), Format: tar.FormatPAX}
		if f.UID != nil {
			h.Uid = int(*f.UID)
		}
		if f.GID != nil {
			h.Gid = int(*f.GID)
		}
		if err := archive.WriteHeader(h); err != nil {
			return err
		}
		if _, err := archive.Write(f.Data); err != nil {
			return err
		}
	}
	return archive.Close()
}

// dirs are the directories of the files, sorted, so that each comes after its own.
func (s *Set) dirs() []string {
	all := make(map[string]struct{})
	for p := range s.Files {
		addDirs(all, path.Dir(p))
	}
	for _, dir := range s.Dirs {
		addDirs(all, dir)
	}
	return slices.Sorted(maps.Keys(all))
}

func addDirs(all map[string]struct{}, dir string) {
	for ; dir != "." && dir != "/"; dir = path.Dir(dir) {
		all[dir] = struct{}{}
	}
}

// check refuses paths that a set cannot have.
func (s *Set) check() error {
	var paths fileset.PathSet
	for _, p := range slices.Concat(s.Paths(), s.Dirs) {
		if err := checkClean(p); err != nil {
			return err
		}
	}
	for _, p := range s.Paths() {
		if other, ok := paths.Conflict(p); ok {
			return &fileset.PathError{Path: p, Reason: fmt.Sprintf("there is %q too: one would be a file and the directory of the other", other)}
		}
		paths.Add(p, "")
	}
	for _, dir := range s.Dirs {
		if _, file := paths.Origin(dir); file {
			return &fileset.PathError{Path: dir, Reason: "it is a directory of the set, too"}
		}
		if other, ok := paths.Conflict(path.Join(dir, ".empty")); ok {
			return &fileset.PathError{Path: dir, Reason: fmt.Sprintf("%q is a file", other)}
		}
	}
	return nil
}

func checkClean(p string) error {
	clean, err := fileset.CleanPath(p)
	if err == nil && clean != p {
		err = &fileset.PathError{Path: p, Reason: fmt.Sprintf("it is not clean: give %q", clean)}
	}
	return err
}

// String shows no contents.
func (s *Set) String() string {
	var b strings.Builder
	for _, p := range s.Paths() {
		fmt.Fprintf(&b, "%s %v\n", p, s.Files[p])
	}
	return b.String()
}

// LogValue implements [slog.LogValuer]: logs show no contents either.
func (s *Set) LogValue() slog.Value { return slog.StringValue(s.String()) }

// clone returns a copy that shares nothing.
func (s *Set) clone() *Set {
	c := &Set{Files: make(map[string]File, len(s.Files)), Dirs: slices.Clone(s.Dirs), RefreshAfter: s.RefreshAfter, DependsOn: slices.Clone(s.DependsOn)}
	for p, f := range s.Files {
		c.Files[p] = cloneFile(f)
	}
	return c
}
