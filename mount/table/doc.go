// Package table answers questions on the mount table that a mounter acts on: the host's,
// a fake's, or one that was written for k8s.io/mount-utils.
//
//   - [Of] returns the table of a mounter, [Kernel] the one of this process.
//   - [Containing], [Holding] and [FileSystemNames] find the mount and the file system of
//     a path or of an open file.
//   - [SuperblockOf] tells whether a file system lives on after its unmount.
//
// No question waits for a mounted file system, but where its comment says so.
package table
