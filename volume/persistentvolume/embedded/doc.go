// Package embedded is the cluster side of volumes for one machine: what an agent
// needs that has no Kubernetes API, in one struct. A [Cluster] keeps claims and
// PersistentVolumes on disk, applies manifests to them, places pods, binds their
// claims, and has storage made and reclaimed by plugins.
//
// [Open] loads what is kept, [Cluster.Apply] takes manifests over as kubectl apply
// does, [Cluster.Run] works in the background, and [Cluster.Bind] returns when
// pods have all their volumes, or says which not and why. A volume manager reads
// [Cluster.Objects] and mounts them; package volumemanager has one.
//
// Bind is for commands that mount some pods and end: it waits. An agent that goes
// on and on calls [Cluster.Place] for each pod, again whenever
// [Config.Explained] tells of a claim of it, and so keeps none waiting for another.
// [Cluster.Use] is for who mounts below a root directory of its own, where the
// agent does not see it.
//
// What is kept is the truth, as in a cluster: a claim keeps its volume, and a
// volume what it is for, whatever manifests say later. A manifest that goes away
// deletes nothing by itself; [Cluster.Prune] does, once all are known, and not
// where none is ([ErrNothingDeclared]). Nothing is
// let go of before [Cluster.PodsComplete], nor while it is mounted
// ([Config.Mounted]).
//
// Claims and volumes outlive the process. Everything else, pods and classes
// among it, is in memory, and is applied anew after each start.
package embedded
