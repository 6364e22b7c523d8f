package localdisk

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/util/blockdev"
	"github.com/podvol/podvol/util/eintr"
)

// Identity has the unique names of the disk at a path, the best first. A file
// system's come from [table.FileSystemNames], or where it has none from its
// device, followed by the mounted directory unless that is the root:
// "uuid:0c9e…/vol1". A device's come from [blockdev.Device.Names].
type Identity []string

// Best is the first name, or "".
func (i Identity) Best() string {
	if len(i) == 0 {
		return ""
	}
	return i[0]
}

// Is reports whether one of the names is the recorded one.
func (i Identity) Is(recorded string) bool { return recorded != "" && slices.Contains(i, recorded) }

// Overlaps reports whether the two have something in common: one is the other, or
// a directory that has the other.
func (i Identity) Overlaps(other Identity) bool {
	for _, a := range i {
		for _, b := range other {
			if a == b || strings.HasPrefix(a, withSlash(b)) || strings.HasPrefix(b, withSlash(a)) {
				return true
			}
		}
	}
	return false
}

func withSlash(s string) string {
	if strings.HasSuffix(s, "/") {
		return s
	}
	return s + "/"
}

// FileSystem returns the identity of the file system that an open directory lies
// in, and its mount. It may block. The error is as in [table.Holding].
func FileSystem(t mount.Table, dir *os.File, system blockdev.System) (mount.Entry, Identity, error) {
	e, names, err := table.FileSystemNames(t, dir)
	if err != nil {
		return e, nil, err
	}
	if len(names) == 0 {
		names = namesOfDevice(e, system)
	}
	if e.Root != "/" {
		for i := range names {
			names[i] += e.Root
		}
	}
	return e, names, nil
}

// namesOfDevice are the names of a file system's device.
func namesOfDevice(e mount.Entry, system blockdev.System) []string {
	d, err := system.Open(e.Source, unix.O_RDONLY)
	if err != nil {
		return nil
	}
	defer d.Close()
	if d.Number() != e.Device {
		return nil
	}
	return d.Names()
}

// RecordedID returns the name by which a PersistentVolume knows its disk; empty
// where it does not say.
func RecordedID(pv *v1.PersistentVolume) string {
	if pv == nil {
		return ""
	}
	return pv.Annotations[VolumeID]
}

// OtherDiskError says that another disk, or none, is at a volume's path.
type OtherDiskError struct {
	// Volume is the PersistentVolume, Path its path.
	Volume, Path string
	// Want is the name of its disk; Found the name of the disk there, empty where
	// nothing is mounted.
	Want, Found string
}

func (e *OtherDiskError) Error() string {
	found := "another disk, " + e.Found + ", is there"
	if e.Found == "" {
		found = "its disk is not there"
	}
	return fmt.Sprintf("PersistentVolume %q is %s, but %s at %s: put the volume's disk back there, or, if it is lost, delete the PersistentVolume and its claim",
		e.Volume, e.Want, found, e.Path)
}

// OpenFileSystem opens the directory at a volume's path, which must be a mount
// point that shows the volume. The error is an *[OtherDiskError] where it does
// not, or one of the file system. It may block. Without a recorded name it is an
// *OtherDiskError too.
func OpenFileSystem(t mount.Table, pv *v1.PersistentVolume, system blockdev.System) (*os.File, mount.Entry, error) {
	path := filepath.Clean(pv.Spec.Local.Path)
	other := &OtherDiskError{Volume: pv.Name, Path: path, Want: RecordedID(pv)}
	fd, err := eintr.Get(func() (int, error) { return unix.Open(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0) })
	if errors.Is(err, unix.ENOENT) {
		return nil, mount.Entry{}, other
	}
	if err != nil {
		return nil, mount.Entry{}, &os.PathError{Op: "open", Path: path, Err: err}
	}
	dir := os.NewFile(uintptr(fd), path)
	e, id, err := FileSystem(t, dir, system)
	switch {
	case err != nil:
	case e.Target != path: // it lies in another mount, or a link leads elsewhere
		err = other
	case !id.Is(other.Want):
		other.Found = or(id.Best(), e.Source)
		err = other
	default:
		return dir, e, nil
	}
	dir.Close()
	return nil, mount.Entry{}, err
}

// OpenDevice opens the device at a volume's path, which must be the volume's; see
// [OpenFileSystem]. Flags are as in [blockdev.System.Open].
func OpenDevice(pv *v1.PersistentVolume, system blockdev.System, flags int) (*blockdev.Device, error) {
	other := &OtherDiskError{Volume: pv.Name, Path: pv.Spec.Local.Path, Want: RecordedID(pv)}
	d, err := system.Open(pv.Spec.Local.Path, flags)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENXIO) {
		return nil, other
	}
	if err != nil {
		return nil, err
	}
	if id := DeviceIdentity(d); !id.Is(other.Want) {
		d.Close()
		other.Found = or(id.Best(), d.KernelName())
		return nil, other
	}
	return d, nil
}

// DeviceIdentity returns all names of a device, also its slot's, which is one
// only for volumes of localdiscovery.Class.AllowUnidentified.
func DeviceIdentity(d *blockdev.Device) Identity {
	names := d.Names()
	if slot := d.Slot(); slot != "" {
		names = append(names, slot)
	}
	return names
}

func or(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}
