// Package standalone opens a root directory on a machine without a cluster: the
// node that mounts volumes ([StartNode]) and its claims ([OpenClaims],
// [BindClaims]). It decides these points for the packages below it:
//
//   - Tokens are issued with a key below the root directory.
//   - Pods may use the resources of a Node object, or if there is none this
//     machine's ([Machine]).
//   - Volumes of provisioner kubernetes.io/host-path are made below the root
//     directory, and in directories that are named for it.
//   - Claims learn the mounted volumes from the node, or from its records.
//
// Package nodeagent keeps such a node by a directory of manifests.
package standalone
