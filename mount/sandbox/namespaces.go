package sandbox

import (
	"context"
	"os"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount/host"
	"github.com/podvol/podvol/mount/internal/mountapi"
)

// attributes are the namespaces of the child, and that it dies with us.
func attributes(c *Config) (*syscall.SysProcAttr, error) {
	a := &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	if c.PIDNamespace {
		a.Cloneflags |= unix.CLONE_NEWPID
	}
	if c.UserNamespace == nil {
		return a, nil
	}
	a.Cloneflags |= unix.CLONE_NEWUSER
	// The child is executed before its ids are mapped. As an unmapped user it would
	// lose its capabilities there, but for the ambient ones.
	last, err := lastCapability()
	if err != nil {
		return nil, failed("read the kernel's capabilities", "", err)
	}
	for n := range last + 1 {
		a.AmbientCaps = append(a.AmbientCaps, uintptr(n))
	}
	return a, nil
}

func lastCapability() (int, error) {
	content, err := os.ReadFile("/proc/sys/kernel/cap_last_cap")
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(content)))
}

// inside returns the id by which the mounts are made: root where it is mapped.
func inside(mappings []host.IDMapping) uint32 {
	if isMapped(mappings, 0) {
		return 0
	}
	return mappings[0].ContainerID
}

// addIDMapped makes the copies that show other owners. It is done here and not
// in the child, which in a user namespace of its own may not.
func (l *launch) addIDMapped(ctx context.Context) *Error {
	for i := range l.order.Mounts {
		m := &l.order.Mounts[i]
		if len(m.UIDMappings) == 0 {
			continue
		}
		tree, err := openIDMapped(ctx, m.Mount)
		if err != nil {
			return err.of(m.Mount)
		}
		m.Tree = firstFD + len(l.trees)
		l.trees = append(l.trees, tree)
	}
	l.cmd.ExtraFiles = append(l.cmd.ExtraFiles, l.trees...)
	return nil
}

func openIDMapped(ctx context.Context, m Mount) (*os.File, *Error) {
	ids := host.IDMap{UIDs: m.UIDMappings, GIDs: m.GIDMappings}
	space, err := ids.Namespace(ctx)
	if err != nil {
		e := as(ErrIDMap, "make the mapping for", m.Source, err)
		e.Advice = "it takes CAP_SETUID and CAP_SETGID, and ids that are mapped here"
		return nil, e
	}
	defer space.Close()
	b := builder{api: mountapi.Kernel{}}
	t, failure := b.openSource(m, int(space.Fd()))
	if failure != nil {
		b.close()
		return nil, failure
	}
	return os.NewFile(uintptr(t.fd), m.Source), nil
}
