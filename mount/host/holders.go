package host

import (
	"bufio"
	"context"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/internal/mounttable"
	"github.com/podvol/podvol/util/pathin"
)

const (
	// maxHolders is how many processes are named.
	maxHolders = 10
	// holdersLimit bounds the search, as /proc may have a million entries and a
	// process that is stuck in the kernel can hold up a reader of its maps.
	holdersLimit = 3 * time.Second
)

// holders returns what holds a mount, as far as /proc shows it to this process within
// ctx and holdersLimit. It does not touch the mount itself.
//
//   - Processes of other users are shown only to a process that may trace them
//     (ptrace(2)).
//   - Files are told by the mount id of their descriptors. Directories, programs and
//     mappings are told by their paths, since the kernel shows no more.
//   - In another mount namespace the copy in the same peer group counts: the kernel
//     refuses to unmount if it would unmount copies in use too (mount_namespaces(7)).
func (m *Mounter) holders(ctx context.Context, held mount.Entry) []mount.Holder {
	ctx, cancel := context.WithTimeout(ctx, holdersLimit)
	defer cancel()
	found := &holderList{}
	// Holders found by the end of ctx are kept; the error says just that.
	_ = m.calls.Do(ctx, callKey{held.Target, rungHolders}, func() error {
		entries, err := m.table.All()
		if err != nil {
			return err
		}
		search := holderSearch{proc: "/proc", sys: "/sys", held: held, own: entries, found: found}
		search.run(ctx)
		return nil
	})
	return found.list()
}

// rungHolders is the key of a search, in the place of a rung.
const rungHolders mount.Rung = -1

// holderList collects holders, at most maxHolders and one of each process.
type holderList struct {
	mu  sync.Mutex
	all []mount.Holder
}

// add reports whether there is room for more.
func (l *holderList) add(h mount.Holder) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.all) < maxHolders {
		l.all = append(l.all, h)
	}
	return len(l.all) < maxHolders
}

func (l *holderList) list() []mount.Holder {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]mount.Holder(nil), l.all...)
}

// holderSearch looks through /proc for what holds one mount. It reads links and
// files of /proc only and never follows a link, so the mount is not touched.
type holderSearch struct {
	proc, sys string
	held      mount.Entry
	// own are the mounts of this process's namespace.
	own   []mount.Entry
	found *holderList
	// views are the mounts of other namespaces, by what /proc/<pid>/ns/mnt
	// links to.
	views map[string]mountView
}

// mountView is how the processes of one mount namespace see the mount.
type mountView struct {
	entries []mount.Entry
	ids     map[int]bool // of the mount and its copies there
}

func (s *holderSearch) run(ctx context.Context) {
	if !s.kernel() {
		return
	}
	ownNamespace, _ := os.Readlink(s.proc + "/self/ns/mnt")
	s.views = map[string]mountView{ownNamespace: {s.own, map[int]bool{s.held.ID: true}}}
	dir, err := os.Open(s.proc)
	if err != nil {
		return
	}
	defer dir.Close()
	for {
		some, err := dir.ReadDir(256)
		for _, entry := range some {
			pid, notPID := strconv.Atoi(entry.Name())
			if notPID != nil {
				continue
			}
			if ctx.Err() != nil || !s.process(ctx, pid) {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// kernel looks for what the kernel itself holds, and reports whether there is
// room for more.
func (s *holderSearch) kernel() bool {
	for _, e := range s.own {
		if e.ParentID == s.held.ID && e.ID != s.held.ID && !s.add(0, "mount below at "+e.Target) {
			return false
		}
	}
	own := mountView{s.own, map[int]bool{s.held.ID: true}}
	swaps, _ := os.ReadFile(s.proc + "/swaps")
	for line := range strings.Lines(string(swaps)) {
		file, _, _ := strings.Cut(line, " ")
		if file = mounttable.Unescape(file); own.shows(file) && !s.add(0, "swap file "+file) {
			return false
		}
	}
	backing, _ := filepath.Glob(s.sys + "/block/*/loop/backing_file")
	for _, name := range backing {
		content, _ := os.ReadFile(name)
		file := strings.TrimSuffix(string(content), "\n")
		device := filepath.Base(filepath.Dir(filepath.Dir(name)))
		if own.shows(file) && !s.add(0, fmt.Sprintf("loop device %s on %s", device, file)) {
			return false
		}
	}
	return true
}

// process looks at one process and reports whether there is room for more. A
// process that ends meanwhile, or may not be read, holds nothing.
func (s *holderSearch) process(ctx context.Context, pid int) bool {
	dir := fmt.Sprintf("%s/%d", s.proc, pid)
	view := s.view(dir)
	for _, look := range []func(context.Context, string, mountView) string{lookAtLinks, s.lookAtFiles, lookAtMaps} {
		if ctx.Err() != nil {
			return false
		}
		if how := look(ctx, dir, view); how != "" {
			return s.add(pid, how)
		}
	}
	return true
}

func (s *holderSearch) add(pid int, how string) bool {
	h := mount.Holder{PID: pid, Command: "kernel", How: how}
	if pid != 0 {
		comm, err := os.ReadFile(fmt.Sprintf("%s/%d/comm", s.proc, pid))
		if err != nil {
			return true // it has ended
		}
		h.Command = strings.TrimSpace(string(comm))
	}
	return s.found.add(h)
}

// view returns how a process sees the mount; not at all if it cannot be told.
func (s *holderSearch) view(dir string) mountView {
	namespace, err := os.Readlink(dir + "/ns/mnt")
	if err != nil {
		return mountView{}
	}
	if view, ok := s.views[namespace]; ok {
		return view
	}
	view := mountView{ids: map[int]bool{}}
	if f, err := os.Open(dir + "/mountinfo"); err == nil {
		view.entries, _ = mounttable.ParseMountinfo(f)
		f.Close()
	}
	for _, e := range view.entries {
		if isCopy(e, s.held) {
			view.ids[e.ID] = true
		}
	}
	s.views[namespace] = view
	return view
}

// isCopy reports whether a mount of another namespace would be unmounted with
// held: it shows the same directory and is its peer or its slave.
func isCopy(e, held mount.Entry) bool {
	if e.Device != held.Device || e.Root != held.Root {
		return false
	}
	return slices.ContainsFunc(held.Propagation, func(group string) bool {
		number, isShared := strings.CutPrefix(group, "shared:")
		return isShared && (slices.Contains(e.Propagation, group) || slices.Contains(e.Propagation, "master:"+number))
	})
}

// shows reports whether a path, as its process sees it, lies on the mount.
func (v mountView) shows(file string) bool {
	if !path.IsAbs(file) || len(v.ids) == 0 {
		return false
	}
	// Most paths are not below the mount, and that is cheap to see.
	if !slices.ContainsFunc(v.entries, func(e mount.Entry) bool { return v.ids[e.ID] && pathin.In(e.Target, file) }) {
		return false
	}
	e, ok := mounttable.MountOf(v.entries, file)
	return ok && v.ids[e.ID]
}

func lookAtLinks(_ context.Context, dir string, view mountView) string {
	for _, link := range [][2]string{{"cwd", "working directory"}, {"root", "root directory"}, {"exe", "program"}} {
		if file, err := os.Readlink(dir + "/" + link[0]); err == nil && view.shows(file) {
			return link[1] + " " + file
		}
	}
	return ""
}

// lookAtFiles looks at the mount ids of a process's descriptors, which are the
// same whichever namespace it is in.
func (s *holderSearch) lookAtFiles(ctx context.Context, dir string, view mountView) string {
	var how string
	eachName(ctx, dir+"/fdinfo", func(fd string) bool {
		info, err := os.ReadFile(dir + "/fdinfo/" + fd)
		if id, ok := mountIDIn(string(info)); err != nil || !ok || id != s.held.ID && !view.ids[id] {
			return true
		}
		file, err := os.Readlink(dir + "/fd/" + fd)
		if err != nil {
			return true
		}
		how = "open file " + file
		return false
	})
	return how
}

// mountIDIn reads the mnt_id line of /proc/<pid>/fdinfo/<fd>.
func mountIDIn(info string) (int, bool) {
	_, after, ok := strings.Cut(info, "mnt_id:")
	if !ok {
		return 0, false
	}
	number, _, _ := strings.Cut(after, "\n")
	id, err := strconv.Atoi(strings.TrimSpace(number))
	return id, err == nil
}

// lookAtMaps looks at the paths in /proc/<pid>/maps, the sixth field.
func lookAtMaps(ctx context.Context, dir string, view mountView) string {
	if len(view.ids) == 0 {
		return "" // no path could lie on it
	}
	f, err := os.Open(dir + "/maps")
	if err != nil {
		return ""
	}
	defer f.Close()
	last := ""
	for lines := bufio.NewScanner(f); lines.Scan() && ctx.Err() == nil; {
		i := strings.IndexByte(lines.Text(), '/')
		if i < 0 || lines.Text()[i:] == last {
			continue
		}
		last = lines.Text()[i:]
		if file := mounttable.Unescape(strings.TrimSuffix(last, " (deleted)")); view.shows(file) {
			return "mapped file " + file
		}
	}
	return ""
}

// eachName calls f with the names in a directory of /proc until it returns
// false or ctx ends.
func eachName(ctx context.Context, dir string, f func(name string) bool) {
	d, err := os.Open(dir)
	if err != nil {
		return
	}
	defer d.Close()
	for ctx.Err() == nil {
		var some []fs.DirEntry
		some, err = d.ReadDir(256)
		for _, entry := range some {
			if !f(entry.Name()) {
				return
			}
		}
		if err != nil {
			return
		}
	}
}
