// Package rootdir opens the directories in which a program keeps its own files,
// so that no other user of the machine can lead it to other ones.
//
// A path is walked component by component, each opened in the one before. Each
// must belong to root or to the caller, and no other user may be able to change
// what is in it, save in a sticky directory such as /tmp, where everybody
// changes only what is his own. On the way, a link is followed if root or the
// caller made it; what [MakeDirAt], [OpenDirAt] and [OpenFileAt] open in the
// directory is never a link. So where [Open] has succeeded, also the path itself
// leads there, and nowhere else, as far as root and the caller leave it alone.
//
// Whoever owns "/" counts as root on the way. In a user namespace that is whoever
// has no id there, which root outside of it has in common with all other users:
// there the directories above are only checked for who may write to them. The
// directory itself and what is in it must belong to an id of the namespace.
//
// Like every package below util, it carries no promise of compatibility.
package rootdir
