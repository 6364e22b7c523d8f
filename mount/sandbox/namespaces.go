package sandbox

import (
	"context"
	"os"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount"
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
	// The child is executed before its ids are mapped. As nobody it would lose
	// its capabilities there, but for the ambient ones.
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
func inside(mappings []mount.IDMapping) uint32 {
	if isMapped(mappings, 0) {
		return 0
	}
	return mappings[0].ContainerID
}

// addSpaces makes the user namespaces of the idmapped mounts, which must not be
// the child's business: it may have no ids of the host's by then.
func (l *launch) addSpaces(ctx context.Context, mounts []Mount) error {
	for i, m := range mounts {
		if len(m.UIDMappings) == 0 {
			continue
		}
		space, err := mount.NewIDMap(ctx, m.UIDMappings, m.GIDMappings)
		if err != nil {
			e := as(ErrIDMap, "make the mapping", m.Source, err)
			return e.of(m)
		}
		l.order.Mounts[i].IDMap = firstFD + len(l.spaces)
		l.spaces = append(l.spaces, space)
	}
	return nil
}
