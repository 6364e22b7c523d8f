package localdiscovery

import (
	"cmp"
	"context"
	"log/slog"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/util/blockdev"
	"github.com/podvol/podvol/util/blockingcall"
	"github.com/podvol/podvol/volume/claimbinding"
	"github.com/podvol/podvol/volume/internal/localdisk"
	"github.com/podvol/podvol/volume/meter"
	"github.com/podvol/podvol/volume/objects"
)

// DefaultDir is the directory that is looked into where a [Class] names none.
const DefaultDir = "/mnt/disks"

// Annotations of the PersistentVolumes.
const (
	// VolumeIDAnnotation has the name of the disk, such as "uuid:0c9e…" for a file
	// system, with the directory where only one of its directories is mounted, or
	// "id:wwn-0x5000c500a1b2c3d4" for a device.
	VolumeIDAnnotation = localdisk.VolumeID
	// NodeAnnotation has the name of the node.
	NodeAnnotation = localdisk.Node
	// MissingAnnotation says since when and why the volume's disk is not at its path.
	// It is taken away when the disk is back.
	MissingAnnotation = claimbinding.LocalVolumeMissing
)

// Objects is what a [Discoverer] needs of an object store.
type Objects interface {
	objects.Source
	objects.Lister
	objects.Writer
}

// EventRecorder takes events about PersistentVolumes; client-go's recorders are
// some. It must not block. The object is only read.
type EventRecorder interface {
	Event(object runtime.Object, eventType, reason, message string)
}

// Reasons of events.
const (
	// ReasonMissing is of a PersistentVolume whose disk is not at its path any
	// more.
	ReasonMissing = "LocalVolumeMissing"
	// ReasonBack is of one whose disk is there again.
	ReasonBack = "LocalVolumeBack"
)

// Class says how the disks in a directory are offered. It corresponds to an entry
// of the static provisioner's storageClassMap. The zero value offers the disks in
// [DefaultDir].
type Class struct {
	// StorageClass is the class of the volumes, one that waits for its first
	// consumer (provisioner kubernetes.io/no-provisioner). May be empty.
	StorageClass string
	// Dir is the absolute directory that is looked into, not below it; "" means
	// [DefaultDir]. It need not exist yet.
	Dir string
	// NamePattern are the names in the directory that belong to the class, as
	// path.Match has it, several separated by commas; "" means all. What two
	// classes could have, the first has.
	NamePattern string
	// VolumeMode is how devices are offered: as devices, Block or "", or as
	// Filesystem, which a blank device is given when it is used first. Mount points
	// are offered as file systems; with Block they are not.
	VolumeMode v1.PersistentVolumeMode
	// FSType is the file system that a blank device is given; "" is the plugin's
	// default, ext4. It is used with VolumeMode Filesystem only.
	FSType string
	// ReclaimPolicy is the volumes': Retain or "", which keeps the data of a
	// released volume until an administrator decides, or Delete, which cleans it if
	// the plugin is configured to. It is not taken from the StorageClass, whose
	// default is Delete.
	ReclaimPolicy v1.PersistentVolumeReclaimPolicy
	// MountOptions are the volumes'; devices that are offered as such have none.
	MountOptions []string
	// ShareFileSystems offers several directories of one file system, each mounted
	// for itself, as a volume each, as long as none contains another. All have
	// the capacity of the whole, so that together they promise more than there
	// is. Without it only one of them is offered.
	ShareFileSystems bool
	// AllowUnidentified offers devices without any name of their own, such as
	// virtual disks without a serial number, by the slot that they are in. Then
	// another device in the slot is not noticed.
	AllowUnidentified bool
}

// Discoverer offers the disks in the directories of its classes. Its fields must
// not be changed once it is used, nor may it be copied; all methods are safe for
// concurrent use.
type Discoverer struct {
	Objects Objects
	// Mounts is the node's mount table ([table.Of]).
	Mounts mount.Table
	// NodeName is the node; it must be the name that the plugin's host has. The
	// volumes are pinned to HostLabel, the node's label kubernetes.io/hostname; empty
	// means NodeName.
	NodeName, HostLabel string
	// Classes say where to look for disks and how to offer them; none means a zero
	// [Class].
	Classes []Class
	// Labels are the volumes', such as the node's for zone and region.
	Labels map[string]string
	// Provisioner is the value of the annotation pv.kubernetes.io/provisioned-by,
	// which names the volumes' reclaimer; "" means the plugin,
	// kubernetes.io/local-volume. In a cluster whose own controller does not know
	// that plugin's deleter, use a name that is not below kubernetes.io, as the
	// static provisioner does: such volumes it leaves alone.
	Provisioner string
	// Events takes what happens to volumes; nil drops it.
	Events EventRecorder
	// Logger gets each offered disk, and each other one with the reason, once; nil:
	// none.
	Logger *slog.Logger
	// System is where devices are described; its zero value is the process's own
	// machine.
	System blockdev.System
	// Patience is how long a disk may take to answer; the others wait for it once.
	// 0 means ten seconds.
	Patience time.Duration

	meter  meter.Meter
	calls  blockingcall.Group[string]
	passes passes
}

func (d *Discoverer) log() *slog.Logger {
	if d.Logger == nil {
		return slog.New(slog.DiscardHandler)
	}
	return d.Logger
}

func (d *Discoverer) hostLabel() string { return cmp.Or(d.HostLabel, d.NodeName) }

// Discover offers the disks that are there now. It returns all that it has found,
// offered or not, by path, and the PersistentVolumes whose disk is missing. It
// may be repeated: offered disks stay as they are.
//
// The error joins failures that another try may mend: a device or file system
// that could not be read, a store that did not answer. A refused disk is no
// failure; see [Found]. A configuration that cannot work is a
// *[volume.InvalidSpecError].
func (d *Discoverer) Discover(ctx context.Context) ([]Found, error) {
	return d.pass(ctx, true)
}

// Plan is [Discoverer.Discover] that changes nothing: what it would offer has the
// state [StateOffered].
func (d *Discoverer) Plan(ctx context.Context) ([]Found, error) {
	return d.pass(ctx, false)
}
