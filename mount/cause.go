package mount

// Cause is why a mount or unmount failed. Causes are errors and comparable:
// test for one with errors.Is.
type Cause string

// The causes. Behind each stand the errnos of the system calls and the words of
// the kernel, util-linux, nfs-utils and cifs-utils that lead to it.
const (
	// ErrUnknown: none of the others can be told from errno and output.
	ErrUnknown Cause = "unknown cause"
	// ErrHelperMissing: mount.<type> is not there, or mount(8) itself
	// ("you might need a /sbin/mount.<type> helper program", or its list of
	// possibilities on a node without the helper).
	ErrHelperMissing Cause = "the mount helper is not installed on this node"
	// ErrNoFilesystem: the running kernel has neither the type nor its module
	// (ENODEV of fsopen(2) and mount(2); "unknown filesystem type";
	// "NFSv4 is not compiled into kernel").
	ErrNoFilesystem Cause = "this kernel does not have the file system"
	// ErrNameResolution: no address for the server ("Failed to resolve
	// server", "could not resolve address", "Name or service not known").
	ErrNameResolution Cause = "the server's name does not resolve"
	// ErrConnectionRefused: ECONNREFUSED, ECONNRESET; "Connection refused".
	ErrConnectionRefused Cause = "the server refuses connections"
	// ErrTimedOut: ETIMEDOUT, EHOSTDOWN, EHOSTUNREACH, ENETUNREACH and words
	// for them; also a context whose deadline passed.
	ErrTimedOut Cause = "the server does not answer"
	// ErrAccessDenied: the server said no: EACCES and ENOKEY of a network file
	// system, "access denied by server", mount.cifs's error 13.
	ErrAccessDenied Cause = "access denied by the server"
	// ErrNoSuchExport: ENOENT of a network file system, "reason given by
	// server: No such file or directory", mount.cifs's errors 2 and 6.
	ErrNoSuchExport Cause = "the server has no such export"
	// ErrVersionUnsupported: EPROTONOSUPPORT, EPROTO, EOPNOTSUPP of a network
	// file system; "requested NFS version or transport protocol is not
	// supported"; an SMB dialect that the server does not speak.
	ErrVersionUnsupported Cause = "the server does not support this protocol or version"
	// ErrStaleHandle: ESTALE; "Stale file handle".
	ErrStaleHandle Cause = "stale file handle"
	// ErrBadOption: an option that the file system does not know or a value
	// that it does not take (EINVAL with "Unknown parameter 'x'", "Bad value
	// for 'x'"; "an incorrect mount option was specified"). [Error].Option
	// names it where it could be told.
	ErrBadOption Cause = "bad mount option"
	// ErrWrongFilesystem: the device holds something else (EINVAL of a mount
	// from a device without a word about an option; "Can't find ext4
	// filesystem", "Invalid superblock magic number", mount(8)'s "wrong fs
	// type" for a device).
	ErrWrongFilesystem Cause = "wrong file system on the device"
	// ErrNeedsFsck: EUCLEAN, EBADMSG; "Structure needs cleaning".
	ErrNeedsFsck Cause = "the file system needs a check"
	// ErrReadOnlyDevice: EROFS; EACCES of a mount from a device; "is
	// write-protected".
	ErrReadOnlyDevice Cause = "the device is read-only"
	// ErrBusy: EBUSY; "target is busy", "already mounted". [Error].Holders names its
	// holders, where that was asked for.
	ErrBusy Cause = "busy"
	// ErrNotPermitted: EPERM, EACCES. [Error].Capability and [Error].Also say, where
	// known, what is missing or in the way.
	ErrNotPermitted Cause = "not permitted"
	// ErrNoTarget: the mount point, or a parent of it, is missing (ENOENT,
	// ENOTDIR; "mount point does not exist").
	ErrNoTarget Cause = "the mount point does not exist"
	// ErrNoSource: the device or directory to mount is missing or no block
	// device (ENOENT, ENXIO, ENOTBLK, ENOMEDIUM; "special device … does not
	// exist").
	ErrNoSource Cause = "the source does not exist"
	// ErrNotMounted: nothing is mounted there (EINVAL of umount2(2) and of a
	// remount; "not mounted").
	ErrNotMounted Cause = "not mounted"
	// ErrCanceled: the context was cancelled.
	ErrCanceled Cause = "gave up waiting"
	// ErrTargetIsLink: the last element of the target is a symbolic link.
	ErrTargetIsLink Cause = "the mount point is a symbolic link"
	// ErrTargetReplaced: what the target leads to changed during the call.
	ErrTargetReplaced Cause = "the mount point was replaced meanwhile"
	// ErrKindMismatch: ENOTDIR of a bind mount; "is not a directory".
	ErrKindMismatch Cause = "source and mount point are not both directories or both files"
	// ErrNoLockDaemon: an NFSv3 mount with locks and no statd to keep them.
	ErrNoLockDaemon Cause = "rpc.statd is not running on this node"
	// ErrNeedsCommand: host.ViaSystemCalls was asked for, and the mount cannot be
	// made by system calls alone.
	ErrNeedsCommand Cause = "the mount needs mount(8), which is not to be used here"
	// ErrUnwrapped: [Mount] or [Unmount] got a mounter that is no [ContextMounter].
	ErrUnwrapped Cause = "the mounter takes no context"
	// ErrNoIDMap: an idmapped mount cannot be made of it; a *host.IDMapError says
	// why.
	ErrNoIDMap Cause = "the files cannot be shown with other owners"
	// ErrIO: EIO; "can't read superblock", "Input/output error".
	ErrIO Cause = "the device cannot be read"
	// ErrLocked, beside ErrNotPermitted: the mount came from a more privileged mount
	// namespace, which locks it to the mounts it came with (EINVAL of umount2(2) for
	// a mount; mount_namespaces(7)).
	ErrLocked Cause = "the mount is locked by the namespace it came from"
	// ErrUserNamespace, beside ErrNotPermitted: the process has CAP_SYS_ADMIN
	// in a user namespace only, which does not do for this type or source
	// (user_namespaces(7)).
	ErrUserNamespace Cause = "a user namespace may not do this"
	// ErrSecurityPolicy, beside ErrNotPermitted: the process has CAP_SYS_ADMIN
	// in the initial user namespace and was denied all the same, as security
	// modules and seccomp filters do. It is not said of network file systems,
	// whose servers deny things too.
	ErrSecurityPolicy Cause = "denied despite CAP_SYS_ADMIN, as by a security module or a seccomp filter"
)

func (c Cause) Error() string { return string(c) }
