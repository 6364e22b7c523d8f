// Package podlife runs the pods of a node, as a kubelet does, over a runtime that only
// knows containers. Pods follows the pods' informer: each pod has a life, which is a
// goroutine. It waits for the pod's volumes, makes what its containers share, runs its
// init containers one after the other and its containers side by side, restarts what
// ends, asks the probes, and writes the pod's status.
//
// # The end of a pod
//
// A deleted pod ends in this order, whatever fails or is restarted in between:
//
//  1. Its containers end: preStop hooks, a signal, and SIGKILL after the grace period.
//     Restartable init containers come after the others, the last one first.
//  2. What its containers shared goes.
//  3. Its volumes are unmounted.
//  4. Its last status is stored.
//  5. Its object at the API server goes. So a StatefulSet's next pod of that name, and
//     the protection of a claim, wait for the unmount.
//  6. Its logs go.
//
// Pods that the API server does not know any more end in the same way.
//
// virtual-kubelet's own pod controller is not used: it removes the object when the grace
// period is over whatever still runs, removes a pod that it has not yet seen running at
// once, and does not hear of ephemeral containers.
//
// # Restarts of the agent
//
// Runtime.Found tells what an earlier agent has left running. The life goes on with
// that: nothing is started twice.
package podlife
