// Package manifest reads Kubernetes manifests into an in-memory store of objects.
//
// It takes the same input as kubectl: files, directories or standard input, YAML
// or JSON, several documents in one, v1 Lists and JSON arrays.
//
//   - Pods are taken as they are. They are also made from the templates of
//     Deployments, ReplicaSets, ReplicationControllers, StatefulSets, DaemonSets,
//     Jobs and CronJobs, in the number that these ask for. A StatefulSet's claims
//     come with its pods.
//   - PersistentVolumes, claims, storage classes, config maps, secrets, service
//     accounts, nodes and cluster trust bundles are taken, because the pods'
//     volumes need them.
//   - Every other kind of Kubernetes' or of a custom resource is left out and
//     listed in [Set.Skipped].
//
// Decoding is strict. Errors that the API server would report about volumes are
// reported here, too. All errors of all documents are reported together. If there
// is one, nothing is returned.
//
// Documents are split and checked here, on top of apimachinery's strict JSON
// decoder: its YAML reader and codec give no line, and their errors may quote a
// secret's value.
package manifest
