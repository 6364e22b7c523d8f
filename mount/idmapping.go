package mount

// IDMapping maps Size ids, from ContainerID on, to the ids from HostID on, as a
// line of /proc/<pid>/uid_map does (user_namespaces(7)). For an idmapped mount
// ContainerID is the owner in the file system, and HostID the shown owner. With
// the mappings of a pod's user namespace, the pod sees the owners of the file
// system.
type IDMapping struct {
	ContainerID, HostID, Size uint32
}
