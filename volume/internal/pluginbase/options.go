package pluginbase

import (
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/volume"
)

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
