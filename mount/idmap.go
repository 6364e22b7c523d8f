package mount

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// IDMapping maps Size ids, from ContainerID on, to the ids from HostID on, as a
// line of /proc/<pid>/uid_map does (user_namespaces(7)). For an idmapped mount
// ContainerID is the owner in the file system, and HostID the shown owner. With
// the mappings of a pod's user namespace, the pod sees the owners of the file
// system.
type IDMapping struct {
	ContainerID, HostID, Size uint32
}

// IDMap maps the owners of a mount's files to the shown owners. An owner without
// a mapping is shown as the overflow id (65534). No file can be made for an id
// that is the target of no mapping (EOVERFLOW).
type IDMap struct {
	UIDs, GIDs []IDMapping
}

// Namespace returns a descriptor of a new user namespace with these mappings, as
// mount_setattr(2) takes it. It lives as long as the descriptor, or a mount
// made from it. The namespace comes from a child that is stopped before its
// first instruction and killed: the caller needs CAP_SETUID and CAP_SETGID, and
// a kernel that lets it trace its own children.
func (m IDMap) Namespace(ctx context.Context) (*os.File, error) {
	if err := ctx.Err(); err != nil {
		return nil, context.Cause(ctx)
	}
	if len(m.UIDs) == 0 || len(m.GIDs) == 0 {
		return nil, errors.New("no users or no groups are mapped")
	}
	// It denies setgroups(2): nobody runs in it, and where the caller's own
	// namespace denies that, as an ordinary user's does, it may not be allowed.
	//
	// The child is traced by, and dies with, the thread that made it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	child, err := os.StartProcess("/proc/self/exe", []string{"podvol-idmap"}, &os.ProcAttr{Sys: &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER,
		UidMappings: sysMappings(m.UIDs),
		GidMappings: sysMappings(m.GIDs),
		Pdeathsig:   syscall.SIGKILL,
		Ptrace:      true, // it stops in execve(2)
	}})
	if err != nil {
		return nil, fmt.Errorf("make a user namespace with the mappings: %w", err)
	}
	space, err := os.Open(fmt.Sprintf("/proc/%d/ns/user", child.Pid))
	_ = child.Kill()
	_, waitErr := child.Wait()
	if err == nil && waitErr != nil {
		space.Close()
	}
	if err := errors.Join(err, waitErr); err != nil {
		return nil, err
	}
	return space, nil
}

func sysMappings(mappings []IDMapping) []syscall.SysProcIDMap {
	var all []syscall.SysProcIDMap
	for _, m := range mappings {
		all = append(all, syscall.SysProcIDMap{ContainerID: int(m.ContainerID), HostID: int(m.HostID), Size: int(m.Size)})
	}
	return all
}
