// Package rbd gives pods the images of Ceph clusters as disks: plugin kubernetes.io/rbd.
//
//   - The kernel's client maps an image when the first pod of the node needs it, and unmaps it
//     after the last. The node needs the kernel's module rbd and no program of Ceph's.
//   - A blank image gets a file system, which is mounted once on the node and bound into the
//     pods'. With volumeMode Block pods get the disk itself.
//   - An image that is written to has its exclusive lock held by the node, from the mapping to
//     its end: the cluster keeps other nodes out, also those that this Kubernetes does not know,
//     and so there is nothing to attach. It must have the feature exclusive-lock, as new images
//     have. Kubernetes set an advisory lock, which nobody had to heed.
//   - A volume that is only read needs no lock, and any number of nodes may map it.
//   - The key is lent to the kernel in the keyring of one thread. It is in no argument list, no
//     file and no error. Which keys a volume may use is as in package cephfs.
//   - The key is read when the image is mapped, and may change while it is. Only pods that share
//     the image of inline volumes need the same key.
//   - Each mapping has a name, which is recorded before it is made. Other mappings of the image
//     are left alone.
//   - An image grows (rbd resize) while no node has it: that asks for the exclusive lock, too. Its
//     file system grows when the next pod has it, by NodeExpand. Kubernetes grew images in use.
//   - Volumes are known by monitors, pool and image. Kubernetes knew them by pool and image, and
//     took images of two clusters for one.
//   - A cluster that does not answer keeps what is mounted waiting, without an end: data is not
//     given up.
package rbd

import (
	"context"
	"net"
	"path/filepath"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/util/blockingcall"
	"github.com/podvol/podvol/util/keylock"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/ceph"
	"github.com/podvol/podvol/volume/internal/diskmount"
	"github.com/podvol/podvol/volume/internal/pluginbase"
	"github.com/podvol/podvol/volume/plugins/rbd/internal/krbd"
	"github.com/podvol/podvol/volume/selinux"
	"github.com/podvol/podvol/volume/volumesource"
)

// PluginName is the plugin's name.
const PluginName = "kubernetes.io/rbd"

// Config configures the plugin. Its zero value is what most nodes need.
type Config struct {
	// KeyDir is the directory of the node's keyrings; empty: /etc/ceph.
	KeyDir string
	// InlineKeyFiles lets the pods of this node use the keys of these files in inline volumes,
	// and so all that the keys' users may do.
	InlineKeyFiles bool
	// Resolver looks up monitors; nil: [net.DefaultResolver].
	Resolver Resolver
}

// Resolver looks up names; [net.Resolver] is one. It is safe for concurrent use.
type Resolver = ceph.Resolver

// New returns the plugin.
func New(config Config) volume.VolumePlugin { return newPlugin(config, &krbd.Client{}, nil) }

// client is the kernel's.
type client interface {
	Map(ctx context.Context, r krbd.Request) (krbd.Device, error)
	Find(token string) (krbd.Device, bool, error)
	Unmap(ctx context.Context, token string) error
}

// newPlugin returns the plugin with a client of the caller's; formats nil: this node's.
func newPlugin(config Config, c client, formats diskmount.Formatter) *plugin {
	if config.Resolver == nil {
		config.Resolver = net.DefaultResolver
	}
	return &plugin{config: config, client: c, disks: diskmount.Disks{Formats: formats}, Kind: pluginbase.Kind[source]{
		Name: PluginName, Field: "rbd", Inline: fromInline, Persistent: fromPersistent,
	}}
}

type plugin struct {
	pluginbase.Kind[source]
	config  Config
	client  client
	disks   diskmount.Disks
	images  keylock.Map[string]        // by the names of their directories
	opening blockingcall.Group[string] // disks
}

var (
	_ volume.PersistentVolumePlugin      = (*plugin)(nil)
	_ volume.MountOptionVolumePlugin     = (*plugin)(nil)
	_ volume.DeviceMountableVolumePlugin = (*plugin)(nil)
	_ volume.BlockVolumePlugin           = (*plugin)(nil)
	_ volume.NodeExpandableVolumePlugin  = (*plugin)(nil)
	_ volume.SELinuxVolumePlugin         = (*plugin)(nil)
	_ volumesource.Describer             = (*plugin)(nil)
)

// GetVolumeName returns monitors, pool and image, "10.0.0.1:6789:pool/image".
func (p *plugin) GetVolumeName(spec *volume.Spec) (string, error) {
	s, err := p.checked(spec)
	if err != nil {
		return "", err
	}
	return s.volumeName(), nil
}

// DescribeSource returns the same.
func (p *plugin) DescribeSource(spec *volume.Spec) string {
	s, err := p.checked(spec)
	if err != nil {
		return ""
	}
	return s.volumeName()
}

func (p *plugin) GetAccessModes() []v1.PersistentVolumeAccessMode {
	return []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce, v1.ReadOnlyMany}
}

func (p *plugin) SupportsMountOption() bool { return true }

// SupportsSELinuxContextMount is true: the file system is a disk's.
func (p *plugin) SupportsSELinuxContextMount(context.Context, *volume.Spec) (bool, error) {
	return true, nil
}

func (p *plugin) NewMounter(spec *volume.Spec, pod *v1.Pod) (volume.Mounter, error) {
	return p.Mounter(spec, pod, func(pv volume.PodVolume, _ *source) (volume.Mounter, error) {
		if err := pluginbase.CheckFilesystem(spec, "rbd"); err != nil {
			return nil, err
		}
		s, err := p.checked(spec)
		if err != nil {
			return nil, err
		}
		m := &diskmount.Mounter{Volume: diskmount.Volume{PodVolume: pv, Disks: &p.disks}, Device: p.devicePath(s), Subject: s.volumeName(), ReadOnly: s.readOnly}
		if s.key.IsInline {
			m.MountDevice = func(ctx context.Context, device string, args volume.DeviceMounterArgs) error {
				return p.mountDevice(ctx, s, device, pod.Namespace, args)
			}
		}
		return m, nil
	})
}

func (p *plugin) NewUnmounter(volumeName string, podUID types.UID) (volume.Unmounter, error) {
	pv, err := volume.NewUnmountedPodVolume(p.Host, PluginName, volumeName, podUID)
	if err != nil {
		return nil, err
	}
	return &diskmount.Volume{PodVolume: pv, Disks: &p.disks}, nil
}

// ConstructVolumeSpec finds the mount of the device that is bound at volumePath, and reads the
// image from its record. It is never complete: options and secrets are not in it.
func (p *plugin) ConstructVolumeSpec(_ context.Context, volumeName, volumePath string) (volume.ReconstructedVolume, error) {
	at, bind, err := diskmount.DeviceOf(p.Host.GetMounter(), volumePath, p.mountsDir()+string(filepath.Separator))
	if err != nil {
		return volume.ReconstructedVolume{}, err
	}
	spec, err := p.constructed(volumeName, at, v1.PersistentVolumeFilesystem)
	return volume.ReconstructedVolume{Spec: spec, SELinuxMountContext: selinux.MountOption(bind.SuperOptions)}, err
}

// constructed is a PersistentVolume of the image that has a place.
func (p *plugin) constructed(volumeName, place string, mode v1.PersistentVolumeMode) (*volume.Spec, error) {
	pv := &v1.PersistentVolume{}
	pv.Name = volumeName
	pv.Spec.VolumeMode = &mode
	pv.Spec.RBD = &v1.RBDPersistentVolumeSource{}
	readOnly := false
	if place != "" {
		r, ok, err := readRecord(p.recordFile(place))
		if err != nil {
			return nil, err
		}
		if ok {
			pv.Spec.RBD = &v1.RBDPersistentVolumeSource{CephMonitors: r.Monitors, RBDPool: r.Pool, RBDImage: r.Image, RadosUser: r.User, FSType: r.FSType}
			readOnly = r.ReadOnly
		}
	}
	return volume.NewSpecFromPersistentVolume(pv, readOnly), nil
}

func failed(op, name string, err error) error {
	if err == nil {
		return nil
	}
	return &volume.Error{Op: op, Plugin: PluginName, Volume: name, Err: err}
}
