// Package hostns mounts in the host's mount namespace, for an agent that runs in a container.
//
//	func main() {
//		hostns.Main() // first: the program starts itself again in the host's namespaces
//		…
//		mounter := hostns.New(hostns.Config{})
//		defer mounter.Close()
//		node, err := volumemanager.New(volumemanager.Config{Mounter: mounter, …})
//	}
//
// The other way is mount/host in a container with mountPropagation: Bidirectional. It takes
// mount helpers from the container's image, and the FUSE daemons that these leave behind end
// with the container, and with them the volumes of pods that still run. Here:
//
//   - Mount helpers and FUSE daemons are the host's own. They outlive the container: systemd
//     puts them in a scope, or else they are in a cgroup of the host.
//   - The root directory is a volume with mountPropagation: HostToContainer, at the same
//     path as on the host. Mounts of the host appear in the container, too.
//     [Mounter.CheckPropagation] tells if it does not.
//   - The pod needs hostPID: true and privileged: true.
//
// # How
//
// One child of the agent runs in the host's namespaces, entered by descriptors of nsfs
// (setns(2)). It is this program again, in which mount/host does the work; so paths, links,
// the mount table, the ladder of an unmount, and what the node lacks are the host's, and a mount
// that hangs stops no other. The agent asks it by a pair of sockets. A mount whose source is a
// descriptor of the agent's (/proc/<pid>/fd/<n>) is of the same inode on the host, found by
// its path and compared.
//
//   - When the agent ends, however it does, the child kills the mount helpers that run, and ends.
//   - When the child dies, calls under way are uncertain. The next call starts another one.
//
// The program must be linked statically (CGO_ENABLED=0), or find its libraries on the host.
package hostns
