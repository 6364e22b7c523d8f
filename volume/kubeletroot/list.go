package kubeletroot

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// List calls line with a line for each directory and file below pods/ and plugins/: mode,
// owner, size, time and path, in the form of ls(1), names quoted as in Go. Contents of
// volumes are not listed, nor are mounts, nor the targets of links. It reads at
// most maxEntries names, and reports whether there were more; 0 means 100,000. Its error joins
// what could not be read.
func List(rootDir string, maxEntries int, line func(string)) (truncated bool, err error) {
	l := lister{tree: tree{left: cmp.Or(maxEntries, 100_000)}, line: line}
	x := &examination{Config: Config{RootDir: rootDir}}
	for _, name := range []string{"pods", "plugins"} {
		dir := x.top(name)
		if dir == nil {
			continue
		}
		found, err := l.tree.entries(dir)
		l.failed(err)
		for _, e := range found {
			l.list(dir, name, e)
		}
		dir.Close()
	}
	return l.tree.full, errors.Join(append(l.errs, x.errs...)...)
}

type lister struct {
	tree tree
	line func(string)
	errs []error
}

func (l *lister) failed(err error) {
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		l.errs = append(l.errs, err)
	}
}

// list prints an entry of a directory, and the entries below it.
func (l *lister) list(in *os.File, shown string, e entry) {
	shown = filepath.Join(shown, e.name)
	s := e.stat
	l.line(fmt.Sprintf("%s %d:%d %d %s %s", modeOf(s.Mode), s.Uid, s.Gid, s.Size, time.Unix(s.Mtim.Sec, 0).UTC().Format(time.RFC3339), strconv.Quote(shown)))
	if e.isDir() && !isContent(shown) {
		l.failed(l.tree.below(in, e.name, func(in *os.File, e entry) { l.list(in, shown, e) }))
	}
}

// isContent reports whether what is below a directory is the contents of a volume, or of a
// plugin that podvol does not know.
func isContent(shown string) bool {
	parts := strings.Split(shown, "/")
	if parts[0] == "plugins" {
		csi := strings.HasPrefix(shown, "plugins/kubernetes.io/csi/")
		return len(parts) > 6 || parts[len(parts)-1] == "globalmount" || len(parts) > 4 && !csi
	}
	if len(parts) < 5 { // pods/<uid>/volumes/<plugin>/<volume>
		return len(parts) > 2 && parts[2] == "containers" // terminated containers' messages
	}
	return parts[2] != "plugins" && (len(parts) > 5 || parts[3] != "kubernetes.io~csi") || len(parts) > 6
}

func modeOf(mode uint32) string {
	kinds := map[uint32]string{unix.S_IFDIR: "d", unix.S_IFLNK: "l", unix.S_IFREG: "-", unix.S_IFIFO: "p", unix.S_IFSOCK: "s", unix.S_IFCHR: "c", unix.S_IFBLK: "b"}
	return fmt.Sprintf("%s%04o", cmp.Or(kinds[mode&unix.S_IFMT], "?"), mode&0o7777)
}
