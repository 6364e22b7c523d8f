// Package sandbox runs a program in a mount namespace of its own in which it
// sees the mounts of a container: the last step from a pod's volumes to a
// process that uses them, for programs without a container runtime.
//
//	func main() {
//		sandbox.Main() // first: the program starts itself again to build the namespace
//		…
//		code, err := sandbox.Run(ctx, sandbox.Config{
//			Args:   []string{"ls", "-l", "/data"},
//			Env:    os.Environ(),
//			Mounts: []sandbox.Mount{{Source: dir, Destination: "/data", ReadOnly: true}},
//			Stdout: os.Stdout,
//		})
//	}
//
// It is no security boundary. It shows a program its files; it does not confine
// one that is root, which reaches the machine by /proc and /dev.
//
// # What the program sees
//
// The root is the directory [Config].Root, with /proc, /sys (read-only) and /dev
// of the machine, or else the machine's own root. Over it lie the mounts, in
// their order. Nothing is ever created in the machine's files or in the root's.
// Where a destination does not exist, its deepest existing parent is covered by a
// tmpfs that only this namespace has, with the same owner and mode. All its
// entries are bound to their places again (links made again), and the mount point
// is made there. Access control lists and security labels of that directory are
// not copied. What the program then creates in that one directory itself lives in
// memory and goes with it; what it creates further down goes where it always
// went. A destination missing inside another mount of the list is an error, since
// its mount point would have to be made in a volume.
//
// Links on the way to a destination are followed inside the root and lead
// nowhere else, also if they are swapped meanwhile: each path is resolved
// once, by openat2(2) with RESOLVE_IN_ROOT, and mounts are attached to what it
// found. A link in place of the root's own /proc, /sys or /dev is refused.
//
// # Propagation
//
// Each mount is recursive, as a user namespace requires. Its Propagation says
// what happens to mounts made below it later:
//
//   - "rprivate", or empty: nothing, in either direction.
//   - "rslave" (HostToContainer): what the host mounts below Source appears in
//     the program's mount as well. That needs a shared mount on the host; from
//     any other nothing ever arrives.
//   - "rshared" (Bidirectional): in addition, what the program mounts appears on
//     the host, and stays there until it is unmounted. The mount is a peer
//     of the host's. Source must lie in a shared mount, and there may be no user
//     namespace, whose mounts are never peers of the host's. No other mount of
//     the list may lie in it: it would appear on the host and stay.
//
// Everything else is a slave of the machine's mounts without a Root, so that
// what the machine mounts later appears, and private with one. Nothing the
// sandbox itself mounts is seen outside of its namespace, which goes with the
// last process in it: with the program, or, without [Config].PIDNamespace, with
// the last process that the program has left behind.
//
// # What it needs
//
// Linux 5.12 (openat2(2) came with 5.6, mount_setattr(2) with 5.12), and
// CAP_SYS_ADMIN or the right to make a user namespace. Where the machine runs
// from its initial RAM disk, which pivot_root(2) cannot exchange, a new root is
// entered by chroot(2). On an older kernel, or
// under a filter of system calls that denies these, the answer is an [Error]
// with [ErrKernelTooOld].
package sandbox
