package mount

import (
	"os"
	"path/filepath"
	"strings"
)

// sourceOf is the source as the mount table shall show it: the type where
// there is none, and of a device the name behind its links, as with mount(8).
func sourceOf(r Request) string {
	if r.Source == "" {
		return r.FSType
	}
	if !strings.HasPrefix(r.Source, "/dev/") {
		return r.Source
	}
	real, err := filepath.EvalSymlinks(r.Source)
	if err != nil {
		return r.Source // the kernel says what is wrong with it
	}
	return mapperName(real)
}

// mapperName is the name of a device-mapper device that people know, as mount(8)
// shows it, for its number; other devices are left alone.
func mapperName(device string) string {
	number, ok := strings.CutPrefix(device, "/dev/dm-")
	if !ok {
		return device
	}
	name, err := os.ReadFile("/sys/block/dm-" + number + "/dm/name")
	if err != nil {
		return device
	}
	return "/dev/mapper/" + strings.TrimSpace(string(name))
}
