package mount

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	k8smount "k8s.io/mount-utils"

	"github.com/podvol/podvol/mount/internal/mountapi"
	"github.com/podvol/podvol/mount/internal/statmount"
	"github.com/podvol/podvol/util/blockingcall"
	"github.com/podvol/podvol/util/eintr"
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

// New returns the mounter of this host. It does no I/O. Each mount finds the kernel's
// features anew, so that a module loaded later is used.
func New(c Config) *HostMounter {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.MountCommand == "" {
		c.MountCommand = "mount"
	}
	index := newIndex(statmount.Host{})
	return &HostMounter{config: c, sys: hostCalls{}, api: mountapi.Kernel{}, graces: usualGraces(), index: index, table: index}
}

// HostMounter mounts on this host, in the mount namespace of the process. It answers
// questions from the kernel's mount table. It implements [ContextMounter] and is safe for
// concurrent use.
//
// [Config].Via may force one of the two ways:
//
//   - By system calls: bind mounts, remounts, changes of propagation, NFS, and every type
//     that the kernel has and no helper is installed for: tmpfs, hugetlbfs, proc,
//     overlay, ext4, xfs, btrfs and so on.
//   - By mount(8): types with a helper (FUSE, cifs, ceph, glusterfs, any type of which
//     mount.<type> is in [Config].HelperDirs), NFS with Kerberos, a type that must be
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
//     node ([ErrNoLockDaemon]).
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
// is refused ([ErrTargetIsLink]), and so is one that was replaced meanwhile
// ([ErrTargetReplaced]). Mounts by mount(8) make the same check, but mount(8) looks the
// path up again; a mount that it made elsewhere is undone.
//
// A bind mount keeps the flags of its source (nosuid, nodev, noexec, ro, atime) unless an
// option says otherwise. Without "=recursive" options apply to the top mount of an rbind
// only. Flags that the namespace of the source keeps locked (mount_namespaces(7)) cannot
// be removed: [ErrNotPermitted], with the flag in [Error].Option.
//
// If systemd runs the host, a helper that leaves a daemon behind (FUSE, glusterfs) runs
// in a scope of its own, which outlives this process's scope. No other mount does.
type HostMounter struct {
	config Config
	calls  blockingcall.Group[callKey]
	sys    calls
	api    mountapi.Calls
	force  forcing
	turns  turns
	graces graces
	index  *index
	table  Table // index, but in tests
}

// callKey names the calls of which at most one is outstanding. Mounting and
// normal unmounting exclude each other; the higher rungs have keys of their
// own, so that they can pass a hung normal unmount, and turns beside.
type callKey struct {
	target string
	rung   Rung
}

func mountKey(target string) callKey { return callKey{filepath.Clean(target), RungNormal} }

// calls are the system calls of unmounting, so that tests can let them hang.
type calls interface {
	unmount(target string, flags int) error
	ask(target string) error
}

type hostCalls struct{}

// unmount is umount2(2), repeated while the mount is busy: a process that this
// one is just starting holds copies of all its descriptors, those of a mount
// under way too, from fork(2) until execve(2) closes them. It is waited for, and
// then for a fifth of a second, since execve closes them as it ends.
func (hostCalls) unmount(target string, flags int) error {
	const first = 100 * time.Microsecond
	for pause := first; ; pause *= 2 {
		err := eintr.Do(func() error { return unix.Unmount(target, flags) })
		if !errors.Is(err, unix.EBUSY) || pause > 200*time.Millisecond {
			return err
		}
		if pause == first {
			awaitForks()
		}
		time.Sleep(pause)
	}
}

// awaitForks waits, for a second at most, for the processes that are being
// started to reach execve(2). It may hang there: their program's file system is
// any.
func awaitForks() {
	none := make(chan struct{})
	go func() {
		syscall.ForkLock.RLock() // held by package syscall from fork to execve
		close(none)
		syscall.ForkLock.RUnlock()
	}()
	limit := time.NewTimer(time.Second)
	defer limit.Stop()
	select {
	case <-none:
	case <-limit.C:
	}
}

// MountContext implements [ContextMounter].
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
func (m *HostMounter) MountContext(ctx context.Context, request Request) error {
	return m.mount(ctx, request, runner{})
}

// mount carries out a request; flags for mount(8) force its use.
func (m *HostMounter) mount(ctx context.Context, r Request, how runner) error {
	start := time.Now()
	err := m.config.withFacts(m.tryMount(ctx, r, how))
	m.config.Logger.DebugContext(ctx, "mount", "request", r.String(), "took", time.Since(start), "error", err)
	return err
}

func (m *HostMounter) tryMount(ctx context.Context, r Request, how runner) error {
	if err := r.check(); err != nil {
		return r.fail(err)
	}
	if ctx.Err() != nil {
		return r.fail(ended(ctx)) // nothing was begun: certain
	}
	options := parseOptions(slices.Concat(r.Options, r.Sensitive)...)
	native, err := m.choose(ctx, r, options, how.flags)
	if err != nil {
		return r.fail(err)
	}
	if !native {
		return m.mountByCommand(ctx, r, how)
	}
	err = m.mountNative(ctx, r, options)
	if m.config.Via == ViaBest && errors.Is(err, unix.ENOTBLK) && isImage(r.Source) {
		return m.mountByCommand(ctx, r, how) // it finds a loop device for it
	}
	return err
}

// ended is the error of a context that has ended, with a cause of the caller's
// own or not.
func ended(ctx context.Context) error {
	cause := ErrCanceled
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		cause = ErrTimedOut
	}
	return &causedError{cause, context.Cause(ctx)}
}

// check refuses what no mount can be made of.
func (r Request) check() error {
	switch {
	case r.Target == "":
		return &causedError{ErrNoTarget, errors.New("no mount point was given")}
	case !filepath.IsAbs(r.Target):
		return &causedError{ErrNoTarget, fmt.Errorf("the mount point %q is not an absolute path", r.Target)}
	case strings.ContainsRune(r.Target+r.Source+r.FSType, 0):
		return &causedError{ErrBadOption, errors.New("a NUL byte in source, mount point or type")}
	case strings.HasPrefix(r.FSType, "-"):
		return &causedError{ErrBadOption, fmt.Errorf("%q is no file system type", r.FSType)}
	}
	isPath := filepath.IsAbs(r.Source) && parseOptions(r.Options...).Bind // whatever its name is
	if r.Source != "" && !isPath {
		if err := CheckSource(r.Source); err != nil {
			return &causedError{ErrBadOption, err}
		}
	}
	return nil
}

// Mount implements [Interface]; it waits without limit.
func (m *HostMounter) Mount(source, target, fstype string, options []string) error {
	return m.MountSensitive(source, target, fstype, options, nil)
}

// MountSensitive implements [Interface]; it waits without limit.
func (m *HostMounter) MountSensitive(source, target, fstype string, options, sensitive []string) error {
	return m.MountContext(context.Background(), Request{Source: source, Target: target, FSType: fstype, Options: options, Sensitive: sensitive})
}

// MountSensitiveWithoutSystemd implements [Interface]; it waits without
// limit and starts no systemd scope.
func (m *HostMounter) MountSensitiveWithoutSystemd(source, target, fstype string, options, sensitive []string) error {
	return m.MountSensitiveWithoutSystemdWithMountFlags(source, target, fstype, options, sensitive, nil)
}

// MountSensitiveWithoutSystemdWithMountFlags implements [Interface]; flags are
// those of mount(8), which then makes the mount, whatever its type, and starts
// no systemd scope.
func (m *HostMounter) MountSensitiveWithoutSystemdWithMountFlags(source, target, fstype string, options, sensitive, flags []string) error {
	return m.mount(context.Background(), Request{Source: source, Target: target, FSType: fstype, Options: options, Sensitive: sensitive}, runner{flags: flags, noScope: true})
}

// Unmount implements [Interface]: the normal rung, without limit of time.
func (m *HostMounter) Unmount(target string) error {
	_, err := m.UnmountContext(context.Background(), target, UnmountOptions{})
	return err
}

// UnmountWithForce implements mount-utils' MounterForceUnmounter: the normal rung, and
// after timeout the forced one, as with [UnmountOptions].ForceAfter. There is no further
// limit of time. A timeout of 0 or less counts as a millisecond.
func (m *HostMounter) UnmountWithForce(target string, timeout time.Duration) error {
	_, err := m.UnmountContext(context.Background(), target, UnmountOptions{ForceAfter: max(timeout, time.Millisecond)})
	return err
}

// CanSafelySkipMountPointCheck implements [Interface]. It is false, because unmounting a
// path without a mount is an error here ([ErrNotMounted]).
func (*HostMounter) CanSafelySkipMountPointCheck() bool { return false }

var (
	_ ContextMounter                 = (*HostMounter)(nil)
	_ k8smount.MounterForceUnmounter = (*HostMounter)(nil)
)
