// Package nfs is what mount.nfs(8) does around the kernel's mount: it reads the source
// and the options, resolves the server's name, probes the server and its version, and
// works out the options for the kernel's NFS client. Where no version was asked for, it
// goes through them one after the other.
//
// It starts no process and makes no mount: [Client.Negotiate] hands each [Attempt] to a
// function of its caller. Sources: fs/nfs/fs_context.c, nfs(5), RFC 5531 (RPC), RFC 1833
// (portmapper and rpcbind) and RFC 1813 (MOUNT and NFS 3).
package nfs
