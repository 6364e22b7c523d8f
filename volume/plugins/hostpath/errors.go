package hostpath

import (
	"github.com/podvol/podvol/volume/internal/provisioned"
	"github.com/podvol/podvol/volume/internal/scrub"
)

// What Provision and Delete say of directories below a base, for [errors.As].
// All are wrapped in a *[volume.Error], as pointers.
type (
	// OccupiedError says that a volume cannot have the path that its class gives
	// it: something is there that is not its own, and was not touched.
	OccupiedError = provisioned.OccupiedError
	// NestedError says that a volume would lie in another volume, or around one.
	NestedError = provisioned.NestedError
	// ReplacedError says that another directory is where a volume's was made. It
	// is kept.
	ReplacedError = provisioned.ReplacedError
	// NoBookError says that a volume is to be deleted below a base in which none
	// was ever made: its disk may not be mounted. Nothing was touched.
	NoBookError = provisioned.NoBookError
	// LostError says that a volume's directory is gone, and its data with it.
	LostError = provisioned.LostError
	// TrashedError says that the deletion of a volume's directory was begun, and
	// where what is left of it is now.
	TrashedError = provisioned.TrashedError
	// DamagedError says that the mark of a volume cannot be read. The volume's
	// directory is kept.
	DamagedError = provisioned.DamagedError
	// ExposedError says that a base's directory .podvol could be written by
	// others, and is not trusted.
	ExposedError = provisioned.ExposedError
	// ForeignError says that a base's directory .podvol belongs to another user
	// than this process, and is not trusted.
	ForeignError = provisioned.ForeignError
	// ModeError says that the file system does not keep the mode that the class
	// asks for.
	ModeError = provisioned.ModeError
	// BusyError says that others changed the same directories at every try; it
	// matches EAGAIN.
	BusyError = provisioned.BusyError
	// DirectoryError is a step that the file system has refused. It wraps the
	// errno.
	DirectoryError = provisioned.Error
	// VolumeOwner is the volume and the claim that a directory was made for, as
	// these errors name them.
	VolumeOwner = provisioned.Owner
)

// What a recycler's error may match.
var (
	// ErrNoLonger says that an emptying ended in its middle because the host's
	// [volume.ReleaseVerifier] does not let the volume be emptied any more. Its
	// reason is wrapped beside it.
	ErrNoLonger = scrub.ErrNoLonger
	// ErrOtherFileSystem says that the archive is on another file system than the
	// volume, or reached through another mount, so that nothing can be moved
	// there.
	ErrOtherFileSystem = scrub.ErrOtherFileSystem
)
