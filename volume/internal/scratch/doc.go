// Package scratch makes the private directory of a pod that an emptyDir is,
// and that configMap, secret, downwardAPI and projected volumes are built in:
// a plain directory, a tmpfs, or a hugetlbfs.
//
// A marker file beside the volume (pods/<uid>/plugins/kubernetes.io~empty-dir/
// [wrapped_]<volume>/ready, the kubelet's) says that set-up was completed; a
// volume that is set up elsewhere has another one for there. It is trusted only
// together with the directory or the mount: a marker that outlived a reboot's
// mounts sets up again, a mount without one is completed.
package scratch
