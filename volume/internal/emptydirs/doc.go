// Package emptydirs makes a pod's private directories, empty at first: the emptyDir
// volumes, and the ones that configMap, secret, downwardAPI and projected volumes
// write their files into. Such a directory is a plain one, a tmpfs or a hugetlbfs.
//
// A marker file beside the volume says that its set-up is complete. Its path is the
// kubelet's: pods/<uid>/plugins/kubernetes.io~empty-dir/[wrapped_]<volume>/ready. A
// volume that is set up at another path has another marker for that path. The
// marker counts only together with the directory or the mount:
//
//   - With the marker but no mount, as after a reboot, the volume is set up again.
//   - With a mount but no marker, the set-up is completed.
package emptydirs
