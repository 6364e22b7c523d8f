// Package configmap is the plugin for configMap volumes, "kubernetes.io/configmap": the
// data and binaryData of a config map as files, on the node's disk.
//
// Every key is a file, or only the keys that items name, at their paths and with their
// modes. A missing config map or key is an error, unless it is optional. Another SetUp
// brings the files up to date, all at once; without a change it writes nothing.
//
// The host needs the role [volume.ConfigMapGetter].
package configmap

import (
	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/payload"
	"github.com/podvol/podvol/volume/internal/projection"
)

// New returns the plugin.
func New() volume.VolumePlugin {
	return projection.NewPlugin(projection.Kind{
		Name:       "kubernetes.io/configmap",
		Medium:     v1.StorageMediumDefault,
		Empty:      v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{}},
		Project:    payload.ConfigMap,
		VolumeName: volumeName,
	})
}

// volumeName is the kubelet's.
func volumeName(v *v1.Volume) string { return v.Name + "/" + v.ConfigMap.Name }
