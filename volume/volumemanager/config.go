package volumemanager

import (
	"cmp"
	"log/slog"
	"path/filepath"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/host"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/selinux"
	"github.com/podvol/podvol/volume/volumemanager/internal/blockmap"
)

// Config is what a [Manager] is made of. RootDir, NodeName, Objects and
// Plugins are required.
type Config struct {
	// RootDir is the absolute directory that the manager owns; it is made
	// (0750) if it does not exist.
	RootDir string
	// NodeName is this node's name in the API.
	NodeName string
	// Objects is where claims, volumes, config maps, secrets, trust bundles
	// and the node itself are read from.
	Objects objects.Source
	// Plugins are the volume plugins, plugins.All() for example. They must not be
	// shared with another manager: from its New on, calls of this one that need them
	// are volume.ErrSharedPlugin.
	Plugins []volume.VolumePlugin

	// Mounter mounts; nil means the host's, host.New. Any other is given what it
	// lacks by host.Wrap: the manager's plugins get it from there by Unwrap.
	Mounter mount.Interface
	// Tokens issues service account tokens; nil: volumes that need one fail.
	Tokens volume.TokenRequester
	// PodCertificates has signers issue certificates to pods; nil: volumes that need one
	// fail.
	PodCertificates volume.PodCertificateRequester
	// TrustBundles, nil: cluster trust bundles by name are read from Objects,
	// those by signer fail unless Objects is an objects.Lister.
	TrustBundles volume.TrustBundleGetter
	// CSIDrivers has the objects of CSI drivers; nil: Objects has them.
	CSIDrivers volume.CSIDriverGetter
	// Attachments has this node's VolumeAttachments; nil: CSI needs no attaching.
	Attachments volume.AttachmentGetter
	// CSINode is told of the node's CSI drivers; nil: nobody is.
	CSINode volume.CSINodePublisher
	// Resizes is told how the node's part of growing volumes ended; nil: nobody is.
	Resizes volume.NodeResizeReporter
	// Translator turns in-tree volumes of CSI drivers, such as gcePersistentDisk, into theirs
	// (csitranslation.New); nil: they are refused. The plugin for csi mounts them.
	Translator volume.Translator
	// Allocatable tells the node's size to downwardAPI volumes and emptyDirs;
	// nil: volumes that need it fail.
	Allocatable volume.AllocatableGetter
	// Containers tells which pods' containers are gone; nil: only the
	// callers of TearDownPod, so that volumes of other pods are kept.
	Containers PodContainers
	// KeepEndedPodData has the emptyDir volumes of a pod that has ended (see
	// Manager.PutPod) stay until the pod is deleted, so that a person can look at
	// what it wrote. Without it they go with the pod's other volumes, as with the
	// kubelet. Data of claims stays with the claim either way.
	KeepEndedPodData bool
	// Adopt takes volumes over that are below RootDir without a record when Run
	// starts, as a kubelet leaves them: each gets a record, rebuilt from its
	// directory and the mount table, and stays as it is for its pod. Refused while a
	// kubelet runs on this machine. Without Adopt they are left alone. Such a volume
	// of a declared pod fails with ErrNoRecord: its tear-down could delete another
	// agent's data.
	Adopt bool
	// SetUpTimeout is how long one attempt to set a volume up may take without
	// progress that its plugin reports; 0 means two minutes. The attempt is
	// repeated after that, as after every failure.
	SetUpTimeout time.Duration
	// DeviceHolder keeps block volumes' devices from being replaced; nil means
	// loop devices, as the kubelet's, for which the node needs the kernel's loop
	// module.
	DeviceHolder DeviceHolder
	// SELinux says which volumes are mounted with a label, and how this node labels
	// containers' files ([selinux.ReadNodeLabels]). Its zero value means a node
	// without SELinux.
	SELinux selinux.Policy
	// Events takes events about pods; nil: none are sent.
	Events volume.EventSink
	// Tracer records a span for each SetUpPod and TearDownPod ("SetUpPod", "TearDownPod"), below
	// the span of its context, and for each operation on a volume ("SetUp", "TearDown"), below that
	// of Run's context, with its steps as children. Nil: nothing is recorded, at no cost.
	Tracer volume.Tracer
	// HostFiles is the host's file system; nil means this process's.
	HostFiles volume.HostFiles
	// Logger takes what a node's owner may want to know; nil means silence.
	Logger *slog.Logger

	kubeletDir string // where a kubelet is looked for, in tests; else ProcDir
}

// New validates the configuration, does no I/O, and returns a manager that
// waits for its Run. A configuration that cannot work is a
// *volume.InvalidSpecError or an error of volume.VolumePluginMgr.InitPlugins.
func New(config Config) (*Manager, error) {
	if err := config.check(); err != nil {
		return nil, err
	}
	if config.Mounter == nil {
		config.Mounter = host.New(host.Config{Logger: config.Logger})
	}
	config.Mounter = host.Wrap(config.Mounter, config.Logger)
	if config.Logger == nil {
		config.Logger = slog.New(slog.DiscardHandler)
	}
	if config.SetUpTimeout <= 0 {
		config.SetUpTimeout = 2 * time.Minute
	}
	if config.DeviceHolder == nil {
		config.DeviceHolder = blockmap.LoopHolder{}
	}
	host := config.host()
	plugins, err := volume.NewVolumePluginMgr(config.Plugins, host)
	if err != nil {
		return nil, err
	}
	return newManager(config, host, plugins), nil
}

func (c Config) check() error {
	if !filepath.IsAbs(c.RootDir) || filepath.Clean(c.RootDir) == "/" {
		return volume.Invalid("RootDir", "%q must be an absolute path below /", c.RootDir)
	}
	if err := volume.CheckPathSegment("NodeName", c.NodeName); err != nil {
		return err
	}
	if c.Objects == nil {
		return volume.Invalid("Objects", "must say where API objects come from")
	}
	if len(c.Plugins) == 0 {
		return volume.Invalid("Plugins", "must not be empty; plugins.All() has those that need nothing special")
	}
	return nil
}

func (c Config) host() *volume.Host {
	read := objects.Roles{Source: c.Objects}
	host := &volume.Host{
		RootDir:         filepath.Clean(c.RootDir),
		NodeName:        types.NodeName(c.NodeName),
		Mounter:         c.Mounter,
		Secrets:         read,
		ConfigMaps:      read,
		Tokens:          c.Tokens,
		PodCertificates: c.PodCertificates,
		TrustBundles:    cmp.Or[volume.TrustBundleGetter](c.TrustBundles, read),
		Allocatable:     c.Allocatable,
		CSIDrivers:      cmp.Or[volume.CSIDriverGetter](c.CSIDrivers, read),
		Attachments:     c.Attachments,
		CSINode:         c.CSINode,
		Endpoints:       read,
		Events:          c.Events,
		HostFiles:       c.HostFiles,
	}
	return host
}

// DeviceHolder keeps a block volume's device open while a pod has it, so that
// the kernel cannot give its number to another device: else a device that was
// detached and another attached would be the pod's, and no one would know.
// A hold outlives the process.
//
// Both calls may block as long as the device does. The manager waits no longer
// than an operation's context allows, makes one call for a path at a time, and
// keeps its root directory locked until each has returned.
type DeviceHolder interface {
	// Hold holds the device at path, a bind mount of its node. Held already is
	// success.
	Hold(path string) error
	// Release ends the hold; none is success, also where path is gone.
	Release(path string) error
}
