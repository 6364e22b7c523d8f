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

// IDMapping maps Size ids, from ContainerID on, to those from HostID on, as a
// line of /proc/<pid>/uid_map does (user_namespaces(7)). For an idmapped mount
// ContainerID is the owner as stored in the file system, and HostID the owner
// that is shown.
type IDMapping struct {
	ContainerID, HostID, Size uint32
}

// NewIDMap returns a descriptor of a new user namespace with these mappings, as
// an idmapped mount is made from (mount_setattr(2)). The namespace lives as
// long as the descriptor, or a mount made from it. It needs CAP_SETUID and
// CAP_SETGID, and that the kernel lets a process be traced: the namespace comes
// from a child that is stopped before its first instruction, and killed.
func NewIDMap(ctx context.Context, uids, gids []IDMapping) (*os.File, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if len(uids) == 0 || len(gids) == 0 {
		return nil, errors.New("an id map needs users and groups")
	}
	// The child is traced, and dies with, the thread that made it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	child, err := os.StartProcess("/proc/self/exe", []string{"podvol-idmap"}, &os.ProcAttr{Sys: &syscall.SysProcAttr{
		Cloneflags:                 unix.CLONE_NEWUSER,
		UidMappings:                sysMappings(uids),
		GidMappings:                sysMappings(gids),
		GidMappingsEnableSetgroups: true,
		Pdeathsig:                  syscall.SIGKILL,
		Ptrace:                     true, // it stops in execve(2)
	}})
	if err != nil {
		return nil, fmt.Errorf("make a user namespace with the mappings: %w", err)
	}
	space, err := os.Open(fmt.Sprintf("/proc/%d/ns/user", child.Pid))
	_ = child.Kill()
	_, waitErr := child.Wait()
	if err != nil {
		return nil, err
	}
	if waitErr != nil {
		space.Close()
		return nil, waitErr
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
