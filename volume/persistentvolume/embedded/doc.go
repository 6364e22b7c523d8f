// Package embedded is the cluster side of volumes for one machine: what an agent
// needs that has no Kubernetes API, in one struct. A [Cluster] keeps claims and
// PersistentVolumes on disk, applies manifests to them, places pods, binds their
// claims, and has storage made and reclaimed by plugins.
//
//	cluster, err := embedded.Open(ctx, embedded.Config{Dir: dir, NodeName: "edge1", Plugins: plugins.All(), Host: host})
//	defer cluster.Close()
//	err = cluster.Apply(ctx, declared...)                // as kubectl apply
//	go cluster.Run(ctx)                                  // binds, makes and reclaims
//	err = cluster.Bind(ctx, pods...)                     // every claim has its volume, or which has not and why
//	node, err := volumemanager.New(volumemanager.Config{Objects: cluster.Objects(), …})
//
// What is kept is the truth, as in a cluster: a claim keeps its volume, and a
// volume what it is for, whatever manifests say later. A manifest that goes away
// deletes nothing by itself; [Cluster.Prune] does, once all are known. Nothing is
// let go of before [Cluster.PodsComplete], nor while it is mounted
// ([Config.Mounted]).
//
// Claims and volumes outlive the process. Everything else, pods and classes
// among it, is in memory, and is applied anew after each start.
package embedded
