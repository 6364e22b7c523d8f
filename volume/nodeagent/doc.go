// Package nodeagent keeps the volumes of the pods in a directory of manifests
// mounted, as a kubelet does for its static pods. A new file's pods are mounted,
// a changed ConfigMap or Secret reaches its volumes, and the pods of a removed
// file are torn down. It is podvol run-node as a library.
//
//		directory ──▶ manifestdir ──▶ keeper: objects applied ─▶ pods placed ─▶ pods declared ──▶ node
//		                                ▲ a claim, volume or class has changed      ▲ outcome of an operation
//
//	  - An object that is refused, or a pod that the node refuses, is named in a notice;
//	    all others are served.
//	  - A pod waits until its claims are bound ([Agent.Explain] says for which).
//	  - A pod that has lost a volume, or has another source for one, is torn down and
//	    set up again, once for each version.
//	  - A claim that is removed from the manifests while the agent runs is deleted once
//	    no pod has it mounted; one that went at another time stays, and is named.
//	  - Nothing is torn down or deleted while it is not known which manifests there
//	    are: package manifestdir says when.
//
// [Start] takes the root directory, [Agent.Run] keeps it, [Agent.Close] gives it
// back.
package nodeagent
