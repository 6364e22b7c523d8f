package host

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/internal/failure"
	"github.com/podvol/podvol/mount/internal/fstypes"
	"github.com/podvol/podvol/mount/internal/ladder"
	"github.com/podvol/podvol/mount/internal/mountapi"
	"github.com/podvol/podvol/mount/internal/mountopt"
	"github.com/podvol/podvol/mount/internal/mounttable"
	"github.com/podvol/podvol/mount/internal/nfs"
	"github.com/podvol/podvol/mount/internal/statmount"
	"github.com/podvol/podvol/util/blockingcall"
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
	// CgroupDir is where cgroups of version 2 are mounted; empty means /sys/fs/cgroup, or
	// else /sys/fs/cgroup/unified. Without systemd such a helper runs in the cgroup
	// podvol.mounts there, if that can be made.
	CgroupDir string
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

// New returns the mounter of this host. It does no I/O. Each mount finds the kernel's
// features anew, so that a module loaded later is used.
func New(c Config) *Mounter {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.MountCommand == "" {
		c.MountCommand = "mount"
	}
	index := mounttable.New(statmount.Host{})
	return &Mounter{config: c, sys: hostCalls{}, api: mountapi.Kernel{}, graces: usualGraces(), index: index, table: index}
}

// Mounter mounts on this host, in the mount namespace of the process. It answers
// questions from the kernel's mount table. It implements [mount.ContextMounter] and is safe for
// concurrent use.
//
// [Config].Via may force one of the two ways:
//
//   - By system calls: bind mounts, remounts, changes of propagation, NFS, Ceph by a key and
//     the addresses of its monitors, and every type that the kernel has and no helper is
//     installed for: tmpfs, hugetlbfs, proc, overlay, ext4, xfs, btrfs and so on.
//   - By mount(8): types with a helper (FUSE, cifs, other mounts of ceph, glusterfs, any type of
//     which mount.<type> is in [Config].HelperDirs), NFS with Kerberos, a type that must be
//     detected, images in a file, and the options that mount(8) itself carries out (loop,
//     X-mount.*, user …).
//
// A file system is made with fsopen, fsconfig and fsmount, a bind mount with open_tree
// (Linux 5.2). It gets all its options out of sight, by mount_setattr (5.12). At last
// move_mount attaches it. In these cases mount(2) is used: the kernel lacks one of these
// calls, a filter of system calls denies it, or an option does not fit into fsconfig
// (longer than 255 bytes, a comma within). The result is the same, but the mount may be
// seen before its options are complete, and is undone if they fail.
//
// NFS by system calls takes the options of nfs(5):
//
//   - Without a version, 4.2, 4.1, 4.0 and 3 are tried in turn, as mount.nfs does. The
//     log and the mount table's "vers" have the result.
//   - The server is probed first, because the kernel does not heed ctx.
//   - NFSv3 without "nolock" or "local_lock=all" needs an rpc.statd that answers on this
//     node ([mount.ErrNoLockDaemon]).
//   - Nothing is retried unless "retry=" says so. "bg" means "fg": a mount has its result
//     when the call returns.
//   - "ro" holds for this mount. The file system, which other mounts share, stays
//     writable.
//
// Other options:
//
//   - All of mount(8)'s file-system-independent options are supported, including those of
//     version 2.39. "ro=recursive" and "nosuid=recursive" hold for all mounts below as
//     well, "ro=vfs" for the mount alone, "ro=fs" for its file system alone.
//   - Words for fstab and systemd (x-*, _netdev, nofail …) have no effect. /etc/fstab is
//     not read.
//   - All other options are the file system's.
//   - Of options that exclude each other the last wins. A remount keeps the options that
//     it does not mention.
//   - A write-protected device is mounted read-only on request only, not silently as
//     mount(8) does. An image in a file gets its loop device from mount(8).
//
// The target is opened once without following a link at its end, and mounted on by
// descriptor. So a link that replaces it meanwhile has no effect. A target that is a link
// is refused ([mount.ErrTargetIsLink]), and so is one that was replaced meanwhile
// ([mount.ErrTargetReplaced]). Mounts by mount(8) make the same check, but mount(8) looks the
// path up again; a mount that it made elsewhere is undone.
//
// A bind mount keeps the flags of its source (nosuid, nodev, noexec, ro, atime) unless an
// option says otherwise. Without "=recursive" options apply to the top mount of an rbind
// only. Flags that the namespace of the source keeps locked (mount_namespaces(7)) cannot
// be removed: [mount.ErrNotPermitted], with the flag in [mount.Error].Option.
//
// If systemd runs the host, a helper that leaves a daemon behind (FUSE, glusterfs) runs
// in a scope of its own, which outlives this process's scope. Otherwise it runs in a cgroup
// at the top of the hierarchy, where this process may make one: it outlives this process's
// cgroup. No other mount does either.
type Mounter struct {
	config Config
	calls  blockingcall.Group[callKey]
	sys    calls
	api    mountapi.Calls
	force  ladder.Forcing
	turns  turns
	graces graces
	index  *mounttable.Table
	table  mount.Table // index, but in tests
}

// callKey names the calls of which at most one is outstanding. Mounting and
// normal unmounting exclude each other; the higher rungs have keys of their
// own, so that they can pass a hung normal unmount, and turns beside.
type callKey struct {
	target string
	rung   mount.Rung
}

func mountKey(target string) callKey { return callKey{filepath.Clean(target), mount.RungNormal} }

// MountContext implements [mount.ContextMounter].
//
//   - A mount by system calls is prepared out of sight and takes effect by one call. ctx
//     is checked before that call. If ctx ends earlier, the mount never appears, and the
//     error is not Uncertain, even if a call hangs.
//   - It is Uncertain only while the last call itself is under way. With mount(2) alone
//     that is the whole mount.
//   - A running mount(8) is killed with its process group. The error is Uncertain unless
//     all its processes have ended and the mount table shows nothing new.
//
// With a context that never ends (context.Background) a mount by system calls costs no
// goroutine. mount(8) has one for its output in any case.
func (m *Mounter) MountContext(ctx context.Context, request mount.Request) error {
	return m.mount(ctx, request, runner{})
}

// mount carries out a request; flags for mount(8) force its use.
func (m *Mounter) mount(ctx context.Context, r mount.Request, how runner) error {
	start := time.Now()
	err := m.config.withFacts(m.tryMount(ctx, r, how))
	if log := m.config.Logger; log.Enabled(ctx, slog.LevelDebug) {
		log.DebugContext(ctx, "mount", "request", r.String(), "took", time.Since(start), "error", err)
	}
	return err
}

func (m *Mounter) tryMount(ctx context.Context, r mount.Request, how runner) error {
	if err := r.Check(); err != nil {
		return r.NotBegun(err)
	}
	if ctx.Err() != nil {
		return r.NotBegun(ladder.Ended(ctx)) // nothing was begun: certain
	}
	options := mountopt.Parse(r.Options...)
	options.Add(r.Sensitive...)
	native, err := m.choose(ctx, r, options, how.flags)
	if err != nil {
		return r.NotBegun(err)
	}
	if !native {
		return m.mountByCommand(ctx, r, how)
	}
	err = m.mountNative(ctx, r, options, nil)
	if m.config.Via == ViaBest && errors.Is(err, unix.ENOTBLK) && isImage(r.Source) {
		return m.mountByCommand(ctx, r, how) // it finds a loop device for it
	}
	return err
}

// choose decides between system calls and mount(8) for a request, or refuses it.
// A remount without a type takes the mount's.
func (m *Mounter) choose(ctx context.Context, r mount.Request, o mountopt.Options, flags []string) (native bool, err error) {
	if m.config.Via == ViaCommand {
		return false, nil
	}
	if o.Remount && !o.Bind && r.FSType == "" {
		if r.FSType, err = m.typeAt(ctx, r.Target); err != nil {
			return false, err
		}
	}
	why := m.config.needsCommand(r, o, flags)
	if why != "" && m.config.Via == ViaSystemCalls {
		return false, failure.Of(mount.ErrNeedsCommand, errors.New(why))
	}
	return why == "", nil
}

// typeAt returns the type of the mount at target, or none if there is no mount.
func (m *Mounter) typeAt(ctx context.Context, target string) (string, error) {
	fstypes := make(chan string, 1)
	err := m.calls.Do(ctx, callKey{target, mount.RungNone}, func() error {
		e, _, err := m.table.At(target)
		fstypes <- e.FSType
		return err
	})
	if err != nil {
		return "", err
	}
	return <-fstypes, nil
}

// needsCommand says why a request needs mount(8), or nothing where the kernel
// can carry it out alone.
func (c Config) needsCommand(r mount.Request, o mountopt.Options, flags []string) string {
	switch {
	case len(flags) > 0:
		return "flags of mount(8) were given"
	case len(o.Command) > 0:
		name, _, _ := strings.Cut(o.Command[0], "=")
		return fmt.Sprintf("the option %s is one that mount(8) carries out", name)
	case o.OnlyPropagation(r.FSType, r.Source, r.Target), o.Bind:
		return ""
	}
	return c.typeNeedsCommand(r, o)
}

func (c Config) typeNeedsCommand(r mount.Request, o mountopt.Options) string {
	switch {
	case r.FSType == "" && o.Remount:
		return "" // the mount table knows the type
	case r.FSType == "", r.FSType == "auto", r.FSType == "none", strings.Contains(r.FSType, ","):
		return "no file system type was given, and the kernel does not find it out"
	case isTag(r.Source):
		return fmt.Sprintf("the source %s has to be searched for", r.Source)
	case fstypes.Family(r.FSType) == "nfs":
		reason, _ := nfs.NeedsHelper(o.Data)
		return reason
	case fstypes.Family(r.FSType) == "ceph":
		return cephNeedsHelper(r.Source, o.Data)
	case fstypes.WantsHelper(r.FSType):
		return fmt.Sprintf("%s is mounted by a helper program", r.FSType)
	case !isPseudo(r.FSType) && c.hasHelper(r.FSType):
		return fmt.Sprintf("this node has a helper for %s", r.FSType)
	}
	return ""
}

// isTag tells sources that mount(8) searches all devices for.
func isTag(source string) bool {
	name, _, ok := strings.Cut(source, "=")
	switch name {
	case "UUID", "LABEL", "PARTUUID", "PARTLABEL", "ID":
		return ok
	}
	return false
}

// isImage reports whether a source is the image of a disk in a file.
func isImage(source string) bool {
	info, err := os.Stat(source)
	return err == nil && info.Mode().IsRegular()
}

// isPseudo tells types that have no helper anywhere, so that it is not looked for.
func isPseudo(fstype string) bool {
	switch fstype {
	case "tmpfs", "ramfs", "hugetlbfs", "proc", "sysfs", "devtmpfs", "devpts", "mqueue", "cgroup", "cgroup2", "bpf", "debugfs", "tracefs", "securityfs":
		return true
	}
	return false
}
