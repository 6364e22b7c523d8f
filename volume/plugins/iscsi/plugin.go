// Package iscsi gives pods the disks of iSCSI targets: plugin kubernetes.io/iscsi.
//
//   - A node logs in to the volume's target when the first pod needs the disk, by open-iscsi
//     (iscsid and iscsiadm, which the node must have), and logs out after the last. Disks of
//     one target share a session.
//   - A disk gets a file system if it is proven blank, which is mounted once on the node and
//     bound into the pods'. With volumeMode Block pods get the disk itself.
//   - Every portal of the volume is a path to the disk. Of several paths the dm-multipath
//     device is used, where multipathd has made one.
//   - Directories and records are the kubelet's, so that it can take a node over, and podvol
//     from it.
//   - The disk's identity (its WWID or serial number, and the size) is in the record. While
//     the volume is staged, another disk under its LUN is refused. So is the same disk by
//     another path than the one that is in use, but for block volumes that only read.
//   - With an SELinux label, the disk is mounted with it, and no file is relabelled.
//   - In a cluster, a volume waits until the attach/detach controller has given it to this
//     node, as with the kubelet. That controller has nothing else to do.
//   - There is no discovery, so that chapAuthDiscovery needs nothing: a volume names its
//     target and portals. With chapAuthSession the volume's secret is read at each login.
//
// Tried with the kernel's own target, open-iscsi 2.1.8 and multipath-tools 0.9.4: file systems
// and block volumes, two portals, two disks of one session, growth, a portal lost under a writer,
// restarts of the agent, sessions lost meanwhile, CHAP, another disk under a volume's LUN,
// initiatorName, dm-multipath with a path lost, and SELinux.
package iscsi

import (
	"cmp"
	"context"
	"log/slog"
	"path/filepath"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/format"
	"github.com/podvol/podvol/util/blockingcall"
	"github.com/podvol/podvol/util/keylock"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/diskmount"
	"github.com/podvol/podvol/volume/internal/pluginbase"
	"github.com/podvol/podvol/volume/plugins/iscsi/internal/openiscsi"
	"github.com/podvol/podvol/volume/selinux"
	"github.com/podvol/podvol/volume/volumesource"
)

// PluginName is the plugin's name.
const PluginName = "kubernetes.io/iscsi"

// Config configures the plugin. Its zero value is what nodes need.
type Config struct {
	// ToolDirs is where iscsiadm, multipath and multipathd are looked for; nil means PATH and
	// then /usr/sbin, /sbin, /usr/bin, /bin.
	ToolDirs []string
	// Logger takes what no pod is told of, such as a portal that does not answer while
	// another one does; nil drops it.
	Logger *slog.Logger
	// LockDir is a directory of this machine, whose files are locked while a target is logged
	// in to or out of; empty: /run/podvol-iscsi. All programs with this plugin must share it:
	// else one may close a session under a disk that another has just found. Only root may be
	// able to write to it. It is made where it is missing.
	LockDir string
}

// New returns the plugin.
func New(config Config) volume.VolumePlugin {
	p := newPlugin(nil, nil, cmp.Or(config.LockDir, "/run/podvol-iscsi"))
	p.initiator = openiscsi.New(openiscsi.Config{ToolDirs: config.ToolDirs, Logger: config.Logger, UsedBy: func(device string) (string, error) { return p.usedBy(device) }})
	return p
}

// initiator is the node's iSCSI initiator.
type initiator interface {
	Login(ctx context.Context, lun openiscsi.LUN, chap *openiscsi.CHAP) (d openiscsi.Device, added openiscsi.LUN, err error)
	Find(ctx context.Context, lun openiscsi.LUN) (openiscsi.Device, error)
	UsedElsewhere(ctx context.Context, d openiscsi.Device, usedBy func(device string) (user string, err error)) (path, user string, err error)
	Rescan(ctx context.Context, lun openiscsi.LUN) (openiscsi.Device, error)
	Logout(ctx context.Context, lun openiscsi.LUN) error
}

// newPlugin returns the plugin with an initiator of the caller's; formats nil: this node's;
// lockDir empty: no other program of the machine has the initiator.
func newPlugin(i initiator, formats diskmount.Formatter, lockDir string) *plugin {
	return &plugin{initiator: i, lockDir: lockDir, disks: diskmount.Disks{Formats: formats}, Kind: pluginbase.Kind[source]{
		Name: PluginName, Field: "iscsi", Inline: fromInline, Persistent: fromPersistent,
	}}
}

type plugin struct {
	pluginbase.Kind[source]
	initiator initiator
	disks     diskmount.Disks
	// targets are those that are being logged in to, or out of, here; lockDir has those of all
	// programs.
	targets keylock.Map[string]
	lockDir string
	opening blockingcall.Group[string] // disks
	// writing is held for reading while a record is written.
	writing sync.RWMutex
}

var (
	_ volume.PersistentVolumePlugin     = (*plugin)(nil)
	_ volume.MountOptionVolumePlugin    = (*plugin)(nil)
	_ volume.AttachableVolumePlugin     = (*plugin)(nil)
	_ volume.BlockVolumePlugin          = (*plugin)(nil)
	_ volume.NodeExpandableVolumePlugin = (*plugin)(nil)
	_ volume.SpecAttacher               = (*plugin)(nil)
	_ volume.SELinuxVolumePlugin        = (*plugin)(nil)
	_ volumesource.Describer            = (*plugin)(nil)
)

// GetVolumeName returns portal, target and LUN, as the kubelet and the attach/detach
// controller of a cluster name the volume.
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

// SupportsSELinuxContextMount is true: the file system is a disk's, and mounted by MountDevice.
func (p *plugin) SupportsSELinuxContextMount(context.Context, *volume.Spec) (bool, error) {
	return true, nil
}

func (p *plugin) NewMounter(spec *volume.Spec, pod *v1.Pod) (volume.Mounter, error) {
	return p.Mounter(spec, pod, func(pv volume.PodVolume, _ *source) (volume.Mounter, error) {
		if err := pluginbase.CheckFilesystem(spec, "iscsi"); err != nil {
			return nil, err
		}
		s, err := p.checked(spec)
		if err != nil {
			return nil, err
		}
		m := &diskmount.Mounter{Volume: diskmount.Volume{PodVolume: pv, Disks: &p.disks}, Device: p.devicePath(s), Subject: s.volumeName(), ReadOnly: s.readOnly}
		if s.waitsForPod() {
			m.MountDevice = func(ctx context.Context, device string, args volume.DeviceMounterArgs) error {
				return p.mountDevice(ctx, s, pv.Name, device, pod.Namespace, args)
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

// ConstructVolumeSpec finds the mount of the device that is bound at volumePath, and reads
// the names of portal, target and LUN from its path. It is never complete: further portals,
// options and secrets are not to be seen.
func (p *plugin) ConstructVolumeSpec(_ context.Context, volumeName, volumePath string) (volume.ReconstructedVolume, error) {
	pv := &v1.PersistentVolume{}
	pv.Name = volumeName
	pv.Spec.VolumeMode = new(v1.PersistentVolumeFilesystem)
	pv.Spec.ISCSI = &v1.ISCSIPersistentVolumeSource{}
	at, bind, err := diskmount.DeviceOf(p.Host.GetMounter(), volumePath, filepath.Join(p.Host.GetPluginDir(PluginName), "iface-"))
	if err != nil {
		return volume.ReconstructedVolume{}, err
	}
	if of, ok := parsePath(at); ok {
		pv.Spec.ISCSI = of.spec(volumeName)
	}
	return volume.ReconstructedVolume{Spec: volume.NewSpecFromPersistentVolume(pv, bind.ReadOnly()), SELinuxMountContext: selinux.MountOption(bind.SuperOptions)}, nil
}

func failed(op, name string, err error) error {
	if err == nil {
		return nil
	}
	return &volume.Error{Op: op, Plugin: PluginName, Volume: name, Err: err}
}

// mountRequest is the mount of the disk.
func (s *source) mountRequest(device, path string, options []string) mount.Request {
	return mount.Request{Source: device, Target: path, FSType: cmp.Or(s.FSType, format.DefaultFSType), Options: options}
}
