package nfsserver

import (
	"testing"

	"github.com/podvol/podvol/util/testenv/debs"
)

// Packages are Debian's NFS servers and tools, and every library below them, in
// a directory of their own: the node under test shall neither serve NFS nor
// have the helpers.
type Packages struct{ debs.Tree }

// Unpack returns the packages, as [debs.Unpack] does.
func Unpack(t testing.TB) Packages {
	t.Helper()
	return Packages{debs.Unpack(t, "nfsservers", "nfs-kernel-server", "nfs-common", "rpcbind", "nfs-ganesha", "nfs-ganesha-vfs")}
}
