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
// # Beside k8s.io/mount-utils
//
// Who comes from there keeps that import, beside this one, for its helpers, which
// this package does not repeat:
//
//   - CleanupMountPoint, CleanupMountWithForce, IsNotMountPoint,
//     GetDeviceNameFromMount and NewSafeFormatAndMount, with WithMaxConcurrentFormat,
//     take the mounter from [New], which is also its MounterForceUnmounter;
//   - PathExists, IsCorruptedMnt, PathWithinBase and StartsWithBackstep look at
//     paths and at the errors of os;
//   - ListProcMounts, ParseMountInfo and SearchMountPoints read a file of the
//     kernel, as a [Table] does for who asks more than once;
//   - MakeBindOpts, MakeBindOptsSensitive, MakeMountArgs, MakeMountArgsSensitive,
//     MakeMountArgsSensitiveWithMountFlags, AddSystemdScope and
//     AddSystemdScopeSensitive are for who runs mount(8): a mounter needs none;
//   - NewResizeFs and NewSafeFormatAndMount have a counterpart in mount/format, which
//     formats only what is proven blank;
//   - NewMountError is what NewSafeFormatAndMount returns; an [*Error] is none.
//
// What has the same name differs in this:
//
//   - New takes a [Config] and not the path of a program, which is its MountCommand;
//     for NewWithoutSystemd, give it a SystemdDir that does not exist;
//   - NewFakeMounter takes no list of mounts: they are made with Mount;
//   - unmounting what is not mounted is always an error ([ErrNotMounted]), whatever
//     umount(8) of the node thinks of it.
package mount
