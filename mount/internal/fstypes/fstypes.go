// Package fstypes has facts on types of file systems, by their names as mount(8) and
// the mount table show them.
package fstypes

import "strings"

// WantsHelper reports whether mounts of a type go through mount.<type>.
func WantsHelper(fstype string) bool {
	switch Family(fstype) {
	case "nfs", "cifs", "ceph", "glusterfs", "fuse":
		return true
	}
	return false
}

// InKernel reports whether a type is the kernel's own. The others are daemons
// behind fuse, whose type mount(8) calls unknown when the helper lacks, or left
// for mount(8) to find out.
func InKernel(fstype string) bool {
	switch Family(fstype) {
	case "glusterfs", "fuse", "auto", "":
		return false
	}
	return true
}

// Family puts variants of a type together.
func Family(fstype string) string {
	base, _, _ := strings.Cut(fstype, ".")
	switch base {
	case "nfs4":
		return "nfs"
	case "smb3":
		return "cifs"
	case "fuseblk":
		return "fuse"
	}
	return base
}

// HasForce reports whether umount2(2) with MNT_FORCE does more for a type than
// without: its super block operations have umount_begin (Linux 6.18: nfs, cifs,
// ceph, 9p and fuse; lustre outside of the tree). For virtiofs, which is fuse
// inside, the kernel leaves it out (fuse's no_force_umount). The type is
// as the mount table shows it.
func HasForce(fstype string) bool {
	base, _, _ := strings.Cut(fstype, ".")
	switch base {
	case "nfs", "nfs4", "cifs", "smb3", "ceph", "9p", "fuse", "fuseblk", "lustre":
		return true
	}
	return false
}

// IsShare reports whether a type's source is a server.
func IsShare(fstype string) bool {
	switch Family(fstype) {
	case "nfs", "cifs", "ceph", "glusterfs", "9p", "afs":
		return true
	}
	return false
}
