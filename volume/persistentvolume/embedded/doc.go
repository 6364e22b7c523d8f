// Package embedded is the cluster side of volumes for one machine: all that an agent
// without a Kubernetes API needs, in one struct. A [Cluster] keeps claims and
// PersistentVolumes on disk, applies manifests to them, places pods, binds their claims,
// and has storage made and reclaimed by plugins.
//
//   - [Open] loads the claims and volumes, [Cluster.Apply] takes manifests over as kubectl
//     apply does, and [Cluster.Run] works in the background.
//   - [Cluster.Bind] returns when pods have all their volumes, or says why not. It waits:
//     it is for commands that mount some pods and end.
//   - An agent that runs on calls [Cluster.Place] for each pod, again when
//     [Config.Explained] tells of one of its claims, so no pod waits for another.
//   - [Cluster.Use] is for a program that mounts below a root directory of its own, where
//     the agent does not see it.
//   - A volume manager reads [Cluster.Objects] and mounts them; see package volumemanager.
//
// The records are the truth, as in a cluster: a claim keeps its volume, and a volume its
// claim, whatever manifests say later. A manifest that goes away deletes nothing by
// itself; [Cluster.Prune] does, once all are known, and not where none is
// ([ErrNothingDeclared]). Nothing is let go of before [Cluster.PodsComplete], nor while it
// is mounted ([Config.Mounted]).
//
// Claims and volumes outlive the process. All other objects, such as pods and classes,
// are in memory, and are applied anew after each start.
package embedded
