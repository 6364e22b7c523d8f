package propagation

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/internal/mounttable"
	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/util/pathin"
)

// Place is where a process that hides its mounts runs.
type Place string

// The places.
const (
	// Container is a container with a root directory of its own.
	Container Place = "container"
	// Service is a service of systemd with a mount namespace of its own.
	Service Place = "service"
)

// Warning says that mounts do not pass between the host and this process as they must.
// It is a value; the caller owns it.
type Warning struct {
	// Dir is the directory that was asked for.
	Dir string
	// Mount is the mount that holds it, as this process sees it.
	Mount mount.Entry
	// Place is where this process runs.
	Place Place
	// Inward: mounts that are made on the host do not reach this process, which is all that
	// a mounter in the host's namespace needs. Else mounts of this process do not
	// reach the host.
	Inward bool
	// Unshared is the mount on the host, if that passes nothing on, so that no manifest helps.
	Unshared string
}

// String tells the fault, in one line without the advice.
func (w *Warning) String() string {
	why := "is private"
	if slices.ContainsFunc(w.Mount.Propagation, isMaster) {
		why = "only takes mounts from the host"
	}
	if w.Inward {
		return fmt.Sprintf("mounts on the host below %s do not reach this %s: the mount at %s is no copy of the host's that follows it", w.Dir, w.Place, w.Mount.Target)
	}
	return fmt.Sprintf("mounts below %s stay in this %s, and the host does not see them: the mount at %s %s", w.Dir, w.Place, w.Mount.Target, why)
}

// Mode is the mountPropagation that the volume of the directory needs.
func (w *Warning) Mode() string {
	if w.Inward {
		return "HostToContainer"
	}
	return "Bidirectional"
}

// Advice says what to write into the manifest of the pod, or into the unit of the service.
func (w *Warning) Advice() string {
	if w.Place == Service {
		return "take PrivateTmp=, PrivateMounts=, ProtectSystem= and all else that gives the service a mount namespace out of its unit (systemd.exec(5))"
	}
	if w.Unshared != "" {
		return "on the host, before the agent starts: mount --make-rshared " + w.Unshared
	}
	privileged := ""
	if !w.Inward {
		privileged = ", and securityContext: {privileged: true}"
	}
	dir := strconv.Quote(w.Dir)
	return fmt.Sprintf("give the container in the manifest volumeMounts: [{name: podvol-root, mountPath: %s, mountPropagation: %s}]%s, and the pod volumes: [{name: podvol-root, hostPath: {path: %[1]s, type: DirectoryOrCreate}}]",
		dir, w.Mode(), privileged)
}

// Checker is implemented by mounters that do not mount in this process's namespace.
type Checker interface {
	// CheckPropagation is [Check] for the mounter.
	CheckPropagation(dir string) (*Warning, error)
}

// Of judges the mounts that m makes below dir: by m's own method if it is a [Checker],
// else by [Check] of its table. A mounter with a table that is not the kernel's, as
// mount/fakemount, hides nothing.
func Of(m mount.Interface, dir string) (*Warning, error) {
	for inner := m; inner != nil; {
		if c, ok := inner.(Checker); ok {
			return c.CheckPropagation(dir)
		}
		wrapped, ok := inner.(interface{ Unwrap() mount.Interface })
		if !ok {
			break
		}
		inner = wrapped.Unwrap()
	}
	mounts := table.Of(m)
	switch mounts.(type) {
	case *mounttable.Table, mounttable.Uncached:
		return Check(mounts, dir)
	}
	return nil, nil
}

// Warn logs what [Of] finds, as an agent does at its start, and returns it. It is nil, too,
// where that is not known; then the log says so.
func Warn(ctx context.Context, log *slog.Logger, m mount.Interface, dir string) *Warning {
	w, err := Of(m, dir)
	switch {
	case err != nil:
		log.WarnContext(ctx, "whether mounts pass between this process and the host is not known", "dir", dir, "error", err)
	case w != nil:
		log.WarnContext(ctx, w.String(), "dir", w.Dir, "advice", w.Advice())
	}
	return w
}

// Check reports whether mounts that this process makes below dir stay hidden from the host;
// nil: they do not, as far as can be seen. mounts is this process's table. dir is absolute.
// If it does not exist, the nearest parent that does counts.
//
// Check changes nothing, and is safe for concurrent use. It may block as
// [table.Containing] may.
func Check(mounts mount.Table, dir string) (*Warning, error) {
	return check(mounts, dir, proc{dir: "/proc"})
}

// CheckInward is Check for a mounter that acts in the host's namespace: it reports whether
// mounts on the host below dir reach this process. own is this process's table, host the
// host's. dir must lead to the same directory of the same mount in both.
func CheckInward(own, host mount.Table, dir string) (*Warning, error) {
	ours, err := holding(own, dir)
	if err != nil {
		return nil, err
	}
	theirs, err := holding(host, dir)
	if err != nil {
		return nil, err
	}
	w := &Warning{Dir: filepath.Clean(dir), Mount: ours, Place: Container, Inward: true}
	group := Group(theirs)
	switch follows := Group(ours) == group || slices.Contains(ours.Propagation, "master:"+group); {
	case group == "":
		w.Unshared = theirs.Target
	case follows && shows(ours, w.Dir) == shows(theirs, w.Dir):
		return nil, nil
	}
	return w, nil
}

// shows is the directory of its file system that a mount has at a path; empty: links lead
// there.
func shows(e mount.Entry, dir string) string {
	rest, ok := pathin.Cut(e.Target, dir)
	if !ok {
		return ""
	}
	return filepath.Join(e.Root, rest)
}

func check(mounts mount.Table, dir string, p proc) (*Warning, error) {
	holds, err := holding(mounts, dir)
	if err != nil {
		return nil, err
	}
	w := &Warning{Dir: filepath.Clean(dir), Mount: holds}
	if w.Place = p.hides(holds); w.Place == "" {
		return nil, nil
	}
	return w, nil
}

// holding returns the mount that holds a directory, or the place where it will be.
func holding(mounts mount.Table, dir string) (mount.Entry, error) {
	if !filepath.IsAbs(dir) {
		return mount.Entry{}, fmt.Errorf("the directory %q is not absolute", dir)
	}
	for dir = filepath.Clean(dir); ; dir = filepath.Dir(dir) {
		e, err := table.Containing(mounts, dir)
		if dir == "/" || !errors.Is(err, fs.ErrNotExist) {
			return e, err
		}
	}
}

func isMaster(field string) bool { return strings.HasPrefix(field, "master:") }

// Group returns the peer group in which a mount passes mounts on; empty: it is not shared.
func Group(e mount.Entry) string {
	for _, field := range e.Propagation {
		if group, ok := strings.CutPrefix(field, "shared:"); ok {
			return group
		}
	}
	return ""
}
