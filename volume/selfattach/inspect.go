package selfattach

import (
	"os"
	"strings"
	"time"

	"github.com/podvol/podvol/volume"
)

// Attachment is the record of a volume that is attached to this machine, or may be.
type Attachment struct {
	// Path is the record's file.
	Path string
	// Spec is the volume; nil: the record cannot be read, and Err says why.
	Spec *volume.Spec
	// Driver is the CSI driver that has attached it, or the plugin.
	Driver string
	// Attached: it was when the record was written. Else it was being attached or detached.
	Attached bool
	// Since is when the record was written.
	Since time.Time
	Err   error
}

// Inspect reads the records of a directory ([Config].Dir), without a lock: those of a program at
// work may be gone a moment later. A directory that is not there has none.
func Inspect(dir string) ([]Attachment, error) {
	all, damaged, err := records{dir}.load()
	if err != nil {
		return nil, err
	}
	found := make([]Attachment, 0, len(all)+len(damaged))
	for _, one := range all {
		found = append(found, Attachment{Path: records{dir}.path(one.Volume), Spec: one.spec(), Driver: driverOf(one), Attached: one.Step == attached})
	}
	for path, err := range damaged {
		found = append(found, Attachment{Path: path, Err: err})
	}
	for i := range found {
		if info, err := os.Lstat(found[i].Path); err == nil {
			found[i].Since = info.ModTime()
		}
	}
	return found, nil
}

// driverOf is the CSI driver of a volume, or what its unique name has before the last slash.
func driverOf(r *record) string {
	if pv := r.PersistentVolume; pv != nil && pv.Spec.CSI != nil {
		return pv.Spec.CSI.Driver
	}
	name := string(r.Volume)
	return name[:max(0, strings.LastIndexByte(name, '/'))]
}
