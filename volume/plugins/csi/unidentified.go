package csi

import (
	"fmt"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/plugins/csi/internal/csivolume"
	"path/filepath"
)

// identifyLeft is identify for a volume that may be gone already: without data, and with
// nothing at the place, nothing was done. shown is a path that the mount table may know;
// empty: none.
func (p *Plugin) identifyLeft(place, shown, dataDir string, keys ...knownKey) (*volData, error) {
	data, err := csivolume.ReadData(dataDir)
	if data != nil || err != nil {
		return data, err
	}
	for _, path := range []string{place, filepath.Join(dataDir, csivolume.DataFile)} {
		there, err := p.disk.IsThere(path)
		if err != nil {
			return nil, err
		}
		if !there {
			continue
		}
		for _, key := range keys {
			if data, err = p.identify(dataDir, shown, key); data != nil || err != nil {
				return data, err
			}
		}
	}
	return nil, nil
}

// removeUnidentified ends the teardown of a volume of which nobody knows the driver.
// Empty directories go; a mount stays, since only its driver can undo it.
func (d disk) removeUnidentified(place, dataDir string) error {
	mounted, err := d.isMounted(place)
	if err != nil {
		return err
	}
	if mounted {
		return &volume.Failure{Cause: ErrUnidentified, Subject: place,
			What: fmt.Sprintf("%s is mounted, and %s, which says by which driver, is missing or empty", place, filepath.Join(dataDir, csivolume.DataFile)),
			Next: "have the driver unpublish it, or unmount it by hand"}
	}
	return d.removePlace(place, dataDir)
}
