package hostpath

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/util/blockingcall"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/hostfiles"
)

const (
	dirPerm  fs.FileMode = 0o755
	filePerm fs.FileMode = 0o644
)

// pathType is what one of the API's types asks for.
type pathType struct {
	name v1.HostPathType
	// isKind tells whether a file is of the type; nil accepts everything, a missing
	// file included.
	isKind func(fs.FileMode) bool
	// create makes a missing file; nil where the type creates nothing.
	create func(context.Context, volume.HostFiles, string) error
	// instead is the type that creates what this one only looks for.
	instead v1.HostPathType
}

func parseType(given *v1.HostPathType) (pathType, error) {
	name := v1.HostPathUnset
	if given != nil {
		name = *given
	}
	t := pathType{name: name}
	switch name {
	case v1.HostPathUnset:
	case v1.HostPathDirectoryOrCreate:
		t.isKind, t.create = fs.FileMode.IsDir, makeDir
	case v1.HostPathDirectory:
		t.isKind, t.instead = fs.FileMode.IsDir, v1.HostPathDirectoryOrCreate
	case v1.HostPathFileOrCreate:
		t.isKind, t.create = fs.FileMode.IsRegular, makeFile
	case v1.HostPathFile:
		t.isKind, t.instead = fs.FileMode.IsRegular, v1.HostPathFileOrCreate
	case v1.HostPathSocket:
		t.isKind = isType(fs.ModeSocket)
	case v1.HostPathCharDev:
		t.isKind = isType(fs.ModeDevice | fs.ModeCharDevice)
	case v1.HostPathBlockDev:
		t.isKind = isType(fs.ModeDevice)
	default:
		return t, volume.Invalid("hostPath.type",
			`%q is not one of "", DirectoryOrCreate, Directory, FileOrCreate, File, Socket, CharDevice and BlockDevice`, name)
	}
	return t, nil
}

func isType(want fs.FileMode) func(fs.FileMode) bool {
	return func(mode fs.FileMode) bool { return mode.Type() == want }
}

func makeDir(ctx context.Context, files volume.HostFiles, path string) error {
	return files.MakeDir(ctx, path, dirPerm)
}

func makeFile(ctx context.Context, files volume.HostFiles, path string) error {
	return files.MakeFile(ctx, path, filePerm)
}

// wrongType says that a path is not of its type; found names the actual one,
// empty if nothing is there.
func wrongType(path string, want pathType, found string) error {
	e := &volume.Failure{Cause: ErrWrongType, Subject: path}
	switch {
	case found != "":
		e.What = fmt.Sprintf("hostPath %q is a %s, its type asks for %s", path, found, want.name)
		e.Next = "correct hostPath.type or the path"
		return volume.NothingDone(e)
	case want.instead != "":
		e.Next = fmt.Sprintf("create it on this node, or use the type %s", want.instead)
	default:
		e.Next = "start on this node what provides it"
	}
	e.What = fmt.Sprintf("hostPath %q does not exist, its type asks for %s", path, want.name)
	e.Err = fs.ErrNotExist
	return volume.NothingDone(e)
}

// ensure makes sure that path is what want asks for.
func ensure(ctx context.Context, files volume.HostFiles, path string, want pathType) error {
	if want.isKind == nil {
		return nil
	}
	info, err := files.Stat(ctx, path)
	if errors.Is(err, fs.ErrNotExist) && want.create != nil {
		// Another process may be faster; the path's type afterwards counts.
		if err := want.create(ctx, files, path); err != nil && !errors.Is(err, fs.ErrExist) {
			return createError(path, want, err)
		}
		info, err = files.Stat(ctx, path)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return wrongType(path, want, "")
	case err != nil:
		return volume.NothingDone(unanswered(path, err))
	case !want.isKind(info.Mode()):
		return wrongType(path, want, hostfiles.Kind(info.Mode()))
	}
	return nil
}

// createError leaves an error of creating unmarked: parents may have been made.
func createError(path string, want pathType, err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return noParent(path, want)
	}
	return fmt.Errorf("hostPath %q cannot be created as %s: %w", path, want.name, unanswered(path, err))
}

func noParent(path string, want pathType) error {
	if want.name != v1.HostPathFileOrCreate {
		return wrongType(path, want, "")
	}
	return volume.NothingDone(&volume.Failure{
		Cause: ErrWrongType, Subject: path, Err: fs.ErrNotExist,
		What: fmt.Sprintf("hostPath %q cannot be created: its directory does not exist on this node", path),
		Next: "create that first",
	})
}

// unanswered explains a call that did not return in time.
func unanswered(path string, err error) error {
	if _, ok := errors.AsType[*blockingcall.AbandonedError](err); ok {
		return fmt.Errorf("the file system at hostPath %q does not answer; if it is a network file system, look at its server: %w", path, err)
	}
	return err
}
