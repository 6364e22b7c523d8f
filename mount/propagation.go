package mount

// Propagation says how later mounts cross between the host and a container
// (mount_namespaces(7)). Its values are the words of mount(8) and of the OCI
// runtime specification.
type Propagation string

// The propagations, with a pod's word for each.
const (
	PropagationPrivate Propagation = "rprivate" // None: in neither direction
	PropagationSlave   Propagation = "rslave"   // HostToContainer
	PropagationShared  Propagation = "rshared"  // Bidirectional
)
