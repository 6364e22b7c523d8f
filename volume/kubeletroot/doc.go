// Package kubeletroot reads a kubelet's root directory beside the running kubelet, and says what
// is wrong with it: before someone lets podvol take it over, or to find what a kubelet has lost.
//
// It changes nothing and takes no lock. It needs no record of podvol's. What [Examine] finds:
//
//   - [Orphan]: a pod's directory with something in it, and no such pod.
//   - [LeakedMount]: a mount of such a pod, or a device's mount that no pod's volume needs.
//   - [NoVolumeData], [LeftVolumeData]: a CSI volume without a readable vol_data.json, which
//     the kubelet cannot unmount after its next restart; and such a file without its volume,
//     for which the kubelet never removes the pod's directory.
//   - [StaleServer]: a mounted server that does not answer, or has forgotten the export.
//
// # Harmless to the node
//
// Names, links and files below the root may be anyone's. Directories are opened by descriptor,
// without following a link and without entering a mount; a file is read only if it is a
// regular one, up to 64 KiB of it. At most [Config].MaxEntries names are read. What vanishes
// meanwhile is no fault. Only [StaleServer] touches mounted file systems, by one statfs(2) for
// each server, for which it waits a limited time.
package kubeletroot
