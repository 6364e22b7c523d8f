// Package subpath opens and makes files beneath the root of a volume, whatever a
// container that shares the volume does to it meanwhile. A container writes its
// volume as it likes: links that lead to the host's files, and directories that
// it exchanges for links between two system calls of ours, have let containers
// out in CVE-2017-1002101 and CVE-2021-25741.
//
// # How paths are resolved
//
// A path is resolved by the kernel in one call, openat2(2) with RESOLVE_BENEATH
// (Linux 5.6), or where that is missing element by element from descriptor to
// descriptor. The result is a descriptor of the file found, so that nothing has
// to be looked up by name again. On the way:
//
//   - A link that stays beneath the root is followed, up to 40 in all, as in
//     every other path.
//   - A link that leads above the root is an [EscapeError], even where it would
//     come back in: the names above the root are the host's.
//   - An absolute link is an [EscapeError]. A container means its own file system
//     by it, which does not exist here. The kubelet resolves it in the host's,
//     where it leads out, except if a user has written the host's name of the
//     volume into it.
//   - A magic link of /proc is an [EscapeError].
//   - A mount beneath the root is entered: Kubernetes lets a subPath lie in a
//     file system that is mounted in a hostPath volume. There as well, no link
//     leads above the root.
//
// # Other systems
//
// On a Unix other than Linux a path is walked with the calls of POSIX, by descriptors
// and with the same refusals. The tests run this walk, too. Four things differ:
//
//   - Files are opened for reading, which takes the permission to read.
//   - Only directories and regular files can be opened. For any other kind of file the
//     error matches [errors.ErrUnsupported].
//   - Directories are made with the umask of the process, and get their mode afterwards.
//   - A mount that forbids to follow links (nosymfollow) and a procfs are not known.
//
// On a system that is no Unix all functions but [Check] fail with an error that matches
// [errors.ErrUnsupported].
//
// # Limits
//
// A directory that is moved out of the volume after it was opened stays open.
// Only a process that can write outside the volume can do that.
//
// A file system that hangs makes these calls hang, which cannot be cancelled:
// use [github.com/podvol/podvol/util/blockingcall]. All functions are safe for
// concurrent use, and leave root to the caller.
//
// Like every package below util, it carries no promise of compatibility.
package subpath
