// Package emptydir gives a pod a private directory that lives as long as the
// pod: plugin kubernetes.io/empty-dir, on disk, in memory or in huge pages.
//
// In memory and in huge pages sizeLimit is a hard limit of the file system. In
// memory the pod's limit and the node's allocatable memory are, too.
//
// On disk it is one where the file system has project quotas, and the pod may write less
// by what directories take. xfs says ENOSPC then, ext4 EDQUOT.
//
//   - It needs xfs or ext4 mounted with prjquota, Linux 5.14, and CAP_SYS_ADMIN in the first
//     user namespace. Where it cannot be set, an event tells the pod why.
//   - The limit holds a program that writes too much. A process that owns a file can
//     take it out of the limit, unless the pod has a user namespace of its own
//     (hostUsers: false): see package projectquota. Then the volume's metrics are the
//     file system's count, too, which takes no walk, while that is within the only limit
//     of the pod. Other volumes are walked, so that what they take is seen whatever
//     project it has.
//   - Whoever owns files on the same disk may give them the volume's project, and so use its
//     limit up. The pod cannot write then. But nothing says that it takes more than it does.
//   - A directory that was set up without the limit gets none as long as it has files.
package emptydir

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/util/kubeapi"
	"github.com/podvol/podvol/util/projectquota"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/emptydirs"
	"github.com/podvol/podvol/volume/internal/pluginbase"
	"github.com/podvol/podvol/volume/meter"
	"github.com/podvol/podvol/volume/podcheck"
	"github.com/podvol/podvol/volume/validation"
	"github.com/podvol/podvol/volume/volumesource"
)

// PluginName is the plugin's name.
const PluginName = emptydirs.PluginName

// New returns the plugin.
func New() volume.VolumePlugin { return newPlugin(projectquota.System{}) }

// NewWithoutQuotas returns the plugin without project quotas: an event tells each pod so, and
// the agent evicts those that take too much (package ephemeralstorage), as the kubelet does.
// What [New]'s has limited before stays limited until it is taken down.
func NewWithoutQuotas() volume.VolumePlugin { return newPlugin(noQuotas{}) }

// noQuotas is the kernel, as if no file system had quotas, except to lift limits.
type noQuotas struct{ projectquota.System }

func (noQuotas) Enforced(*os.File) error { return errors.New("the node's agent sets none") }

func newPlugin(kernel projectquota.Kernel) *plugin {
	return &plugin{quotas: quotas{kernel: kernel}, Kind: pluginbase.Kind[v1.EmptyDirVolumeSource]{
		Name: PluginName, Field: "emptyDir",
		Inline: func(s *v1.VolumeSource) *v1.EmptyDirVolumeSource { return s.EmptyDir },
	}}
}

type plugin struct {
	pluginbase.Kind[v1.EmptyDirVolumeSource]
	meter  meter.Meter
	quotas quotas
}

var (
	_ volumesource.Describer   = (*plugin)(nil)
	_ podcheck.ShortfallPlugin = (*plugin)(nil)
)

// GetVolumeName returns the volume's name: its data has no other.
func (p *plugin) GetVolumeName(spec *volume.Spec) (string, error) {
	if _, err := p.Source(spec); err != nil {
		return "", err
	}
	return spec.Name(), nil
}

// DescribeSource returns the medium: "disk", "Memory", "HugePages-2Mi".
func (p *plugin) DescribeSource(spec *volume.Spec) string {
	switch {
	case !p.CanSupport(spec):
		return ""
	case spec.Volume.EmptyDir.Medium == v1.StorageMediumDefault:
		return "disk"
	}
	return string(spec.Volume.EmptyDir.Medium)
}

// Shortfalls says that a limit on disk is none, after the volume was set up.
func (p *plugin) Shortfalls(spec *volume.Spec, pod *v1.Pod) []podcheck.Shortfall {
	source, err := p.Source(spec)
	if err != nil {
		return nil
	}
	reason := p.quotas.unenforced(volumeKey{pod.UID, spec.Name()})
	if reason == nil {
		return nil
	}
	return []podcheck.Shortfall{{Reason: "SizeLimitNotEnforced", Message: fmt.Sprintf(
		"sizeLimit %s of volume %q is not enforced: disk use above sizeLimit is not prevented. %v. Use medium Memory or a disk with project quotas for a hard limit, or watch the volume's metrics.",
		source.SizeLimit, spec.Name(), reason)}}
}

func (p *plugin) NewMounter(spec *volume.Spec, pod *v1.Pod) (volume.Mounter, error) {
	return p.Mounter(spec, pod, func(pv volume.PodVolume, source *v1.EmptyDirVolumeSource) (volume.Mounter, error) {
		if err := validation.EmptyDir(source); err != nil {
			return nil, err
		}
		m, err := mediumOf(source, pod)
		if err != nil {
			return nil, err
		}
		return &mounter{directory: directory{pv, p}, pod: pod, medium: m, mode: modeOf(source), limit: sizeLimit(source)}, nil
	})
}

func (p *plugin) NewUnmounter(volumeName string, podUID types.UID) (volume.Unmounter, error) {
	pv, err := volume.NewUnmountedPodVolume(p.Host, PluginName, volumeName, podUID)
	if err != nil {
		return nil, err
	}
	return &unmounter{directory{pv, p}}, nil
}

// ConstructVolumeSpec tells the medium by the mount table. The size limit is
// not known any more, so the spec is never complete.
func (p *plugin) ConstructVolumeSpec(_ context.Context, volumeName, volumePath string) (volume.ReconstructedVolume, error) {
	mounts := table.Of(p.Host.GetMounter())
	entry, mounted, err := mounts.At(volumePath)
	if err != nil {
		return volume.ReconstructedVolume{}, err
	}
	source := &v1.EmptyDirVolumeSource{}
	if mounted {
		source.Medium = emptydirs.MediumOf(entry)
	}
	return volume.ReconstructedVolume{Spec: volume.NewSpecFromVolume(&v1.Volume{
		Name: volumeName, VolumeSource: v1.VolumeSource{EmptyDir: source}})}, nil
}

// modeOf returns the mode of the directory (KEP-5502); nil: the usual one.
func modeOf(source *v1.EmptyDirVolumeSource) *fs.FileMode {
	asked := kubeapi.EmptyDirMode(source)
	if asked == nil {
		return nil
	}
	mode := fs.FileMode(*asked) & fs.ModePerm
	if *asked&unix.S_ISVTX != 0 {
		mode |= fs.ModeSticky
	}
	return &mode
}

// containers are all of the pod's that have resources of their own.
func containers(pod *v1.Pod) []v1.Container {
	return slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers)
}
