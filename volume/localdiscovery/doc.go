// Package localdiscovery offers a node's local disks as PersistentVolumes: every
// file system that is mounted directly below a directory, such as /mnt/disks,
// and every block device that has a node or a link there, becomes a volume of
// its own, pinned to the node. It is what sig-storage-local-static-provisioner
// does for Kubernetes (KEP-121, local persistent volumes), in one process and
// without polling.
//
// # What is a volume
//
// A volume is a disk and not a path: its PersistentVolume is named after what
// tells the disk from others, the UUID of the file system or what the hardware
// says ([VolumeIDAnnotation]). So it is the same volume when the machine was restarted, when the
// kernel calls the disk something else, and when the disk comes back after it
// was away. Another disk at the same path is not: the plugin for local volumes
// mounts no PersistentVolume whose disk is not the one at its path, and this package does not
// offer that disk as long as a PersistentVolume has the path.
//
// What is found twice, by two mounts or two links, is offered once. A device that
// the kernel uses for anything, or that has a partition table, is never offered
// as one. Why something is not offered, [Found] says.
//
// # What is done with volumes
//
// This package only offers. It deletes no PersistentVolume and touches no data.
// The PersistentVolume of a disk that is gone stays, with the annotation
// [MissingAnnotation], since the disk may come back. One that was released keeps its data,
// as its reclaim policy is Retain unless the [Class] says Delete; then the
// controller (package persistentvolume) has the plugin for local volumes clean
// it, if that is configured to (local.Config), and deletes the PersistentVolume.
// Only when that is gone, and so everything that cleaning does is done, the disk
// is offered anew. The same holds for one that an administrator deletes: whoever
// deletes a PersistentVolume says that its disk may be given away as it is.
package localdiscovery
