package sandbox

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// settle gives the calling thread the ids and capabilities of the program. The
// order matters: each step needs what a later one gives up.
func (o *order) settle() *Error {
	set, err := setOf(o.Capabilities)
	if err != nil {
		return as(ErrConfig, "read Capabilities", "", err)
	}
	if o.LimitCapabilities {
		if err := set.bound(); err != nil {
			return failed("limit the capabilities", "", err)
		}
		// Else they would go with the user id.
		if err := unix.Prctl(unix.PR_SET_KEEPCAPS, 1, 0, 0, 0); err != nil {
			return failed("keep the capabilities", "", err)
		}
	}
	if o.Credential != nil {
		if err := o.Credential.take(); err != nil {
			return err
		}
	}
	if err := o.takeCapabilities(set); err != nil {
		return failed("set the capabilities", "", err)
	}
	if o.NoNewPrivileges {
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			return failed("set no_new_privs", "", err)
		}
	}
	return nil
}

func (o *order) takeCapabilities(set capabilitySet) error {
	ordinary := os.Geteuid() != 0
	switch {
	case o.LimitCapabilities:
		have, err := permitted()
		if err != nil {
			return err
		}
		return (set & have).take(ordinary)
	case ordinary && (o.NewUser || o.Credential != nil):
		return capabilitySet(0).take(false)
	case o.NewUser: // those that the child was started with
		return unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
	}
	return nil
}

// take changes the ids of the whole process.
func (c *Credential) take() *Error {
	if !c.KeepGroups {
		groups := make([]int, len(c.Groups))
		for i, g := range c.Groups {
			groups[i] = int(g)
		}
		if err := syscall.Setgroups(groups); err != nil {
			e := failed("set the groups", "", err)
			e.Advice = "in a user namespace of a single id groups can only be kept (KeepGroups)"
			return e
		}
	}
	return becomeIDs(c.UID, c.GID)
}

func becomeIDs(uid, gid uint32) *Error {
	if err := syscall.Setresgid(int(gid), int(gid), int(gid)); err != nil {
		return failed("set the group", "", err)
	}
	if err := syscall.Setresuid(int(uid), int(uid), int(uid)); err != nil {
		return failed("set the user", "", err)
	}
	return nil
}
