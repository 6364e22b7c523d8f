package sandbox

import (
	"io"
	"os"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/host"
)

// Mount is one mount of the container.
type Mount struct {
	// Volume is a name for error messages; it may be empty.
	Volume string
	// Source is the path on the host that is bound, with the mounts below it. Links
	// in it are followed: the caller must trust it.
	Source string
	// Destination is absolute and clean, in the container.
	Destination string
	// ReadOnly makes the mount read-only, but not those below it;
	// RecursiveReadOnly makes those read-only as well.
	ReadOnly, RecursiveReadOnly bool
	// NoExec, NoSUID and NoDev give the mount the flag of that name, which those
	// below it keep as they have it.
	NoExec, NoSUID, NoDev bool
	// Propagation may be empty, which is [mount.PropagationPrivate].
	Propagation mount.Propagation
	// File says that Source is no directory: where the mount point is missing it
	// is a file. A Source of the other kind is an error.
	File bool
	// UIDMappings and GIDMappings, where there are any, show the files with
	// other owners ([host.IDMapping]): an idmapped mount, or an error.
	UIDMappings, GIDMappings []host.IDMapping
}

// Credential are the ids of the program, in the user namespace where there is
// one.
type Credential struct {
	UID, GID uint32
	// Groups are all its supplementary groups; with KeepGroups they are
	// ignored, and the caller's are kept.
	Groups     []uint32
	KeepGroups bool
}

// UserNamespace is a new user namespace for the program. ContainerIDs are the ids
// inside it. Without CAP_SETUID the caller may only map its own single id; any
// other mapping is made by newuidmap(1) and newgidmap(1).
type UserNamespace struct {
	UIDMappings, GIDMappings []host.IDMapping
}

// Config is the program and its view. It is not changed. Once the program has
// begun, only Signals and the streams are kept.
type Config struct {
	// Args is the program and its arguments, at least the former. Without a
	// slash in it the program is looked up in the PATH of Env, in the root that
	// it will have.
	Args []string
	// Env is its whole environment, as "NAME=value".
	Env []string
	// Dir is its working directory, in its root; empty means "/".
	Dir string
	// Stdin, Stdout and Stderr are as in [os/exec.Cmd]: nil is /dev/null, and an
	// *os.File is passed on as it is. Output to another Writer is lost more than
	// five seconds after the program's end.
	Stdin          io.Reader
	Stdout, Stderr io.Writer

	// Root is a directory of the machine that becomes the program's root;
	// empty: the machine's own root.
	Root string
	// Mounts are applied in this order: one that lies in another comes after it.
	Mounts []Mount

	// UserNamespace, where it is not nil, gives the program a user namespace of
	// its own, which an ordinary user needs to mount anything.
	UserNamespace *UserNamespace
	// PIDNamespace gives it process ids of its own and a /proc that shows only
	// them. It is process 1 there: signals that it has no handler for are
	// ignored, and when it ends, all that it has started ends.
	PIDNamespace bool

	// Credential nil means the caller's ids, or root's in a new user namespace.
	Credential *Credential
	// Capabilities, if not nil, are the only ones the program can ever have:
	// names as "CAP_CHOWN" or "CHOWN". For another user than root they are made
	// ambient, so that it has them. Nil leaves what the ids entail.
	Capabilities []string
	// NoNewPrivileges sets no_new_privs (prctl(2)).
	NoNewPrivileges bool

	// Signals that arrive here are sent to the program. Before it has begun SIGINT,
	// SIGTERM, SIGHUP and SIGQUIT end the launch, and others wait. A terminal's
	// signals (Ctrl-C) reach it by themselves: it stays in the caller's process
	// group.
	Signals <-chan os.Signal
}
