// Package volume is the contract between volume plugins and those who call
// them.
//
// The words, for readers new to Kubernetes: a pod names its volumes; each
// volume has one source, such as an NFS export, given inline in the pod
// ([k8s.io/api/core/v1.Volume]) or through a claim that is bound to a
// PersistentVolume. A [Spec] holds either. A plugin ([VolumePlugin]) knows one
// kind of source: its [Mounter] sets the volume up at a directory of the pod,
// its [Unmounter] tears it down again. A [VolumePluginMgr] holds the plugins
// and finds the one for a Spec. A [VolumeHost] tells a plugin where directories
// are and lends it the mounter; everything else a plugin may need, such as the
// contents of secrets, is a [Role] that it asks the host for.
//
// What only some plugins can do is a capability: an interface of its own
// (capabilities.go) found by a function of its own (AsAttachable, …), which
// holds the only type assertion.
//
// What Kubernetes has and this has not is listed in the comment of package
// volumemanager.
//
// The names are those of Kubernetes' own tree (k8s.io/kubernetes/pkg/volume,
// v1.37); every method that may block takes a context first.
package volume
