package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/sandbox"
	"github.com/podvol/podvol/util/userns"
)

// insideFlag tells podvol that it started itself again in a user namespace.
// Its value says what to do where an id is missing there.
const insideFlag = "inside"

// becomeMounter makes sure that volumes can be mounted. Whoever may not, is
// started again in a user namespace; then it returns false, and how that ended:
// nil, or an *exitError. again are the arguments for that.
func becomeMounter(ctx context.Context, s streams, inside string, again func(inside string) []string) (bool, error) {
	err := mayMount()
	switch {
	case inside != "" && err != nil:
		// The namespace was made, and gives no rights in it.
		return false, userns.Explain(os.DirFS("/proc/sys"), err)
	case inside != "":
		// As on most machines, so that propagation works as there.
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""); err != nil {
			return false, userns.Explain(os.DirFS("/proc/sys"), fmt.Errorf("share the mounts of the new namespace: %w", err))
		}
		return true, nil
	case errors.Is(err, errMayNotMount):
		return false, runInUserNamespace(ctx, s, again)
	}
	return err == nil, err
}

// runInUserNamespace starts podvol again in a user namespace, with all ids that
// this user may map, or if that fails with its own alone.
func runInUserNamespace(ctx context.Context, s streams, again func(inside string) []string) error {
	ids, why := ownRanges()
	if ids != nil {
		err := startAgain(ctx, s, ids, again(why))
		if !errors.Is(err, sandbox.ErrNoIDs) {
			return err
		}
		why = fmt.Sprintf("newuidmap and newgidmap cannot map more (%v); mend that, or run as root", err)
	}
	return startAgain(ctx, s, singleID(), again(why))
}

func singleID() *sandbox.UserNamespace {
	return &sandbox.UserNamespace{
		UIDMappings: []mount.IDMapping{{ContainerID: 0, HostID: uint32(os.Geteuid()), Size: 1}},
		GIDMappings: []mount.IDMapping{{ContainerID: 0, HostID: uint32(os.Getegid()), Size: 1}},
	}
}

// ownRanges returns the mapping with all ids that this user was given, or nil;
// why says what has to be done for more.
func ownRanges() (ids *sandbox.UserNamespace, why string) {
	name := "UID-" + strconv.Itoa(os.Geteuid())
	who := []string{strconv.Itoa(os.Geteuid())}
	if u, err := user.Current(); err == nil {
		name = u.Username
		who = append(who, u.Username)
	}
	give := fmt.Sprintf("give the user a range in /etc/subuid and /etc/subgid that nobody else has (as root, for example: usermod --add-subuids 100000-165535 --add-subgids 100000-165535 %s), or run as root", name)
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

func subordinate(path string, own int, who []string) (mappings []mount.IDMapping, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	ids, err := userns.Subordinate(f, uint32(own), who...)
	for _, r := range ids {
		mappings = append(mappings, mount.IDMapping{ContainerID: r.Inside, HostID: r.Outside, Size: r.Size})
	}
	return mappings, err
}

// startAgain runs podvol in a user namespace to its end. The error is an
// *exitError for every exit code but 0, and has been printed there.
func startAgain(ctx context.Context, s streams, ids *sandbox.UserNamespace, args []string) error {
	dir, err := os.Getwd()
	if err != nil {
		return fmt.Errorf("finding out the working directory: %w", err)
	}
	signals := takeSignals()
	defer signals.stop()
	forwarded, done := signals.forwarded()
	defer done()
	code, err := sandbox.Run(context.WithoutCancel(ctx), sandbox.Config{
		Args: append([]string{executable()}, args...), Env: os.Environ(), Dir: dir,
		Stdin: s.in, Stdout: s.out, Stderr: s.err,
		UserNamespace: ids, Signals: forwarded,
	})
	switch {
	case errors.Is(err, sandbox.ErrNoIDs):
		return err
	case errors.Is(err, sandbox.ErrNoNamespace), errors.Is(err, sandbox.ErrNotPermitted):
		return userns.Explain(os.DirFS("/proc/sys"), err)
	case err != nil || code != 0:
		return &exitError{code, err}
	}
	return nil
}

// executable is the path of this program.
func executable() string {
	path, err := os.Executable()
	if err != nil {
		return os.Args[0]
	}
	return strings.TrimSuffix(path, " (deleted)")
}
