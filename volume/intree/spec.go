package intree

import (
	"errors"
	"path/filepath"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/volume"
)

// MountOptionFromSpec returns the mount options of a PersistentVolume, the older
// annotation's before its spec's, and then the given ones, joined as by
// [JoinMountOptions]. For every other volume it returns the given ones alone. The
// tree's does the same, but reads the spec only without an annotation.
func MountOptionFromSpec(spec *volume.Spec, options ...string) []string {
	if spec == nil || spec.PersistentVolume == nil {
		return options
	}
	pv := spec.PersistentVolume
	var user []string
	if annotated := pv.Annotations[v1.MountOptionAnnotation]; annotated != "" {
		user = strings.Split(annotated, ",")
	}
	return JoinMountOptions(append(user, pv.Spec.MountOptions...), options)
}

// JoinMountOptions joins mount options, each once and none empty. Unlike the
// tree's, which sorts them, it keeps their order, the user's before the system's:
// of two that contradict each other the last counts, and that is the plugin's "ro"
// rather than a user's "rw". It changes neither argument.
func JoinMountOptions(userOptions, systemOptions []string) []string {
	joined := []string{}
	for _, option := range userOptions {
		if option != "" && !slices.Contains(systemOptions, option) && !slices.Contains(joined, option) {
			joined = append(joined, option)
		}
	}
	for _, option := range systemOptions {
		if option != "" && !slices.Contains(joined, option) {
			joined = append(joined, option)
		}
	}
	return joined
}

// ContainsAccessMode reports whether the mode is among modes.
func ContainsAccessMode(modes []v1.PersistentVolumeAccessMode, mode v1.PersistentVolumeAccessMode) bool {
	return slices.Contains(modes, mode)
}

// ContainsAllAccessModes reports whether each requested mode is among the others.
func ContainsAllAccessModes(indexedModes, requestedModes []v1.PersistentVolumeAccessMode) bool {
	missing := func(mode v1.PersistentVolumeAccessMode) bool { return !slices.Contains(indexedModes, mode) }
	return !slices.ContainsFunc(requestedModes, missing)
}

// GetVolumeMode returns the volume mode of a spec: its PersistentVolume's if it
// has one, else Filesystem, where the tree has an error for a PersistentVolume
// without a mode. A spec without any volume is an error.
func GetVolumeMode(volumeSpec *volume.Spec) (v1.PersistentVolumeMode, error) {
	switch {
	case volumeSpec == nil || volumeSpec.Volume == nil && volumeSpec.PersistentVolume == nil:
		return "", errors.New("cannot get volumeMode for volume: the spec is empty")
	case volumeSpec.PersistentVolume != nil && volumeSpec.PersistentVolume.Spec.VolumeMode != nil:
		return *volumeSpec.PersistentVolume.Spec.VolumeMode, nil
	}
	return v1.PersistentVolumeFilesystem, nil
}

// CheckVolumeModeFilesystem reports whether the spec's volume is to be shown as a
// file system; the error is as in [GetVolumeMode].
func CheckVolumeModeFilesystem(volumeSpec *volume.Spec) (bool, error) {
	mode, err := GetVolumeMode(volumeSpec)
	return err == nil && mode != v1.PersistentVolumeBlock, err
}

// GetPluginMountDir returns the directory in which a plugin mounts its devices,
// "mounts" in its own.
func GetPluginMountDir(host volume.VolumeHost, name string) string {
	return filepath.Join(host.GetPluginDir(name), "mounts")
}
