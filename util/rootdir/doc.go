// Package rootdir opens the directories in which a program keeps its own files, so that no
// other user of the machine can lead it to other ones.
//
//   - A path is walked component by component, each opened in the one before. Each must
//     belong to root or to the caller, and no other user may be able to change its content,
//     save in a sticky directory such as /tmp, where users change only their own files.
//   - On the way, a link is followed if root or the caller made it. [MakeDirAt], [OpenDirAt]
//     and [OpenFileAt] never open a link in the directory. So after [Open] the path itself
//     leads there, as long as root and the caller leave it alone.
//   - The owner of "/" counts as root on the way. In a user namespace that is the id of all
//     users without one, root outside of it among them: there the directories above are only
//     checked for other writers. The directory itself and its content must belong to an id
//     of the namespace.
//
// Like every package below util, it carries no promise of compatibility.
package rootdir
