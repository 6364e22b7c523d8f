package host

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
)

// Config configures the host's mounter. The zero value is for a node.
type Config struct {
	// Via forces system calls or mount(8); its zero value chooses.
	Via Via
	// Resolver resolves the names of file servers if no helper does; nil means
	// [net.DefaultResolver].
	Resolver Resolver
	// Logger gets a debug line for every mount and unmount, sensitive options masked. It
	// gets a line of level Info with the version for every NFS mount made without helper,
	// and a warning if an unmount may have lost data. nil logs nothing.
	Logger *slog.Logger
	// MountCommand is the mount(8) program for mounts that system calls cannot make;
	// empty means "mount", searched in PATH.
	MountCommand string
	// HelperDirs are the directories in which mount(8) searches mount.<type>; nil means
	// its built-in list. They are used to explain failures.
	HelperDirs []string
	// FilesystemsFile lists the kernel's file systems; empty means /proc/filesystems. It
	// is used to explain failures.
	FilesystemsFile string
	// ModulesDir is the directory of the running kernel's modules; empty means
	// /lib/modules/<release>. It is used to explain failures.
	ModulesDir string
	// OSReleaseFile names the node's distribution (os-release(5)); empty means
	// /etc/os-release, or else /usr/lib/os-release. It is used to explain
	// failures.
	OSReleaseFile string
	// SystemdDir is a directory that exists if systemd runs the host; empty means
	// /run/systemd/system (sd_booted(3)). Then a helper that leaves a daemon behind runs
	// in a scope of its own.
	SystemdDir string
}

// Via is the way a mount is made.
type Via int

// The ways.
const (
	// ViaBest uses system calls if the kernel can make the mount alone. It uses
	// mount(8) for types with a helper, such as FUSE, for NFS with Kerberos, and
	// for options that mount(8) itself carries out. [Mounter] has the full
	// list.
	ViaBest Via = iota
	// ViaSystemCalls starts no process. A mount that needs one is refused before
	// anything is changed ([mount.ErrNeedsCommand]).
	ViaSystemCalls
	// ViaCommand runs mount(8) for everything, as mount-utils does.
	ViaCommand
)

func (v Via) String() string {
	switch v {
	case ViaBest:
		return "best"
	case ViaSystemCalls:
		return "system calls"
	case ViaCommand:
		return "command"
	}
	return fmt.Sprintf("Via(%d)", int(v))
}

// Resolver looks up host names; [net.Resolver] is one. It must be safe for
// concurrent use.
type Resolver interface {
	// LookupNetIP returns the addresses of host, best first; network is "ip",
	// "ip4" or "ip6".
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}
