package sandbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount/host"
)

// mapIDs maps the ids of a new user namespace whose first process waits for it.
// The kernel is asked first; what it does not let this caller do is left to
// newuidmap(1) and newgidmap(1), which know /etc/subuid and /etc/subgid.
func mapIDs(ctx context.Context, pid int, ns *UserNamespace) *Error {
	if err := mapUsers(ctx, pid, ns.UIDMappings); err != nil {
		return err
	}
	return mapGroups(ctx, pid, ns.GIDMappings)
}

func mapUsers(ctx context.Context, pid int, mappings []host.IDMapping) *Error {
	err := writeProc(pid, "uid_map", mapLines(mappings))
	if errors.Is(err, unix.EPERM) {
		return mapByHelper(ctx, "newuidmap", "/etc/subuid", pid, mappings)
	}
	return mapFailed("map the users", err)
}

func mapGroups(ctx context.Context, pid int, mappings []host.IDMapping) *Error {
	err := writeProc(pid, "gid_map", mapLines(mappings))
	if errors.Is(err, unix.EPERM) && isOwn(mappings, os.Getegid()) {
		// An ordinary user may map its own group once setgroups(2) is given up for
		// good (user_namespaces(7)).
		if err := writeProc(pid, "setgroups", "deny"); err != nil {
			return mapFailed("give up setgroups", err)
		}
		err = writeProc(pid, "gid_map", mapLines(mappings))
	}
	if errors.Is(err, unix.EPERM) {
		return mapByHelper(ctx, "newgidmap", "/etc/subgid", pid, mappings)
	}
	return mapFailed("map the groups", err)
}

// isOwn reports whether it is only id that is mapped.
func isOwn(mappings []host.IDMapping, id int) bool {
	return len(mappings) == 1 && mappings[0].Size == 1 && int64(mappings[0].HostID) == int64(id)
}

func mapFailed(op string, err error) *Error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EINVAL):
		e := as(ErrNoIDs, op, "", err)
		e.Advice = "the mappings overlap, are more than 340, or name ids that this user namespace does not have"
		return e
	}
	return as(ErrNoIDs, op, "", err)
}

func mapByHelper(ctx context.Context, helper, allowed string, pid int, mappings []host.IDMapping) *Error {
	args := []string{strconv.Itoa(pid)}
	for _, m := range mappings {
		args = append(args, id(m.ContainerID), id(m.HostID), id(m.Size))
	}
	output, err := exec.CommandContext(ctx, helper, args...).CombinedOutput()
	if err == nil {
		return nil
	}
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
			return died(helper, status.Signal()) // by Ctrl-C, for example: it has not refused
		}
	}
	e := as(ErrNoIDs, "map "+described(mappings)+" by", helper, err)
	if said := strings.TrimSpace(string(output)); said != "" {
		e.Err = fmt.Errorf("%w: %s", err, said)
	}
	e.Advice = "they must be this user's in " + allowed
	if errors.Is(err, exec.ErrNotFound) {
		e.Advice = "install it (package uidmap; shadow-utils on Fedora and RHEL, shadow-uidmap on Alpine), or map only your own id"
	}
	return e
}

func described(mappings []host.IDMapping) string {
	var ranges []string
	for _, m := range mappings {
		ranges = append(ranges, fmt.Sprintf("%d-%d", m.HostID, uint64(m.HostID)+uint64(m.Size)-1))
	}
	return "the ids " + strings.Join(ranges, ", ")
}

func id(n uint32) string { return strconv.FormatUint(uint64(n), 10) }

func mapLines(mappings []host.IDMapping) string {
	var lines strings.Builder
	for _, m := range mappings {
		fmt.Fprintf(&lines, "%d %d %d\n", m.ContainerID, m.HostID, m.Size)
	}
	return lines.String()
}

// writeProc writes a file of a process in one write(2), as its maps need.
func writeProc(pid int, name, content string) error {
	file, err := os.OpenFile(fmt.Sprintf("/proc/%d/%s", pid, name), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = file.WriteString(content)
	return errors.Join(err, file.Close())
}
