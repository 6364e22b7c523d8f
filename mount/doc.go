// Package mount is what mounters have in common: requests, mount tables, and errors that
// say why something failed and what to do. It mounts nothing itself.
//
// There are three kinds of mounters. All fit [Interface], the one of
// k8s.io/mount-utils:
//
//   - the host's mounter, host.New in mount/host: it uses system calls if they are
//     enough, else the mount(8) command with its helpers;
//   - the fake, fakemount.New in mount/fakemount: a faithful mount table in memory with
//     content effects and injected faults, for tests and dry runs;
//   - any mounter written for mount-utils, after host.Wrap has given it contexts, a mount
//     table and the ladder of an unmount.
//
// Callers use the functions [Mount] and [Unmount], which take a context, and table.Of in
// mount/table for questions. Failures are *[Error] values with a
// typed [Cause] and a sentence of advice.
//
// A question is answered from the mount table and not by the mounted file system,
// so a dead server cannot block it. There is one exception: a path that is no mount
// point itself. Its links are read, and IsMountPoint checks that it exists. This may
// block if the path leads through the file system of such a server.
//
// # Beside k8s.io/mount-utils
//
// Users of mount-utils keep that import, beside this one, for its helpers, which
// this package does not repeat:
//
//   - CleanupMountPoint, CleanupMountWithForce, IsNotMountPoint,
//     GetDeviceNameFromMount and NewSafeFormatAndMount, with WithMaxConcurrentFormat,
//     take the mounter from host.New, which is also its MounterForceUnmounter;
//   - PathExists, IsCorruptedMnt, PathWithinBase and StartsWithBackstep look at
//     paths and at the errors of os;
//   - ListProcMounts, ParseMountInfo and SearchMountPoints read a file of the
//     kernel, as a [Table] does for repeated questions;
//   - MakeBindOpts, MakeBindOptsSensitive, MakeMountArgs, MakeMountArgsSensitive,
//     MakeMountArgsSensitiveWithMountFlags, AddSystemdScope and
//     AddSystemdScopeSensitive are for callers of mount(8): a mounter needs none;
//   - NewResizeFs and NewSafeFormatAndMount have a counterpart in mount/format, which
//     formats only devices that are proven blank;
//   - NewMountError is what NewSafeFormatAndMount returns; an [*Error] is none.
//
// Functions of the same name differ in these points:
//
//   - host.New takes a host.Config and not the path of a program, which is its MountCommand;
//     for NewWithoutSystemd, give it a SystemdDir that does not exist;
//   - fakemount.New, for NewFakeMounter, takes no list of mounts: they are made with
//     Mount;
//   - unmounting a path without a mount is always an error ([ErrNotMounted]), even if
//     umount(8) of the node takes it for success.
package mount
