// Package mount mounts and unmounts file systems, says what is mounted, and
// explains what went wrong.
//
// Three things act on mounts, and all fit [Interface], which is that of
// k8s.io/mount-utils:
//
//   - the host's mounter from [New]: system calls where they suffice, the
//     mount(8) command with its helpers where they do not;
//   - the [FakeMounter], a faithful mount table in memory with content effects
//     and injected faults, for tests and dry runs;
//   - any mounter written for mount-utils.
//
// Callers use the functions [Mount] and [Unmount], which bring a context to all
// three, and [TableOf] for questions. A question is answered from the mount
// table and not by what is mounted, so that a dead server cannot block it. Only
// of a path that is no mount point itself the links are read, and IsMountPoint
// looks whether it exists; this may block where the path leads through the file
// system of such a server. Failures are *[Error] values with a typed [Cause] and
// a sentence of advice.
//
// Who comes from k8s.io/mount-utils keeps that import, beside this one, for its
// helpers, which this package does not repeat: CleanupMountPoint,
// CleanupMountWithForce, IsNotMountPoint, IsCorruptedMnt, PathExists,
// NewSafeFormatAndMount and the rest all take the mounter from [New], which is also
// its MounterForceUnmounter. Two things differ: New takes a [Config] and not the
// path of a program, and unmounting what is not mounted is always an error
// ([ErrNotMounted]), whatever umount(8) of the node thinks of it.
package mount
