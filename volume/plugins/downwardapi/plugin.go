// Package downwardapi is the plugin for downwardAPI volumes, "kubernetes.io/downward-api":
// fields of the pod and resources of its containers as files on a tmpfs.
//
//   - Fields: metadata.name, metadata.namespace, metadata.uid, metadata.labels and
//     metadata.annotations, whole (a line key="value" for each entry) or one entry, as in
//     metadata.labels['app'].
//   - Resources: limits and requests of cpu, memory, ephemeral-storage and
//     hugepages-<size>, divided by the divisor and rounded up.
//   - The host needs the role [volume.AllocatableGetter] only for a limit that neither
//     container nor pod sets.
package downwardapi

import (
	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/payload"
	"github.com/podvol/podvol/volume/internal/projection"
)

// Config says where the files lie.
type Config struct {
	// OnDisk puts them below the root directory, where that is: nothing is mounted then,
	// and no root is needed. They may reach a disk. False: on a tmpfs of their own.
	OnDisk bool
}

// New returns the plugin.
func New(config Config) volume.VolumePlugin {
	return projection.NewPlugin(projection.Kind{
		Name:    "kubernetes.io/downward-api",
		Medium:  projection.Medium(config.OnDisk),
		Empty:   v1.VolumeSource{DownwardAPI: &v1.DownwardAPIVolumeSource{}},
		Project: payload.DownwardAPI,
	})
}
