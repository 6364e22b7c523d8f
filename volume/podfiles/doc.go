// Package podfiles gives the files of a pod's volumes as bytes: paths, contents, modes and
// owners. It is for agents that do not mount: that run without root, ship files to another
// machine, or write them into a directory of their own. It builds for every system.
//
//   - [Render] gives the files of one volume: configMap, secret, downwardAPI, projected.
//   - [Follow] gives those of all volumes of a pod, and again after each change and before
//     a token expires.
//   - [Set.WriteTar] and [Set.FS] hand a set on. Package atomicdir writes it into a
//     directory, so that all files change at once.
//
// The rules are those of the plugins of the same volumes, which are made of the same code,
// and so the kubelet's (Kubernetes v1.37): modes, optional, items, paths, binary data,
// divisors, tokens and fsGroup. Other volumes have no files of this kind: [ErrNoFiles].
package podfiles
