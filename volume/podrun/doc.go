// Package podrun runs a command on this machine as a container of a pod. The
// command gets the pod's volumes at their mount paths, and the container's
// environment, users and groups. It loses the capabilities that the container
// drops. This is no security boundary: network, processes and resources are the
// caller's.
//
//  1. [Prepare] finds every fault before anything is changed.
//  2. [Run.Do] binds the pod's claims, sets its volumes up at a root directory of package
//     runroot, runs the program to its end, and takes everything down again.
//
// An agent with a node of its own calls [Program.Sandbox] and [Signals.Run] instead, while
// the pod's volumes are set up there.
//
// An ordinary user may not mount. Such a user does all this in a program that
// [Signals.RunInUserNamespace] runs.
package podrun
