package host

import (
	"bufio"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/internal/failure"
	"github.com/podvol/podvol/mount/internal/fstypes"
)

func (c Config) hasHelper(fstype string) bool {
	_, ok := c.helperPath(fstype)
	return ok
}

// kernelLacks reports whether the running kernel has the type neither built in
// or loaded nor among its modules, as far as can be seen from here.
func (c Config) kernelLacks(fstype string) bool {
	return !c.isRegistered(fstype) && !c.hasModule(fstype)
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
		if strings.HasPrefix(r.Source, "/") || !fstypes.InKernel(fstype) || !c.kernelLacks(fstype) {
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
	kernelLacks := fstypes.InKernel(fstype) && (said == mount.ErrNoFilesystem || c.kernelLacks(fstype))
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
