package localdiscovery

import (
	"errors"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// State says what became of something that was found.
type State string

const (
	// StateOffered is a disk that was offered just now.
	StateOffered State = "Offered"
	// StateKnown is a disk that was offered before.
	StateKnown State = "Known"
	// StateRefused is a disk that is not offered; Found.Err says why.
	StateRefused State = "Refused"
	// StateFailed: it could not be read or stored this time; Found.Err says why.
	StateFailed State = "Failed"
	// StateMissing is a PersistentVolume whose disk is not at its path; Found.Err
	// says what is there.
	StateMissing State = "Missing"
)

// Found is something in the directory of a [Class], or a PersistentVolume of it
// whose disk is missing.
type Found struct {
	// Path is where it is.
	Path string
	// StorageClass is the class's.
	StorageClass string
	State        State
	// Volume is the PersistentVolume's name; with state Refused, the name of the one
	// that stands in its way, or empty.
	Volume string
	// ID is the name of the disk; see [VolumeIDAnnotation]. Empty where it has none.
	ID string
	// Mode is how it is, or would be, offered.
	Mode v1.PersistentVolumeMode
	// FSType is the type of a file system that is mounted, or that a device shall
	// be given.
	FSType string
	// Source is the device or other source that is mounted, or the kernel's name
	// of the device.
	Source string
	// Capacity is the size of the file system or device; zero where it is not
	// known.
	Capacity resource.Quantity
	// ReadOnly says that nothing can be written to it.
	ReadOnly bool
	// Err says why it is not offered; nil if it is. With state Refused it matches
	// one of the sentinels of this package.
	Err error
}

// Why something is not offered; found with errors.Is in Found.Err.
var (
	// ErrNoVolume is of a file that is neither a mount point nor a block device.
	ErrNoVolume = errors.New("it is neither a mount point nor a block device")
	// ErrHidden is of a mount point that another mount hides.
	ErrHidden = errors.New("another mount hides it")
	// ErrSeenTwice is of a disk that is offered by another path already.
	ErrSeenTwice = errors.New("the same disk is found at another path")
	// ErrPathTaken is of another disk at the path of a PersistentVolume.
	ErrPathTaken = errors.New("a PersistentVolume has this path, and it is not this disk")
	// ErrInUse is of a device that is mounted, or otherwise used.
	ErrInUse = errors.New("the device is in use")
	// ErrPartitioned is of a device with a partition table.
	ErrPartitioned = errors.New("the device has a partition table")
	// ErrUnidentified is of what nothing tells from another disk.
	ErrUnidentified = errors.New("nothing tells this disk from another one")
	// ErrEmpty is of a device without size.
	ErrEmpty = errors.New("it has no size")
	// ErrWrongMode is of mount points in a class that offers devices only.
	ErrWrongMode = errors.New("the class offers block devices only")
)
