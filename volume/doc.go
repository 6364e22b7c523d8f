// Package volume is the contract between volume plugins and their callers.
//
// The terms, for readers new to Kubernetes:
//
//   - A pod names its volumes. Each volume has one source, such as an NFS export.
//   - The source is given inline in the pod ([k8s.io/api/core/v1.Volume]), or
//     through a claim that is bound to a PersistentVolume. A [Spec] holds either.
//   - A plugin ([VolumePlugin]) knows one kind of source. Its [Mounter] sets the
//     volume up at a directory of the pod. Its [Unmounter] tears the volume down
//     again.
//   - A [VolumePluginMgr] holds the plugins and finds the plugin for a Spec.
//   - A [VolumeHost] gives a plugin its directories and its mounter.
//   - A [Role] is everything else that a plugin may need of its host, such as the
//     contents of secrets. The plugin asks the host for it.
//   - A capability is a feature that only some plugins have. It is an interface
//     of its own (capabilities.go). A function of its own (AsAttachable, …) finds
//     it and has the only type assertion.
//
// # Errors
//
// An [Error] names the failed operation, the volume and the pod. It wraps the
// reason:
//
//   - A [Failure] has a [Cause] that errors.Is finds, such as [ErrInUse], and
//     Advice for people.
//   - An error of package mount has a cause and advice, too.
//   - A type of its own, such as [InvalidSpecError], has fields that a program
//     needs.
//
// volume/volumemanager/LIMITS.md lists the features of Kubernetes that are missing
// here.
//
// The names are from Kubernetes' own tree (k8s.io/kubernetes/pkg/volume, v1.37).
// Every method that may block takes a context first.
package volume
