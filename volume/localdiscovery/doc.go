// Package localdiscovery offers a node's local disks as PersistentVolumes, pinned to the
// node: every file system that is mounted directly below a directory, such as /mnt/disks,
// and every block device that has a node or a link there. It does the work of
// sig-storage-local-static-provisioner (KEP-121, local persistent volumes), in one process
// and without polling.
//
// # A volume is a disk
//
// A PersistentVolume is named after its disk's identity and not after a path: the UUID of
// the file system or the hardware's name ([VolumeIDAnnotation]).
//
//   - It stays the same volume after a restart, when the kernel calls the disk something
//     else, and when the disk comes back after it was away.
//   - Another disk at the same path is another volume. The plugin for local volumes mounts
//     no PersistentVolume whose disk is not at its path, and this package does not offer a
//     disk as long as a PersistentVolume has its path.
//   - A disk that is found twice, by two mounts or two links, is offered once.
//   - A device that the kernel uses for anything, or that has a partition table, is never
//     offered as one. [Found] says why something is not offered.
//
// # The life of a volume
//
// This package only offers. It deletes no PersistentVolume and touches no data.
//
//   - The PersistentVolume of a disk that is gone stays, with the annotation
//     [MissingAnnotation], since the disk may come back.
//   - A released one keeps its data, as its reclaim policy is Retain unless the [Class] says
//     Delete. Then the controller (package persistentvolume) has the plugin for local
//     volumes clean it, if that is configured to (local.Config), and deletes it.
//   - Only then, with all cleaning done, the disk is offered anew. So it is when an
//     administrator deletes a PersistentVolume: that gives its disk away as it is.
package localdiscovery
