package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"os/user"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/sandbox"
	"github.com/podvol/podvol/util/userns"
)

// again are the flags by which podvol tells itself that it is in a user
// namespace that it has made.
type again struct {
	inside bool
	// missingIDs says what to do where an id is missing there.
	missingIDs string
}

const (
	insideFlag     = "inside"
	missingIDsFlag = "missing-ids"
)

func (a *again) add(flags *pflag.FlagSet) {
	flags.BoolVar(&a.inside, insideFlag, false, "")
	flags.StringVar(&a.missingIDs, missingIDsFlag, "", "")
	_ = flags.MarkHidden(insideFlag)
	_ = flags.MarkHidden(missingIDsFlag)
}

// becomeMounter makes sure that volumes can be mounted. Whoever may not, is
// started again in a user namespace; then it returns false, and how that ended:
// nil, or an *exitError. args are the arguments for that.
func becomeMounter(ctx context.Context, s streams, a again, args func() []string) (bool, error) {
	err := mayMount()
	switch {
	case a.inside && err != nil:
		// The namespace was made, and gives no rights in it.
		return false, userns.Explain(os.DirFS("/proc/sys"), err)
	case a.inside:
		return shareMounts()
	case errors.Is(err, errMayNotMount):
		return false, runInUserNamespace(ctx, s, args)
	}
	return err == nil, err
}

// shareMounts makes propagation work as on most machines. On a machine itself it
// would change that for everybody.
func shareMounts() (bool, error) {
	ids, err := userns.UIDs()
	if err != nil {
		return false, err
	}
	if ids.Has(math.MaxUint32 - 1) { // the last of all, which nobody can hand on
		return false, usagef("--%s is for podvol itself, in a user namespace that it has made; leave it out", insideFlag)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""); err != nil {
		return false, userns.Explain(os.DirFS("/proc/sys"), fmt.Errorf("share the mounts of the new namespace: %w", err))
	}
	return true, nil
}

// runInUserNamespace starts podvol again in a user namespace, with all ids that
// this user may map, or if that fails with its own alone.
func runInUserNamespace(ctx context.Context, s streams, args func() []string) error {
	signals := takeSignals()
	defer signals.stop()
	start := func(ids *sandbox.UserNamespace, missing string) error {
		return startAgain(ctx, s, signals, ids, append([]string{args()[0], "--" + insideFlag, "--" + missingIDsFlag, missing}, args()[1:]...))
	}
	ids, why := ownRanges()
	if ids != nil {
		err := start(ids, why)
		if !errors.Is(err, sandbox.ErrNoIDs) || wasKilled(err) {
			return err
		}
		why = fmt.Sprintf("newuidmap and newgidmap cannot map more (%v); mend that, or run as root", err)
	}
	return start(singleID(), why)
}

// wasKilled reports whether a helper did not refuse but was ended by somebody,
// who then wants no second attempt either.
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
func startAgain(ctx context.Context, s streams, signals *signals, ids *sandbox.UserNamespace, args []string) error {
	dir, err := os.Getwd()
	if err != nil {
		return fmt.Errorf("finding out the working directory: %w", err)
	}
	code, err := signals.run(ctx, sandbox.Config{
		Args: append([]string{executable()}, args...), Env: os.Environ(), Dir: dir,
		Stdin: s.in, Stdout: asGiven(s.out), Stderr: asGiven(s.err),
		UserNamespace: ids,
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
