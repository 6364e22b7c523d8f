// Package projected is the plugin for projected volumes, "kubernetes.io/projected":
// config maps, secrets, the downward API, service account tokens, cluster trust bundles
// and certificates of the pod together in one directory on a tmpfs.
//
//   - Tokens are bound to the pod and renewed at 80 % of their life or after 24 hours: the
//     mounter says when by [volume.Refresher]. Until then another SetUp asks for none.
//   - A token that cannot be renewed is kept while it is valid, and an event says so.
//   - Keys of podCertificate sources (KEP-4317) are made here, one for each certificate, and
//     shown nowhere else. A set-up waits half a minute for the signer, then fails and goes on
//     to wait in the next one. At the time that the signer names, and up to five minutes
//     later, the certificate is renewed. Until that succeeds the old one stays with its key
//     while it is valid, and an event says so after ten minutes.
//   - A pod that its signer has denied gets no certificate any more, as with the kubelet.
//   - An agent that was started again goes on with the certificate that the volume shows
//     with its key, up to 80 % of its life. A kubelet asks for new ones.
//   - The host needs the roles of the sources that pods use: [volume.ConfigMapGetter],
//     [volume.SecretGetter], [volume.TokenRequester], [volume.TrustBundleGetter],
//     [volume.PodCertificateRequester], [volume.AllocatableGetter].
package projected

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
		Name:    "kubernetes.io/projected",
		Medium:  projection.Medium(config.OnDisk),
		Empty:   v1.VolumeSource{Projected: &v1.ProjectedVolumeSource{}},
		Project: payload.Projected,
	})
}
