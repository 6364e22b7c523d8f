// Package nfsserver runs NFS servers in a virtual machine of package vmtest,
// for tests of whatever mounts what they export. The servers are Debian's
// packages, unpacked below the user's cache directory and never installed.
//
//	func TestShare(t *testing.T) {
//		packages := nfsserver.Unpack(t) // on the host; free where no machine is asked for
//		vmtest.Run(t, func(t *testing.T) {
//			s := nfsserver.Start(t, packages, nfsserver.Config{Exports: []nfsserver.Export{{Path: "/data"}}})
//			s.Put("/data/hello", "hello")
//			// mount s.Address()+":/data"
//			s.Speak("3", "4.0")
//			s.Unexport("/data")
//			s.Stop()
//		})
//	}
//
// A server with a name is in network, mount and UTS namespaces of its own: any
// number of them are truly different servers, which no client takes for one,
// and the wire to each can be cut or slowed down:
//
//	one := nfsserver.Start(t, packages, nfsserver.Config{Name: "one"})
//	two := nfsserver.Start(t, packages, nfsserver.Config{Name: "two"})
//	one.Drop()                         // silence, not refusal; mounts hang
//	one.Pass()
//	one.Delay(300 * time.Millisecond)  // slow
//	one.Restart()                      // clients carry on
//	one.Replace()                      // every file handle is stale
//
// # nfs-ganesha
//
// [Ganesha] serves the same tmpfs through its FSAL VFS: file handles of tmpfs
// work for it (open_by_handle_at(2)), and an export's Filesystem_id takes the
// place of the UUID that a tmpfs lacks, so FSAL MEM is not needed. It looks for
// its file system in /etc/mtab, runs without D-Bus, and maps no names.
//
// Everything ends with the test that started it, in the reverse order: a test
// unmounts before its server ends by mounting after it was started and using
// t.Cleanup.
//
// The machine has neither the client's helpers nor its lock daemon, until a
// test asks for them with [Helper] and [Statd].
package nfsserver
