//go:build linux

package containermounts

import (
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/eintr"
)

// openPlace opens a path of the manager's own, or one that a manifest may name
// freely, without opening the file.
func openPlace(path string) (*os.File, error) {
	fd, err := eintr.Get(func() (int, error) { return unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0) })
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

// identifyAt identifies the file at a path, which it does not open.
func identifyAt(path string) (fileIdentity, error) {
	place, err := openPlace(path)
	if err != nil {
		return fileIdentity{}, err
	}
	defer place.Close()
	return identify(place)
}

// nameOf returns the name of an open file, without links.
func nameOf(file *os.File) (string, error) {
	return os.Readlink(fmt.Sprintf("/proc/self/fd/%d", file.Fd()))
}

// OCIDevices returns the devices for a bundle's config.json, with their numbers,
// permissions and owners on the host, and the rules that let the container use
// them. It looks at each device, which cannot hang: they are the node's. The
// error is an [*fs.PathError], with ENODEV for anything but a device.
func OCIDevices(devices []Device) ([]OCIDevice, []OCIDeviceRule, error) {
	made := make([]OCIDevice, 0, len(devices))
	rules := make([]OCIDeviceRule, 0, len(devices))
	for _, d := range devices {
		var st unix.Stat_t
		if err := eintr.Do(func() error { return unix.Stat(d.Source, &st) }); err != nil {
			return nil, nil, &fs.PathError{Op: "stat", Path: d.Source, Err: err}
		}
		kind := ociDeviceType(st.Mode)
		if kind == "" {
			return nil, nil, fmt.Errorf("volume %q is no device: %w", d.Volume, &fs.PathError{Op: "stat", Path: d.Source, Err: unix.ENODEV})
		}
		major, minor := int64(unix.Major(st.Rdev)), int64(unix.Minor(st.Rdev))
		made = append(made, OCIDevice{Path: d.Destination, Type: kind, Major: major, Minor: minor, FileMode: st.Mode & 0o777, UID: st.Uid, GID: st.Gid})
		rules = append(rules, OCIDeviceRule{Allow: true, Type: kind, Major: major, Minor: minor, Access: d.Permissions})
	}
	return made, rules, nil
}

func ociDeviceType(mode uint32) string {
	switch mode & unix.S_IFMT {
	case unix.S_IFBLK:
		return "b"
	case unix.S_IFCHR:
		return "c"
	}
	return ""
}
