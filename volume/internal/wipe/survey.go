package wipe

import (
	"context"
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/treewalk"
)

// maxFirst is how many names a [Contents] has.
const maxFirst = 10

// Contents is what an emptying would delete.
type Contents struct {
	// Entries is the number of files, links and directories; Bytes the space
	// they take, where a file of several names counts for each.
	Entries, Bytes int64
	// First are the first names directly in the directory, ten at most, in the
	// order in which the file system lists them.
	First []string
	// Mounts is how many mount points there are. They and their content are not
	// counted, and would not be deleted.
	Mounts int64
}

// Survey counts what [Empty] would delete, and changes nothing. Beside an
// error, a *[io/fs.PathError] or the cause of ctx's end, it returns what it has
// seen until then.
func Survey(ctx context.Context, root *os.File) (Contents, error) {
	tree, err := treewalk.OpenAt(root, treewalk.Options{})
	if err != nil {
		return Contents{}, err
	}
	defer tree.Close()
	rootFD, _ := tree.Root()
	v := &surveyor{tree: tree, root: rootFD}
	err = tree.Walk(ctx, 1, func() treewalk.Visitor { return v })
	return v.found, err
}

// surveyor is the only visitor of its walk.
type surveyor struct {
	tree  *treewalk.Tree
	root  int
	found Contents
}

func (s *surveyor) Visit(dirfd int, name treewalk.Name, _ uint8) (enter bool, err error) {
	info, err := s.tree.Stat(dirfd, name)
	switch {
	case errors.Is(err, unix.ENOENT):
		return false, nil
	case err != nil:
		return false, &os.PathError{Op: "statx", Err: err}
	case !s.tree.Holds(info):
		s.found.Mounts++
		return false, nil
	}
	s.found.Entries++
	s.found.Bytes += int64(info.Blocks) * 512
	if dirfd == s.root && len(s.found.First) < maxFirst {
		s.found.First = append(s.found.First, name.String())
	}
	return info.IsDir(), nil
}

func (s *surveyor) Enter(int, treewalk.Info) error { return nil }
