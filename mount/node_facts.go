package mount

import (
	"bufio"
	"errors"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// wantsHelper reports whether mounts of a type go through mount.<type>.
func wantsHelper(fstype string) bool {
	switch family(fstype) {
	case "nfs", "cifs", "ceph", "glusterfs", "fuse":
		return true
	}
	return false
}

// inKernel reports whether a type is the kernel's own. The others are daemons
// behind fuse, whose type mount(8) calls unknown when the helper lacks, or left
// for mount(8) to find out.
func inKernel(fstype string) bool {
	switch family(fstype) {
	case "glusterfs", "fuse", "auto", "":
		return false
	}
	return true
}

// family puts variants of a type together.
func family(fstype string) string {
	base, _, _ := strings.Cut(fstype, ".")
	switch base {
	case "nfs4":
		return "nfs"
	case "smb3":
		return "cifs"
	case "fuseblk":
		return "fuse"
	}
	return base
}

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
		return name == fstype || name == family(fstype)
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
	e, ok := errors.AsType[*Error](err)
	if !ok {
		return err
	}
	if errors.Is(e, ErrHelperMissing) || errors.Is(e, ErrNoFilesystem) {
		e.Distribution = c.distribution()
	}
	if e.Cause == ErrNotPermitted {
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
