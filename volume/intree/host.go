package intree

import (
	"context"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/podmount"
	"github.com/podvol/podvol/volume/meter"
)

// Host is a [volume.VolumeHost] with the methods of the tree's that podvol's lacks or
// declares differently. A plugin makes one in Init and keeps it. It is safe for
// concurrent use, and must not be copied.
type Host struct {
	volume.VolumeHost
	meter meter.Meter
}

// NewHost returns the tree's view of a host.
func NewHost(host volume.VolumeHost) *Host { return &Host{VolumeHost: host} }

// GetMounter returns the node's mounter, whatever the plugin is called. Its plain
// methods know no context: see [WithContext].
func (h *Host) GetMounter(pluginName string) mount.Interface { return h.VolumeHost.GetMounter() }

// CheckVolume refuses, before anything is touched, what would lead out of a pod's
// directory: a volume's name or a pod's UID that cannot name a directory, and a
// spec or a pod that is missing. The tree has no such method: there the API server
// alone checks the names. The error is NewMounter's, a *[volume.Error].
func (h *Host) CheckVolume(pluginName string, spec *volume.Spec, pod *v1.Pod) error {
	_, err := volume.NewPodVolume(h.VolumeHost, pluginName, spec, pod)
	return err
}

// CheckUnmount is CheckVolume for NewUnmounter.
func (h *Host) CheckUnmount(pluginName, volumeName string, podUID types.UID) error {
	_, err := volume.NewUnmountedPodVolume(h.VolumeHost, pluginName, volumeName, podUID)
	return err
}

// NewMetricsStatFS returns the provider of metrics of the file system that is mounted
// at path. The tree's, a function, measures the node's own disk where nothing is
// mounted, and hangs while a server does. Here GetMetrics fails with
// [mount.ErrNotMounted] then, and returns when its ctx ends. NewMetricsStatFS does no I/O.
func (h *Host) NewMetricsStatFS(path string) volume.MetricsProvider { return &statFS{h, path} }

type statFS struct {
	host *Host
	path string
}

// GetMetrics implements [volume.MetricsProvider].
func (s *statFS) GetMetrics(ctx context.Context) (*volume.Metrics, error) {
	return podmount.Metrics(ctx, s.host.VolumeHost.GetMounter(), &s.host.meter, s.path)
}
