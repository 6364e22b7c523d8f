// Package localdisk knows local volumes by identity and not by path: a
// PersistentVolume names its file system or device, and the disk at its path is
// compared with that, so that another disk in its place is not taken for it.
package localdisk

const (
	// VolumeID is the annotation of a PersistentVolume with the name of its file
	// system or device; see [Identity].
	VolumeID = "podvol.io/local-volume-id"
	// Node is the annotation with the name of the node that has the disk: copies
	// of one disk, as machines of one image have, are known by it.
	Node = "podvol.io/local-volume-node"
	// ProvisionedBy is Kubernetes' annotation that names the provisioner of a
	// PersistentVolume, which also deletes it.
	ProvisionedBy = "pv.kubernetes.io/provisioned-by"
	// PluginName is the name of the plugin for local volumes.
	PluginName = "kubernetes.io/local-volume"
)
