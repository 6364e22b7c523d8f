// Package secret is the plugin for secret volumes, "kubernetes.io/secret": the data of a
// secret as files on a tmpfs, so that it never reaches a disk.
//
// Every key is a file, or only the keys that items name, at their paths and with their
// modes. A missing secret or key is an error, unless it is optional. Another SetUp brings
// the files up to date, all at once; without a change it writes nothing.
//
// The host needs the role [volume.SecretGetter].
package secret

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
		Name:       "kubernetes.io/secret",
		Medium:     projection.Medium(config.OnDisk),
		Empty:      v1.VolumeSource{Secret: &v1.SecretVolumeSource{}},
		Project:    payload.Secret,
		VolumeName: volumeName,
	})
}

// volumeName is the kubelet's.
func volumeName(v *v1.Volume) string { return v.Secret.SecretName }
