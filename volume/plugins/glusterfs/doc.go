// Package glusterfs mounts volumes of GlusterFS by its FUSE client: plugin
// kubernetes.io/glusterfs, inline or by a PersistentVolume. Kubernetes had it in its tree
// until 1.25; manifests, mount options and directories are the same.
//
// The servers are the ready addresses of the Endpoints object that the volume names, from
// the role [volume.EndpointsGetter]: in the pod's namespace, or in endpointsNamespace of a
// PersistentVolume. They are asked for what the volume consists of, one after the other.
// They are looked up for a new mount only: a mounted volume keeps the servers it has.
//
// # Servers are trusted with the node
//
// A server tells the client by a "volfile" which modules to load and with what options, and
// the client is a process of root. A hostile server so shows a pod the node's own files, to
// read and to write, and need not stop there. So whoever chooses a volume's servers must be
// trusted as root on each node that mounts it.
//
// For that reason volumes whose Endpoints are in the pod's namespace are refused, unlike in
// Kubernetes: inline volumes, and PersistentVolumes without an endpointsNamespace. Who can
// make Services and pods there has Endpoints with addresses of its own. An administrator
// who names a namespace in a PersistentVolume vouches for all who may write its Services,
// pods and Endpoints; it may be the claim's. [Config.TrustPodNamespaces] is for nodes whose
// pods are all of trusted users.
//
// # The client
//
// Each pod's volume has a client process of its own, as in Kubernetes. It takes some ten
// megabytes of memory. If it ends, or hangs, the volumes of other pods are not concerned,
// and a set-up can replace it.
//
//   - The mounter starts it outside of the agent's service, see package mount/host: it
//     outlives the agent.
//   - It is asked to take its mount away when it dies (auto_unmount), where it knows that
//     option. A set-up also takes a dead client's mount for none, and mounts anew. A client
//     that does not reach its servers is left alone: it goes on once it does.
//   - Teardown waits for the client to end, since it may still be sending what was
//     written. One that does not end within half a minute, or is stopped, is killed.
//   - A client that an earlier agent has started and that has not mounted yet is killed
//     before another one is started for its directory.
//   - It is looked for in this machine's /proc. Where the agent does not see the processes
//     of its mounter, none of them is waited for or killed, and a set-up takes one that does
//     not reach its servers for dead.
//
// It logs errors to <volume>/client.log in the plugin's directory of the pod
// ([volume.VolumeHost], GetPodPluginDir), which only its owner can read. The end of that is part of a failed mount's error. Set-up and GetMetrics
// empty it when it has grown to a megabyte; teardown removes it.
//
// # Names
//
// The mount helper is a shell script that splits its arguments at spaces and commas. So
// paths that it gets are of plain characters: letters, digits and ._~/:@=+- only. A volume
// whose source or directory has others is refused.
//
// What Kubernetes did beyond that, provisioning by heketi, has ended with heketi itself.
package glusterfs
