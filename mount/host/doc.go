// Package host mounts on this host: by system calls where they are enough, else by
// mount(8) with its helpers.
//
// [New] returns its [Mounter]. How one mount is made:
//
//	Mounter.MountContext     checks the request                       host.go
//	  choose                 system calls or mount(8)                 choice.go
//	  native.run             open the target and the source, make the
//	                         mount out of sight, attach it            native.go, native_*.go
//	  command                run mount(8), verify where it mounted    command.go, command_verify.go
//	  explain                the cause, with what the node has        native_error.go, node_facts.go
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
