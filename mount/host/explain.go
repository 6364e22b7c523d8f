package host

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/internal/failure"
	"github.com/podvol/podvol/mount/internal/fstypes"
	"github.com/podvol/podvol/mount/internal/mounttable"
)

// The calls by which a failure is told apart from another.
const (
	callOpen   = "fsopen"
	callOption = "fsconfig"
	callCreate = "open the file system"
	callAttach = "move_mount"
	callMount  = "mount"
)

// optionError is an error about one option of the request.
type optionError struct {
	option string // masked where it is sensitive
	err    error
}

func (e *optionError) Error() string { return e.err.Error() }

func (e *optionError) Unwrap() error { return e.err }

// lackingError says that this kernel lacks a call, or that a filter of system
// calls keeps it from us: mount(2) is to be used instead.
type lackingError struct{ err error }

func (e *lackingError) Error() string {
	return "a call of the new mount API is not to be had: " + e.err.Error()
}

func (e *lackingError) Unwrap() error { return e.err }

// lacking marks the error of a call that does not exist.
func lacking(err error) error {
	if errors.Is(err, unix.ENOSYS) {
		return &lackingError{err}
	}
	return err
}

// lackingOrDenied is for the first call on each way: EPERM may come from a
// filter that knows only mount(2). If it does not, mount(2) gives the same
// answer.
func lackingOrDenied(err error) error {
	if errors.Is(err, unix.EPERM) {
		return &lackingError{err}
	}
	return lacking(err)
}

// explain makes the *Error of a failed native request: why the kernel refused it,
// by errno, by the step, and by the node's state.
func (m *Mounter) explain(r mount.Request, err error) error {
	explained := r.Failed(err)
	e, ok := errors.AsType[*mount.Error](explained)
	if !ok || mount.KnownCause(err) != "" && e.Option != "" {
		return explained
	}
	if about, ok := errors.AsType[*optionError](err); ok {
		e.Option = about.option
	}
	if about, ok := errors.AsType[*nfsError](err); ok {
		about.complete(e)
	}
	refused, ok := errors.AsType[*failure.Kernel](err)
	if !ok || mount.KnownCause(err) != "" {
		return explained
	}
	switch {
	case refused.Call == callOption && !errors.Is(err, unix.ENOMEM) && !errors.Is(err, unix.EPERM):
		e.Cause = mount.ErrBadOption
	case refused.Call == callOpen && errors.Is(err, unix.ENODEV):
		e.Cause, e.Also = m.config.weigh(r, mount.ErrNoFilesystem)
	}
	return explained
}

// explainSource says why the source of a bind mount cannot be bound.
func (n *native) explainSource(err error) error {
	refused := &failure.Kernel{Call: "open_tree", Err: &os.PathError{Op: "bind", Path: n.request.Source, Err: err}}
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR):
		return failure.Of(mount.ErrNoSource, refused)
	case errors.Is(err, unix.EINVAL):
		return n.explainUncopied(refused)
	}
	return lackingOrDenied(refused)
}

// explainUncopied says why the kernel copies no mount: it is unbindable, or
// what it hides is locked.
func (n *native) explainUncopied(err error) error {
	source, openErr := openPath(unix.AT_FDCWD, n.request.Source, 0)
	if openErr != nil {
		return err
	}
	defer unix.Close(source)
	at, lookErr := look(source, "")
	if lookErr != nil {
		return err
	}
	if e, tableErr := mounttable.MountWithID(n.table, at.mount); tableErr == nil && len(e.Propagation) > 0 && e.Propagation[len(e.Propagation)-1] == "unbindable" {
		return failure.Of(mount.ErrNotPermitted, fmt.Errorf("the mount at %s is unbindable: %w", e.Target, err))
	}
	if n.options.Recursive {
		return err
	}
	return failure.Of(mount.ErrNotPermitted, fmt.Errorf("the mounts below it are locked by the namespace that they came from, and a user namespace cannot bind it without them: bind them along (rbind), or do it as root: %w", err))
}

// explainAttach says why a mount cannot be attached: the kernel says EINVAL
// where mount(2) would have told the kinds apart.
func (n *native) explainAttach(tree int, err error) error {
	refused := &failure.Kernel{Call: callAttach, Err: err}
	if !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOTDIR) {
		return refused
	}
	if made, lookErr := look(tree, ""); lookErr == nil && made.isDir() != n.at.isDir() {
		return failure.Of(mount.ErrKindMismatch, refused)
	}
	return refused
}

func (c Config) hasHelper(fstype string) bool {
	_, ok := c.helperPath(fstype)
	return ok
}

// KernelHas reports whether the running kernel has a type of file system, built in, loaded or
// among its modules, as far as can be seen from here. It loads nothing, and may be called
// concurrently. The types are those of mount(8), such as nfs4.
func (c Config) KernelHas(fstype string) bool {
	return c.isRegistered(fstype) || c.hasModule(fstype)
}

// isRegistered looks the type up in /proc/filesystems.
func (c Config) isRegistered(fstype string) bool {
	path := c.FilesystemsFile
	if path == "" {
		path = "/proc/filesystems"
	}
	return anyLine(path, func(line string) bool {
		fields := strings.Fields(line)
		return len(fields) > 0 && fields[len(fields)-1] == fstype
	})
}

// hasModule looks the type up among the kernel's modules: by its alias
// "fs-<type>", else by the module's name.
func (c Config) hasModule(fstype string) bool {
	dir := c.ModulesDir
	if dir == "" {
		var name unix.Utsname
		if err := unix.Uname(&name); err != nil {
			return false
		}
		dir = filepath.Join("/lib/modules", unix.ByteSliceToString(name.Release[:]))
	}
	alias := "alias fs-" + fstype + " "
	if anyLine(filepath.Join(dir, "modules.alias"), func(line string) bool { return strings.HasPrefix(line, alias) }) {
		return true
	}
	isModule := func(line string) bool {
		path, _, _ := strings.Cut(line, ":")
		name, _, _ := strings.Cut(filepath.Base(path), ".ko")
		return name == fstype || name == fstypes.Family(fstype)
	}
	return anyLine(filepath.Join(dir, "modules.dep"), isModule) || anyLine(filepath.Join(dir, "modules.builtin"), isModule)
}

// anyLine reports whether a file has such a line; a file that cannot be read
// has none.
func anyLine(path string, is func(line string) bool) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if is(lines.Text()) {
			return true
		}
	}
	return false
}

// helperPath returns the file that mount(8) would run for a type, if there is
// one.
func (c Config) helperPath(fstype string) (string, bool) {
	dirs := c.HelperDirs
	if dirs == nil {
		dirs = []string{"/sbin", "/sbin/fs.d", "/sbin/fs", "/usr/sbin", "/usr/local/sbin", "/bin", "/usr/bin"}
	}
	names := []string{"mount." + fstype}
	if base, _, isSub := strings.Cut(fstype, "."); isSub {
		names = append(names, "mount."+base)
	}
	for _, dir := range dirs {
		for _, name := range names {
			path := filepath.Join(dir, name)
			if info, err := os.Stat(path); err == nil && !info.IsDir() {
				return path, true
			}
		}
	}
	return "", false
}

// withFacts adds to the *Error err what the node can tell about its cause, and
// returns it.
func (c Config) withFacts(err error) error {
	e, ok := errors.AsType[*mount.Error](err)
	if !ok {
		return err
	}
	if errors.Is(e, mount.ErrHelperMissing) || errors.Is(e, mount.ErrNoFilesystem) {
		e.Distribution = c.distribution()
	}
	if e.Cause == mount.ErrNotPermitted {
		if own, err := ownPrivileges(); err == nil {
			own.explainDenial(e)
		}
	}
	return err
}

// distribution returns ID and ID_LIKE of os-release(5), or nothing.
func (c Config) distribution() []string {
	paths := []string{c.OSReleaseFile}
	if c.OSReleaseFile == "" {
		paths = []string{"/etc/os-release", "/usr/lib/os-release"}
	}
	var id, like []string
	for _, path := range paths {
		anyLine(path, func(line string) bool {
			name, value, _ := strings.Cut(line, "=")
			words := strings.Fields(strings.ToLower(strings.Trim(value, `"'`)))
			switch name {
			case "ID":
				id = words
			case "ID_LIKE":
				like = words
			}
			return false
		})
		if len(id) > 0 {
			break
		}
	}
	return append(id, like...)
}

// diagnose classifies a failed mount(8). Its output alone does not tell a
// missing helper from a wrong option or a damaged file system ("wrong fs type,
// bad option, bad superblock …"), so the node is asked what it has.
func (m *Mounter) diagnose(r mount.Request, failed *commandError) (cause mount.Cause, also []mount.Cause) {
	if errors.Is(failed.err, exec.ErrNotFound) {
		return mount.ErrHelperMissing, nil
	}
	_, killed := errors.AsType[*failure.Caused](failed.err)
	if killed || failed.output == "" {
		return mount.CauseOf(failed.err), nil
	}
	if programMissing(failed.output) {
		return mount.ErrHelperMissing, nil
	}
	return m.config.weigh(r, mount.CauseOfOutput(failed.output))
}

// programMissing tells mount.fuse's words for lack of the program that a FUSE
// type is named after: whatever helpers the node has, that one it lacks.
func programMissing(output string) bool {
	return regexp.MustCompile(`(?i)/bin/sh: .*not found|failed to exec.*no such file`).MatchString(output)
}

// weigh corrects what the output says by what the node has.
func (c Config) weigh(r mount.Request, said mount.Cause) (cause mount.Cause, also []mount.Cause) {
	fstype := r.FSType
	noHelper := fstypes.WantsHelper(fstype) && !c.hasHelper(fstype)
	switch said {
	case mount.ErrHelperMissing, mount.ErrNoFilesystem:
	case mount.ErrNoSource:
		// mount(8) takes the source of a type that it does not know for a device.
		if strings.HasPrefix(r.Source, "/") || !fstypes.InKernel(fstype) || c.KernelHas(fstype) {
			return said, nil
		}
		return mount.ErrNoFilesystem, nil
	case mount.ErrWrongFilesystem, mount.ErrBadOption, mount.ErrUnknown:
		if !noHelper {
			return said, nil
		}
	default:
		return said, nil
	}
	kernelLacks := fstypes.InKernel(fstype) && (said == mount.ErrNoFilesystem || !c.KernelHas(fstype))
	switch {
	case noHelper && kernelLacks && said == mount.ErrNoFilesystem:
		return mount.ErrNoFilesystem, []mount.Cause{mount.ErrHelperMissing}
	case noHelper && kernelLacks:
		return mount.ErrHelperMissing, []mount.Cause{mount.ErrNoFilesystem}
	case noHelper:
		return mount.ErrHelperMissing, nil
	case kernelLacks:
		return mount.ErrNoFilesystem, nil
	case said == mount.ErrNoFilesystem:
		return mount.ErrNoFilesystem, nil
	}
	return mount.WithoutHelper(r), nil
}

// privileges are what decides about mounts beside the file system itself.
type privileges struct {
	// effective is the set of effective capabilities, a bit each.
	effective uint64
	// inUserNamespace: the capabilities count in a user namespace only.
	inUserNamespace bool
}

// ownPrivileges reads this process's. It reads the main thread's: other threads
// may have dropped some.
func ownPrivileges() (privileges, error) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return privileges{}, err
	}
	ids, err := os.ReadFile("/proc/self/uid_map")
	if err != nil {
		return privileges{}, err
	}
	return parsePrivileges(string(status), string(ids))
}

// parsePrivileges reads /proc/<pid>/status and /proc/<pid>/uid_map. Only the
// initial user namespace has all ids as they are.
func parsePrivileges(status, ids string) (privileges, error) {
	p := privileges{inUserNamespace: strings.Join(strings.Fields(ids), " ") != "0 0 4294967295"}
	lines := bufio.NewScanner(strings.NewReader(status))
	for lines.Scan() {
		if hex, ok := strings.CutPrefix(lines.Text(), "CapEff:"); ok {
			var err error
			p.effective, err = strconv.ParseUint(strings.TrimSpace(hex), 16, 64)
			return p, err
		}
	}
	return privileges{}, errors.New("no CapEff line")
}

func (p privileges) has(capability int) bool { return p.effective&(1<<capability) != 0 }

// explainDenial says which privilege is missing, or what stood in the way.
func (p privileges) explainDenial(e *mount.Error) {
	if e.Command == "" && !errors.Is(e.Err, unix.EPERM) && !errors.Is(e.Err, unix.EACCES) {
		return // it was worked out from something else
	}
	onTheWay, _ := errors.AsType[*os.PathError](e.Err)
	switch {
	case len(e.Also) > 0 || e.Kernel != "":
		return // it is known already
	case onTheWay != nil && errors.Is(onTheWay, unix.EACCES):
		if !p.has(unix.CAP_DAC_READ_SEARCH) && !p.has(unix.CAP_DAC_OVERRIDE) {
			e.Capability = "CAP_DAC_READ_SEARCH"
		}
	case !p.has(unix.CAP_SYS_ADMIN):
		e.Capability = "CAP_SYS_ADMIN"
	case p.inUserNamespace:
		e.Also = append(e.Also, mount.ErrUserNamespace)
	case e.Command == "" && !fstypes.IsShare(e.FSType): // a helper or a server may have reasons of its own
		e.Also = append(e.Also, mount.ErrSecurityPolicy)
	}
}
