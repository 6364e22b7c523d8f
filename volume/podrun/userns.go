package podrun

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"strconv"
	"syscall"

	"github.com/podvol/podvol/mount/host"
	"github.com/podvol/podvol/mount/sandbox"
	"github.com/podvol/podvol/util/userns"
)

// RunInUserNamespace runs a program in a user namespace.
//
//   - The namespace has all ids that this user may map, or if that fails the
//     user's own ids alone.
//   - config returns the configuration without UserNamespace. missing says why
//     there are no more ids, and what to do.
//   - The exit code is as of [Signals.Run].
//   - If no user namespace is available, the error is [sandbox.ErrNoIDs],
//     [sandbox.ErrNoNamespace] or [sandbox.ErrNotPermitted].
func (s *Signals) RunInUserNamespace(ctx context.Context, config func(missing string) sandbox.Config) (code int, err error) {
	start := func(ids *sandbox.UserNamespace, missing string) (int, error) {
		c := config(missing)
		c.UserNamespace = ids
		return s.Run(ctx, c)
	}
	ids, why := ownRanges()
	if ids != nil {
		code, err := start(ids, why)
		if !errors.Is(err, sandbox.ErrNoIDs) || wasKilled(err) {
			return explained(code, err)
		}
		why = fmt.Sprintf("newuidmap and newgidmap cannot map more (%v); mend that, or run as root", err)
	}
	return explained(start(singleID(), why))
}

// explained adds where a user namespace is denied.
func explained(code int, err error) (int, error) {
	switch {
	case errors.Is(err, sandbox.ErrNoIDs):
		return ExitFailed, err
	case errors.Is(err, sandbox.ErrNoNamespace), errors.Is(err, sandbox.ErrNotPermitted):
		return ExitFailed, userns.Explain(os.DirFS("/proc/sys"), err)
	}
	return code, err
}

// wasKilled reports whether a signal ended a helper. The helper did not refuse,
// and a second attempt is not wanted either.
func wasKilled(err error) bool {
	helper, ok := errors.AsType[*exec.ExitError](err)
	if !ok {
		return false
	}
	status, ok := helper.Sys().(syscall.WaitStatus)
	return ok && status.Signaled()
}

func singleID() *sandbox.UserNamespace {
	return &sandbox.UserNamespace{
		UIDMappings: []host.IDMapping{{ContainerID: 0, HostID: uint32(os.Geteuid()), Size: 1}},
		GIDMappings: []host.IDMapping{{ContainerID: 0, HostID: uint32(os.Getegid()), Size: 1}},
	}
}

// ownRanges returns the mapping with all ids of this user, or nil. why says what
// to do for more.
func ownRanges() (ids *sandbox.UserNamespace, why string) {
	name := "UID-" + strconv.Itoa(os.Geteuid())
	who := []string{strconv.Itoa(os.Geteuid())}
	if u, err := user.Current(); err == nil {
		name = u.Username
		who = append(who, u.Username)
	}
	give := fmt.Sprintf("give the user a range in /etc/subuid and /etc/subgid that no other user has (as root, for example: usermod --add-subuids 100000-165535 --add-subgids 100000-165535 %s), or run as root", name)
	for _, helper := range []string{"newuidmap", "newgidmap"} {
		if _, err := exec.LookPath(helper); err != nil {
			return nil, "install " + helper + " (package uidmap on Debian and Ubuntu, shadow-utils on Fedora and RHEL, shadow on Arch and SUSE, shadow-uidmap on Alpine) and " + give
		}
	}
	users, err := subordinate("/etc/subuid", os.Geteuid(), who)
	if err != nil || len(users) < 2 {
		return nil, give
	}
	groups, err := subordinate("/etc/subgid", os.Getegid(), who)
	if err != nil || len(groups) < 2 {
		return nil, give
	}
	return &sandbox.UserNamespace{UIDMappings: users, GIDMappings: groups},
		fmt.Sprintf("the ranges of user %s in /etc/subuid and /etc/subgid have fewer ids; widen them, or run as root", name)
}

func subordinate(path string, own int, who []string) (mappings []host.IDMapping, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	ids, err := userns.Subordinate(f, uint32(own), who...)
	for _, r := range ids {
		mappings = append(mappings, host.IDMapping{ContainerID: r.Inside, HostID: r.Outside, Size: r.Size})
	}
	return mappings, err
}
