// Package pluginbase has the parts that plugins share: telling whether a spec has
// the plugin's source, remembering the host, and reading from a PersistentVolume
// how it is mounted.
package pluginbase

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/mount"
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

// ReadOnly reports whether the pod must not write to a spec's volume, as far as
// the PersistentVolume says: the claim is used read-only, or the PersistentVolume
// offers no access mode but ReadOnlyMany. The latter holds for every kind of
// volume: such a PersistentVolume is not meant to be written to.
func ReadOnly(spec *volume.Spec) bool {
	if spec.PersistentVolume == nil {
		return false
	}
	modes := spec.PersistentVolume.Spec.AccessModes
	other := func(m v1.PersistentVolumeAccessMode) bool { return m != v1.ReadOnlyMany }
	return spec.ReadOnly || len(modes) > 0 && !slices.ContainsFunc(modes, other)
}

// Options returns the mount options of a spec, each once: "ro" if the volume is
// read-only, then the older annotation's, then spec.mountOptions, so that the
// latter win where the file system takes the last of two. An option that a
// manifest must not hand to mount(8) keeps the *[mount.OptionError]; "rw" on a
// read-only volume is a *[volume.InvalidSpecError].
func Options(spec *volume.Spec, readOnly bool) ([]string, error) {
	given := manifestOptions(spec)
	if err := mount.CheckOptions(given); err != nil {
		return nil, volume.NothingDone(fmt.Errorf("mountOptions of PersistentVolume %q: %w", spec.Name(), err))
	}
	if readOnly && slices.Contains(given, "rw") {
		return nil, volume.Invalid("mountOptions", `"rw" contradicts a read-only volume; drop one of the two`)
	}
	var options []string
	if readOnly {
		options = append(options, "ro")
	}
	for _, o := range given {
		if !slices.Contains(options, o) {
			options = append(options, o)
		}
	}
	return options, nil
}

func manifestOptions(spec *volume.Spec) []string {
	pv := spec.PersistentVolume
	if pv == nil {
		return nil
	}
	var options []string
	for o := range strings.SplitSeq(pv.Annotations[v1.MountOptionAnnotation], ",") {
		if o = strings.TrimSpace(o); o != "" {
			options = append(options, o)
		}
	}
	return append(options, pv.Spec.MountOptions...)
}

// CheckFilesystem refuses a PersistentVolume that is to be shown as a block
// device, which the plugin cannot do.
func CheckFilesystem(spec *volume.Spec, plugin string) error {
	pv := spec.PersistentVolume
	if pv == nil || pv.Spec.VolumeMode == nil || *pv.Spec.VolumeMode == v1.PersistentVolumeFilesystem {
		return nil
	}
	return volume.Invalid("volumeMode", "%s volumes are mounted as a file system only, not as %q; use volumeMode: %s",
		plugin, *pv.Spec.VolumeMode, v1.PersistentVolumeFilesystem)
}

// Role is [volume.Role] with advice for a host that lacks it.
func Role[R any](host volume.VolumeHost, advice string) (R, error) {
	r, err := volume.Role[R](host)
	if missing, ok := errors.AsType[*volume.MissingRoleError](err); ok {
		err = &volume.MissingRoleError{Role: missing.Role, Field: missing.Field, Advice: advice}
	}
	return r, volume.NothingDone(err)
}

// ReleaseVerifier is the host's role of this name, without which nothing is deleted.
func ReleaseVerifier(host volume.VolumeHost) (volume.ReleaseVerifier, error) {
	return Role[volume.ReleaseVerifier](host,
		"nothing is deleted without one: give the volume host one (Host.Releases), such as release.Verifier")
}

// Hosted remembers for a plugin, which embeds it, the host of its last Init. Its zero
// value remembers none.
type Hosted struct {
	host atomic.Pointer[volume.VolumeHost]
}

// SetInitHost is called by Init.
func (h *Hosted) SetInitHost(with volume.VolumeHost) { h.host.Store(&with) }

// InitHost lets a [volume.VolumePluginMgr] find that another one has the plugin, too.
func (h *Hosted) InitHost() volume.VolumeHost {
	if host := h.host.Load(); host != nil {
		return *host
	}
	return nil
}
