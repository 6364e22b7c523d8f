// Package nfs is what mount.nfs(8) does before and around the kernel's mount:
// it reads the source and the options, resolves the server's name, looks at
// once whether the server is there and speaks the version asked for, and works
// out what the kernel's NFS client must be told, for one version after the
// other where none was asked for.
//
// It starts no process and makes no mount: [Client.Negotiate] hands each
// [Attempt] to a function of its caller. The kernel's side of the options is
// fs/nfs/fs_context.c, what they mean is nfs(5), the protocols are RFC 5531
// (RPC), RFC 1833 (portmapper and rpcbind) and RFC 1813 (MOUNT and NFS 3).
package nfs
