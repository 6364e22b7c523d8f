// Package podrun runs a command on this machine as a container of a pod. The
// command gets the pod's volumes at their mount paths, and the container's
// environment, users and groups. It loses the capabilities that the container
// drops. This is no security boundary: network, processes and resources are the
// caller's.
//
//  1. [Prepare] finds every fault before anything is changed.
//  2. The caller sets the pod's volumes up at a node, such as a node of package
//     standalone at a root directory of package runroot.
//  3. [Program.Sandbox] describes the program with its mounts. [Signals.Run] runs
//     it to its end and forwards signals.
//  4. The caller tears the volumes down.
//
// An ordinary user may not mount. Such a user does all this in a program that
// [Signals.RunInUserNamespace] runs.
package podrun
