package emptydirs

import (
	"io/fs"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/volume"
)

// Options say what the directory shall be.
type Options struct {
	// Medium is "" for the disk that holds the pod's directory, "Memory" for a
	// tmpfs, "HugePages-<size>" for a hugetlbfs with pages of that size.
	Medium v1.StorageMedium
	// SizeBytes limits a tmpfs or hugetlbfs; 0 leaves it to the kernel (half
	// of the memory, and all huge pages). A plain directory has no limit.
	SizeBytes int64
	// Mode is the directory's, permission bits, sticky and setgid, whatever the
	// umask; nil means 0777.
	Mode *fs.FileMode
	// GID gets the directory, with rwx and the setgid bit, so that new files in it
	// belong to the group too; nil leaves the process's group.
	GID *int64
	// Wrapped says that another kind of volume is built in the directory.
	Wrapped bool
}

// defaultMode is what every container may use, whatever its user.
const defaultMode fs.FileMode = 0o777

// normal checks the options and fills in what they leave open.
func (o Options) normal() (Options, error) {
	mode := defaultMode
	if o.Mode != nil {
		mode = *o.Mode
	}
	if mode&^(fs.ModePerm|fs.ModeSticky|fs.ModeSetgid) != 0 {
		return o, volume.Invalid("mode", "%v has bits other than rwx, sticky and setgid", mode)
	}
	if o.SizeBytes < 0 {
		return o, volume.Invalid("emptyDir.sizeLimit", "must not be negative, is %d", o.SizeBytes)
	}
	if o.GID != nil {
		if *o.GID < 0 || *o.GID >= 1<<32-1 {
			return o, volume.Invalid("fsGroup", "%d is not a group id", *o.GID)
		}
		mode |= fs.ModeSetgid | 0o070
	}
	o.Mode = &mode
	return o, nil
}
