// Package criruntime is a podlife.Runtime over a container runtime that speaks the
// Kubernetes container runtime interface (CRI, runtime.v1), such as containerd or CRI-O.
//
// What it makes is labelled with the node's name, so that several nodes may share a
// runtime, and with the labels of a kubelet. Containers go on without the agent, and are
// found by the next one.
//
// Below Config.Dir each pod has a directory, named by its UID: its hosts file, and for
// each container the logs and the termination messages of its runs.
//
// # User namespaces
//
// A pod with hostUsers: false gets 65,536 ids of the machine that no other pod of this root
// directory has, as with a kubelet: of those of the user kubelet in /etc/subuid and /etc/subgid,
// or else from 65536 on for 110 pods. Another node on the machine, such as a kubelet with a root
// directory of its own, gives the same ids to its pods: let only one of them have such pods.
// A pod's mounts map its ids, so that it sees the owners that files have.
//
// # What is refused
//
// Check refuses by name what the runtime does not offer, or this package does not say:
// user namespaces and strict supplemental groups where the runtime does not know them,
// runtime classes, restart rules, hostnameOverride, pod-level resources, claims of devices,
// hugepages, pods of another operating system, and stop signals that CRI has no name for.
// Start refuses a stop signal where the container that was made does not have it.
// Recursively read-only mounts are refused by volumemanager.ContainerMounts, which is told
// what the runtime can do. A pod with a network of its own needs a runtime that has one.
//
// A pod that asks for the cluster's name server, where Config.ClusterDNS is empty, gets the
// node's instead, and StartPod sends the event MissingClusterDNS, as a kubelet does.
package criruntime
