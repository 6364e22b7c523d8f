// Package flexvolume gives pods the volumes of FlexVolume drivers: plugin kubernetes.io/flexvolume.
//
//   - A driver is a program of the node that is run for each call, such as "mount". One of name
//     example.com/nfs is the program example.com~nfs/nfs of a directory. It is found when a pod
//     needs it; [volume.RunningPlugin] has a pod that waits tried again as soon as a driver is
//     put there, or replaced.
//   - Calls, options and answers are those of Kubernetes. A driver is only run if no other user
//     can change it. Each call has a limit of time and of output.
//   - A driver that attaches has its volumes attached by the cluster's attach/detach controller,
//     or by package selfattach, where the host knows attachments. Without that role the node
//     attaches them before it mounts the device, and detaches them after.
//   - What was begun is recorded before the driver is called. A mount whose call was killed is
//     undone before the next call.
//   - Where a driver has no call for it, the node does what it can by itself: it mounts the
//     device that a volume was attached as, binds that for pods, unmounts, and grows file
//     systems. If a driver has vanished, the node unmounts its volumes. What the node has
//     attached by it stays attached, and UnmountDevice fails, until it is installed again.
//   - A success without a mount is an error: pods would write to the node's own disk.
//
// Two things differ from Kubernetes:
//
//   - The protocol has options in an argument, which every user of the node can read, unless
//     /proc is mounted with hidepid. So volumes with a secretRef are refused, unless
//     [Config.SecretArguments] allows them. Options that are secrets by their names (such as
//     "password") are arguments all the same, since they are part of the manifest.
//     Inline volumes that differ in nothing else are one volume, of which the node refuses pods
//     that differ. What others have attached it cannot tell apart: such a driver must look at
//     its secrets in mountdevice or mount.
//   - All drivers are of one plugin, so that names of volumes and directories have the plugin's
//     name where a kubelet has the driver's. A node is not taken over from a kubelet with its
//     FlexVolumes mounted, and a kube-controller-manager does not attach for it.
//
// A daemon that a driver leaves behind is in the agent's own control group, as with the kubelet.
package flexvolume

import (
	"cmp"
	"context"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/util/keylock"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/fsgroup"
	"github.com/podvol/podvol/volume/internal/diskmount"
	"github.com/podvol/podvol/volume/internal/pluginbase"
	"github.com/podvol/podvol/volume/meter"
	"github.com/podvol/podvol/volume/plugins/flexvolume/internal/driver"
	"github.com/podvol/podvol/volume/selinux"
	"github.com/podvol/podvol/volume/volumesource"
)

// PluginName is the plugin's name.
const PluginName = "kubernetes.io/flexvolume"

// DefaultDir is Kubernetes' directory of drivers.
const DefaultDir = "/usr/libexec/kubernetes/kubelet-plugins/volume/exec"

// Causes of failures, for [errors.Is].
const (
	ErrNotInstalled = driver.ErrNotInstalled
	ErrNotTrusted   = driver.ErrNotTrusted
	ErrDriver       = driver.ErrFailed
)

// Config configures the plugin. Its zero value is what nodes need.
type Config struct {
	// Dir is the directory of drivers, an absolute path; empty: [DefaultDir]. It need not exist.
	Dir string
	// CallTimeout bounds each call of a driver; 0: two minutes.
	CallTimeout time.Duration
	// SecretArguments allows volumes with a secretRef. Drivers get the secret as an argument,
	// which every user of the node can read while the call lasts.
	SecretArguments bool
}

// New returns the plugin.
func New(config Config) volume.VolumePlugin { return newPlugin(config, driver.Run, nil) }

// newPlugin returns the plugin with other hands; formats nil: this node's.
func newPlugin(config Config, run driver.Runner, formats diskmount.Formatter) *plugin {
	return &plugin{
		asked:           make(chan struct{}),
		secretArguments: config.SecretArguments,
		drivers:         driver.Drivers{Dir: cmp.Or(config.Dir, DefaultDir), Timeout: cmp.Or(config.CallTimeout, 2*time.Minute), Run: run},
		disks:           diskmount.Disks{Formats: formats},
		Kind:            pluginbase.Kind[source]{Name: PluginName, Field: "flexVolume", Inline: fromInline, Persistent: fromPersistent},
	}
}

type plugin struct {
	pluginbase.Kind[source]
	secretArguments bool
	drivers         driver.Drivers
	meter           meter.Meter
	owner           fsgroup.Setter
	disks           diskmount.Disks
	// asked is closed once there was a volume: without one no directory is watched.
	asked     chan struct{}
	askedOnce sync.Once
	// places are the directories that are being mounted at, or unmounted.
	places keylock.Map[string]
	// attached has the drivers of the volumes that were attached by name. It keeps those of
	// detached ones, since Detach may be repeated.
	attached sync.Map
}

var (
	_ volume.PersistentVolumePlugin     = (*plugin)(nil)
	_ volume.AttachableVolumePlugin     = (*plugin)(nil)
	_ volume.SpecAttacher               = (*plugin)(nil)
	_ volume.SpecExpander               = (*plugin)(nil)
	_ volume.NodeExpandableVolumePlugin = (*plugin)(nil)
	_ volume.RunningPlugin              = (*plugin)(nil)
	_ volume.GeneralPlugin              = (*plugin)(nil)
	_ volumesource.Describer            = (*plugin)(nil)
)

// GetVolumeName returns the PersistentVolume's name, as in Kubernetes: a driver may tell volumes
// apart by it. Inline volumes have the same name if they have the same source.
func (p *plugin) GetVolumeName(spec *volume.Spec) (string, error) {
	s, err := p.checked(spec)
	if err != nil {
		return "", err
	}
	return s.name, nil
}

// DescribeSource returns the driver's name, by which [plugin.Run] wakes its volumes.
func (p *plugin) DescribeSource(spec *volume.Spec) string {
	s, err := p.checked(spec)
	if err != nil {
		return ""
	}
	return s.Driver
}

// IsGeneral is true: a plugin of one driver's name has its volumes.
func (p *plugin) IsGeneral() bool { return true }

func (p *plugin) GetAccessModes() []v1.PersistentVolumeAccessMode {
	return []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce, v1.ReadOnlyMany}
}

func (p *plugin) NewMounter(spec *volume.Spec, pod *v1.Pod) (volume.Mounter, error) {
	return p.Mounter(spec, pod, func(pv volume.PodVolume, _ *source) (volume.Mounter, error) {
		s, err := p.checked(spec)
		if err != nil {
			return nil, err
		}
		return &mounter{bound: bound{pv, p}, source: s, serviceAccount: pod.Spec.ServiceAccountName}, nil
	})
}

func (p *plugin) NewUnmounter(volumeName string, podUID types.UID) (volume.Unmounter, error) {
	pv, err := volume.NewUnmountedPodVolume(p.Host, PluginName, volumeName, podUID)
	if err != nil {
		return nil, err
	}
	return &unmounter{bound{pv, p}}, nil
}

// ConstructVolumeSpec reads the volume's record. Without one, not even the driver is known; the
// node unmounts such a volume by itself. It is never complete: a record has no secrets.
func (p *plugin) ConstructVolumeSpec(_ context.Context, volumeName, volumePath string) (volume.ReconstructedVolume, error) {
	at, err := p.placeAt(volumePath, volumeName)
	if err != nil {
		return volume.ReconstructedVolume{}, err
	}
	r, _, err := at.read()
	if err != nil {
		return volume.ReconstructedVolume{}, err
	}
	if driver.CheckName(r.Source.Driver) != nil {
		r.Source.Driver = "unknown"
	}
	spec := r.spec(volumeName)
	entry, _, err := table.Of(p.Host.GetMounter()).At(volumePath)
	if err != nil {
		return volume.ReconstructedVolume{}, err
	}
	return volume.ReconstructedVolume{Spec: spec, SELinuxMountContext: selinux.MountOption(entry.SuperOptions)}, nil
}

func failed(op, name string, err error) error {
	if err == nil {
		return nil
	}
	return &volume.Error{Op: op, Plugin: PluginName, Volume: name, Err: err}
}
