// Package manifest reads Kubernetes manifests into an in-memory store of
// objects.
//
// It takes what kubectl takes: files, directories or standard input, YAML or
// JSON, several documents in one, v1 Lists and JSON arrays. Pods are taken as
// they are and made from the templates of Deployments, ReplicaSets,
// ReplicationControllers, StatefulSets, DaemonSets, Jobs and CronJobs, as many
// as these ask for; with a StatefulSet come its claims. PersistentVolumes,
// claims, storage classes, config maps, secrets, service accounts, nodes and
// cluster trust bundles are what the pods' volumes need. Every other kind of
// Kubernetes' or of a custom resource is left out and noted in [Set.Skipped].
//
// Decoding is strict, and what the API server would refuse about volumes is
// refused here too. All faults of all documents are reported together, and
// nothing is returned unless there are none.
package manifest
