package mount

import (
	"context"

	"golang.org/x/sys/unix"
)

// needsNFSHelper says why mount.nfs has to make an NFS mount, or nothing where
// the kernel can make it alone.
func needsNFSHelper(Request, parsedOptions) string { return "NFS is mounted by mount.nfs" }

// mountNFS mounts NFS by system calls; needsNFSHelper was asked before.
func (n *native) mountNFS(context.Context) error { return unix.EPROTONOSUPPORT }
