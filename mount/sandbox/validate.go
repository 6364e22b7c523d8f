package sandbox

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/podvol/podvol/mount"
)

// validate finds what contradicts itself before anything is begun.
func (c *Config) validate() error {
	if len(c.Args) == 0 || c.Args[0] == "" {
		return as(ErrConfig, "read Args", "", errors.New("there is no program"))
	}
	if err := checkCapabilities(c.Capabilities); err != nil {
		return as(ErrConfig, "read Capabilities", "", err)
	}
	if c.Dir != "" && !path.IsAbs(c.Dir) {
		return as(ErrConfig, "read Dir", c.Dir, errors.New("it is not absolute"))
	}
	if err := c.validateIDs(); err != nil {
		return err
	}
	for _, m := range c.Mounts {
		if err := m.validate(c.UserNamespace != nil); err != nil {
			return err.of(m)
		}
	}
	return nil
}

func (c *Config) validateIDs() error {
	ns := c.UserNamespace
	if ns == nil {
		return nil
	}
	if len(ns.UIDMappings) == 0 || len(ns.GIDMappings) == 0 {
		return as(ErrConfig, "read UserNamespace", "", errors.New("it maps no user or no group"))
	}
	if c.Credential == nil {
		return nil
	}
	if !isMapped(ns.UIDMappings, c.Credential.UID) {
		return as(ErrNoIDs, "read Credential", "", fmt.Errorf("user %d is not mapped", c.Credential.UID))
	}
	for _, gid := range append([]uint32{c.Credential.GID}, c.Credential.Groups...) {
		if !isMapped(ns.GIDMappings, gid) {
			return as(ErrNoIDs, "read Credential", "", fmt.Errorf("group %d is not mapped", gid))
		}
	}
	return nil
}

func (m Mount) validate(inUserNamespace bool) *Error {
	switch {
	case !path.IsAbs(m.Destination) || path.Clean(m.Destination) != m.Destination || strings.ContainsRune(m.Destination, 0):
		return as(ErrConfig, "read the destination", "", errors.New("it is not absolute and clean"))
	case m.Destination == "/":
		return as(ErrConfig, "read the destination", "", errors.New("it is the root: that is what Root is for"))
	case m.Source == "":
		return as(ErrConfig, "read the source", "", errors.New("there is none"))
	case !slices.Contains([]mount.Propagation{"", mount.PropagationPrivate, mount.PropagationSlave, mount.PropagationShared}, m.Propagation):
		return as(ErrConfig, "read the propagation", "", fmt.Errorf("%q is none", m.Propagation))
	case m.Propagation == mount.PropagationShared && inUserNamespace:
		err := as(ErrNotShared, "set the propagation", "", errors.New("the mounts of a new user namespace are never peers of the host's"))
		err.Advice = "run it without a user namespace, or ask for HostToContainer (rslave)"
		return err
	case (len(m.UIDMappings) > 0) != (len(m.GIDMappings) > 0):
		return as(ErrConfig, "read the mappings", "", errors.New("users and groups are mapped together or not at all"))
	}
	return nil
}

// of says which mount an error is about.
func (e *Error) of(m Mount) *Error {
	e.Volume, e.Destination = m.Volume, m.Destination
	return e
}
