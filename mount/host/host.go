package host

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	k8smount "k8s.io/mount-utils"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/internal/ladder"
	"github.com/podvol/podvol/mount/internal/mountapi"
	"github.com/podvol/podvol/mount/internal/mountopt"
	"github.com/podvol/podvol/mount/internal/mounttable"
	"github.com/podvol/podvol/mount/internal/statmount"
	"github.com/podvol/podvol/util/blockingcall"
	"github.com/podvol/podvol/util/eintr"
	"github.com/podvol/podvol/util/retry"
)

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
// in a scope of its own, which outlives this process's scope. No other mount does.
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

// calls are the system calls of unmounting, so that tests can let them hang.
type calls interface {
	unmount(target string, flags int) error
	ask(target string) error
}

type hostCalls struct{}

// unmount is umount2(2), repeated while the mount is busy: a process that this
// one is just starting holds copies of all its descriptors from fork(2) until
// execve(2) closes them. That is waited for, and a fifth of a second more, since
// execve closes them as it ends.
func (hostCalls) unmount(target string, flags int) error {
	const first = 100 * time.Microsecond
	pause := retry.Pause{First: first, Last: time.Second}
	for {
		err := eintr.Do(func() error { return unix.Unmount(target, flags) })
		if !errors.Is(err, unix.EBUSY) || pause.Due() > 200*time.Millisecond {
			return err
		}
		if pause.Due() == first {
			awaitForks()
		}
		time.Sleep(pause.Next())
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
	m.config.Logger.DebugContext(ctx, "mount", "request", r.String(), "took", time.Since(start), "error", err)
	return err
}

func (m *Mounter) tryMount(ctx context.Context, r mount.Request, how runner) error {
	if err := r.Check(); err != nil {
		return r.NotBegun(err)
	}
	if ctx.Err() != nil {
		return r.NotBegun(ladder.Ended(ctx)) // nothing was begun: certain
	}
	options := mountopt.Parse(slices.Concat(r.Options, r.Sensitive)...)
	native, err := m.choose(ctx, r, options, how.flags)
	if err != nil {
		return r.NotBegun(err)
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

// Mount implements [mount.Interface]; it waits without limit.
func (m *Mounter) Mount(source, target, fstype string, options []string) error {
	return m.MountSensitive(source, target, fstype, options, nil)
}

// MountSensitive implements [mount.Interface]; it waits without limit.
func (m *Mounter) MountSensitive(source, target, fstype string, options, sensitive []string) error {
	return m.MountContext(context.Background(), mount.Request{Source: source, Target: target, FSType: fstype, Options: options, Sensitive: sensitive})
}

// MountSensitiveWithoutSystemd implements [mount.Interface]; it waits without
// limit and starts no systemd scope.
func (m *Mounter) MountSensitiveWithoutSystemd(source, target, fstype string, options, sensitive []string) error {
	return m.MountSensitiveWithoutSystemdWithMountFlags(source, target, fstype, options, sensitive, nil)
}

// MountSensitiveWithoutSystemdWithMountFlags implements [mount.Interface]; flags
// are for mount(8), which then makes the mount, whatever its type, without a
// systemd scope.
func (m *Mounter) MountSensitiveWithoutSystemdWithMountFlags(source, target, fstype string, options, sensitive, flags []string) error {
	return m.mount(context.Background(), mount.Request{Source: source, Target: target, FSType: fstype, Options: options, Sensitive: sensitive}, runner{flags: flags, noScope: true})
}

// Unmount implements [mount.Interface]: the normal rung, without limit of time.
func (m *Mounter) Unmount(target string) error {
	_, err := m.UnmountContext(context.Background(), target, mount.UnmountOptions{})
	return err
}

// UnmountWithForce implements mount-utils' MounterForceUnmounter: the normal rung, and
// after timeout the forced one, as with [mount.UnmountOptions].ForceAfter. There is no further
// limit of time. A timeout of 0 or less counts as a millisecond.
func (m *Mounter) UnmountWithForce(target string, timeout time.Duration) error {
	_, err := m.UnmountContext(context.Background(), target, mount.UnmountOptions{ForceAfter: max(timeout, time.Millisecond)})
	return err
}

// CanSafelySkipMountPointCheck implements [mount.Interface]. It is false, because unmounting a
// path without a mount is an error here ([mount.ErrNotMounted]).
func (*Mounter) CanSafelySkipMountPointCheck() bool { return false }

var (
	_ mount.ContextMounter           = (*Mounter)(nil)
	_ k8smount.MounterForceUnmounter = (*Mounter)(nil)
)
