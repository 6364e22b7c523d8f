// Package sharedirs makes and deletes the directories behind dynamically
// provisioned volumes, below a base that many of them share: the root of an NFS
// share, or a directory of the node's. It deletes only directories that it has
// made itself, and it never gives one directory to two volumes.
//
// # Bookkeeping
//
// In the base is a directory ".podvol" (0700), which no volume can have as its
// own or see:
//
//	.podvol/marks/<key of the path>.json   whose directory that is, and which inode
//	.podvol/parents/<key>-<inode>.json     a directory above volumes that was made for them
//	.podvol/staging/<id>                   a directory that has no name yet
//	.podvol/trash/<id>, <id>.json          one that is being deleted, and its mark
//	.podvol/trash/<id>.retained.json       the mark that one had which was retained
//
// A directory is made in staging, with its mode; then its mark is written, which
// tells its inode, and synced; only then is it moved to its path, by one rename.
// So a foreign directory at a path can be told from ours, also after a crash at
// any point. A mark appears whole, by a hard link, which fails if there is one
// already, also on NFS; it never changes, and goes with the volume. That decides
// between processes and nodes that work on one share at the same time, without
// locks.
//
// Deletion moves the directory to the trash, checks again which one it is, and
// only then deletes it, by [removetree]. Directories above a volume that did not
// exist are made by mkdir and then recorded; they go by rmdir with the last
// volume in them. One that a crash kept from being recorded stays.
//
// # Comparisons
//
// A directory is the one of its mark if it has the inode number, and, as far
// as both are known, the time of birth and the file handle, which has the
// inode's generation: inode numbers are used again.
//
// # Limits
//
// The base's file system must know hard links to files and rename of directories,
// and keep inode numbers, as NFS does. Where rename cannot be told not to replace
// anything (NFS), an empty directory that another user makes at a volume's path
// within the same instant is replaced. The name ".podvol", and those that begin
// with "archived-", cannot be used in paths, in whatever case.
//
// Paths are told apart by their exact spelling. Where the server does not tell
// upper case from lower, a volume whose path differs from another's by nothing
// else is refused, like one whose path a stranger's directory has.
//
// The bookkeeping is trusted if it belongs to this process's user on the server,
// and no other user can write in it. So a process of the same user on the server
// (with root_squash, root of any client) can forge marks if it sees the base; a
// volume's users do not see it.
//
// A base whose disk is not mounted looks like a new one to [Make], which then
// makes directories that the disk will hide. Only [Remove] can tell, and a caller
// with a list of earlier directories. Servers should not export a directory whose
// disk is not mounted (the option mountpoint of exports(5)).
//
// A crash can leave a small file (".podvol-probe-*") in the bookkeeping, from the
// probe for this process's user, and another (".durable-*.tmp"), from writing a
// mark on a file system that makes no file without a name, as NFS. Nothing reads
// such files. They stay, since another node may be writing them.
//
// The calls block as long as the file system does; ctx is checked between
// them.
package sharedirs
