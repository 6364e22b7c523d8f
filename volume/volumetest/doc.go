// Package volumetest is for the tests of plugin authors.
//
// # Proving a plugin correct
//
// [Run] checks a plugin against the whole contract of package volume: what it
// refuses, that it can be called again after every failure and every crash,
// that it never touches what is not its own. The author names a few volumes
// that must work and a few that must be refused:
//
//	func TestConformance(t *testing.T) {
//		volumetest.Run(t, myplugin.New, volumetest.Suite{
//			Working: []volumetest.Case{{
//				Name: "inline",
//				Spec: volumetest.Inline(v1.VolumeSource{…}),
//				Want: volumetest.Want{Files: map[string]volumetest.File{"index.html": {Content: "hello"}}},
//			}},
//		})
//	}
//
// Everything runs on a fake mounter without privilege, and again with real
// mounts where the kernel lets a test have a mount namespace. Checks of
// optional capabilities run where the plugin has them.
//
// Where a plugin attaches and mounts devices, SetUp means for the checks what a
// node does: Attach, WaitForAttach and MountDevice before the first pod's
// SetUp, and UnmountDevice and Detach after the last pod's TearDown. So faults,
// crashes and cancellation meet their calls too.
//
// A plugin that keeps something between its calls, such as a connection, is an io.Closer:
// the checks close it at their end. In virtual time a connection must be one that package
// testing/synctest knows, such as those of net.Pipe or of google.golang.org/grpc/test/bufconn:
// time stands still while a goroutine waits for the kernel. The servers of a plugin are
// other processes; on the fake they mount by [fakemount.Mounter.Beside].
//
// What fails on the fake is not tried on a kernel, and each failure is said once.
// Names of what the checks themselves write into volumes and sources contain
// "volumetest-".
//
// Where a plugin mounts a file system that the fake does not know, as overlay or
// squashfs, [Suite.FileSystems] says what such a mount shows; it needs no waivers.
//
// # What is not checked
//
// Faults, crashes and hangs strike where a plugin calls the mounter or a role
// of the host, and nowhere else: not in what it does with files, devices or
// servers by itself. They sweep SetUp and TearDown in the sense above, Recycle,
// Provision and Delete, and hang GetMetrics; the calls of block volumes,
// ExpandVolumeDevice and NodeExpand are checked without faults.
//
// The answers of some capabilities are not compared with anything, since only
// the storage knows what is right: SupportsMountOption, RefreshAfter,
// SupportsSELinuxContextMount, RequiresFSResize. ConstructBlockVolumeSpec is
// not called.
//
// # Storage that a plugin recycles, provisions and deletes
//
// A plugin that recycles needs a working case that is a PersistentVolume which
// pods may write to. It gets that as a controller would hand it over, with the
// UID of the claim that has left; the host's role Releases says yes, unless a
// check says otherwise, and its role Pods sets a recycler pod's volumes up by
// the plugin itself, empties them and tears them down.
//
// A plugin that provisions needs at least one [StorageCase]:
//
//	Storage: []volumetest.StorageCase{{
//		Name:    "a directory of an export",
//		Prepare: func(n *volumetest.Node) { n.Serve("10.0.0.1:/export", nil) },
//		Parameters: func(*volumetest.Node) map[string]string {
//			return map[string]string{"server": "10.0.0.1", "share": "/export"}
//		},
//	}},
//
// What it makes for a claim must come to lie below the node's Dir, which such a
// server shows: that is how the checks see what is leaked, and what is deleted
// of others. A case whose Delete retains or archives the data says Keeps.
//
// # Other tests of a plugin
//
// Package [fakehost] has the fake node's host on which the checks run, for tests of
// a plugin's own. No product package imports either.
//
// # Adding a check
//
// A check is a value: its name "group/what", the sentence of the contract that
// it proves, and a function, in the list of its group (checks_<group>.go); the
// groups are joined in allChecks. The function gets a kit, which is a
// testing.TB whose failures carry the sentence, and a case. kit.node makes a
// new plugin on a new node, Node.volume the case's volume in a pod, Node.restart
// the same node with another instance of the plugin; kit.bubble gives virtual
// time. Below a Node lies a sim.Node, which drives the plugin as a volume manager
// does, and disturbs its calls. A check must hold for every plugin: it never asks for a plugin's name,
// and derives what it expects from the case. It must fail for some broken
// plugin, which the self-test has to show. The list below is rewritten by
//
//	go test ./volume/volumetest -run TestListOfChecks -update
package volumetest
