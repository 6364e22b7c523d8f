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
// table and never by touching the file system, so that a dead server cannot
// block it. Failures are *[Error] values with a typed [Cause] and a sentence of
// advice.
package mount
