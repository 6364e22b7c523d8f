// Package host mounts on this host: by system calls where they are enough, else by
// mount(8) with its helpers.
//
// [New] returns its [Mounter]. How one mount is made:
//
//	Mounter.MountContext     checks the request, chooses system calls
//	                         or mount(8)                              host.go
//	  native.run             open the target, make the mount out of
//	                         sight, attach it                         native.go
//	    mountNew             a file system                            native_new.go
//	    mountNFS             one of NFS, by the version that its
//	                         server takes                             native_nfs.go
//	    bind, remount        another view of a mount, or a change     native_bind.go
//	  mountByCommand         run mount(8), verify where it mounted    command.go
//	  explain                the cause, with what the node has        explain.go
//
// [Wrap] gives a mounter of another module the same contexts, mount table and ladder
// (wrap.go).
//
// And how one is unmounted:
//
//	Mounter.UnmountContext   finds the mount                          unmount.go
//	  ladder.Climb           normal, forced, normal again, lazy       mount/internal/ladder
//	  attempt                umount2(2), by a descriptor of the
//	                         parent directory                         unmount.go
//	  holders                the processes that keep it busy          holders.go
//
// It needs Linux 5.4 or newer.
package host
