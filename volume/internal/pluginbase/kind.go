// Package pluginbase has the parts that plugins share: telling whether a spec has
// the plugin's source, remembering the host, and reading from a PersistentVolume
// how it is mounted.
package pluginbase

import (
	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/volume"
)

// Kind has the methods that are alike in plugins for a source of type S, which
// embed it. Once Init was called it does not change.
type Kind[S any] struct {
	// Name is the plugin's name.
	Name string
	// Field is the source as manifests spell it, such as "nfs".
	Field string
	// Inline and Persistent return the source of a pod's volume and of a
	// PersistentVolume, or nil; where there is no such source they are nil.
	Inline     func(*v1.VolumeSource) *S
	Persistent func(*v1.PersistentVolumeSource) *S
	// Host is what Init was given.
	Host volume.VolumeHost
	Hosted
}

// Init implements [volume.VolumePlugin].
func (k *Kind[S]) Init(host volume.VolumeHost) error {
	k.Host = host
	k.SetInitHost(host)
	return nil
}

// GetPluginName implements [volume.VolumePlugin].
func (k *Kind[S]) GetPluginName() string { return k.Name }

// CanSupport implements [volume.VolumePlugin].
func (k *Kind[S]) CanSupport(spec *volume.Spec) bool { return k.find(spec) != nil }

// Source returns the spec's source. If it has none of this kind the error is a
// *[volume.InvalidSpecError].
func (k *Kind[S]) Source(spec *volume.Spec) (*S, error) {
	if s := k.find(spec); s != nil {
		return s, nil
	}
	return nil, volume.Invalid("volume", "has no %s source", k.Field)
}

func (k *Kind[S]) find(spec *volume.Spec) *S {
	switch {
	case spec == nil:
		return nil
	case spec.Volume != nil && k.Inline != nil:
		return k.Inline(&spec.Volume.VolumeSource)
	case spec.Volume == nil && spec.PersistentVolume != nil && k.Persistent != nil:
		return k.Persistent(&spec.PersistentVolume.Spec.PersistentVolumeSource)
	}
	return nil
}

// Mounter returns what build makes of the spec's source for the pod. Errors are
// as in NewMounter and name plugin, volume and pod.
func (k *Kind[S]) Mounter(spec *volume.Spec, pod *v1.Pod, build func(volume.PodVolume, *S) (volume.Mounter, error)) (volume.Mounter, error) {
	pv, err := volume.NewPodVolume(k.Host, k.Name, spec, pod)
	if err != nil {
		return nil, err
	}
	source, err := k.Source(spec)
	if err != nil {
		return nil, pv.Error("NewMounter", err)
	}
	m, err := build(pv, source)
	if err != nil {
		return nil, pv.Error("NewMounter", err)
	}
	return m, nil
}
