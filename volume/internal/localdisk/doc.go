// Package localdisk knows local volumes by what they are and not by where they
// are found: a PersistentVolume says which file system or device it is, and what
// is found at its path is compared with that, so that another disk that is put
// in a volume's place is not taken for it.
package localdisk

const (
	// VolumeID is the annotation of a PersistentVolume with the name of its file
	// system or device; see [Identity].
	VolumeID = "podvol.io/local-volume-id"
	// Node is the annotation with the name of the node that has the disk: copies
	// of one disk, as machines of one image have, are known by it.
	Node = "podvol.io/local-volume-node"
	// ProvisionedBy is Kubernetes' annotation with who has made a
	// PersistentVolume, and who deletes it.
	ProvisionedBy = "pv.kubernetes.io/provisioned-by"
	// PluginName is that of the plugin for local volumes.
	PluginName = "kubernetes.io/local-volume"
)
