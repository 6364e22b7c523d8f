package csi

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/util/durable"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/podmount"
	"github.com/podvol/podvol/volume/plugins/csi/internal/csivolume"
)

const (
	dirMode  = 0o750
	dataMode = 0o644 // the kubelet's; it has no secrets
	mountDir = "mount"
)

// writeData makes the directory with the data, unless it is there. It reports whether
// there was no data before: what an earlier attempt wrote, and did not remove, tells of
// something that may be there.
func writeData(dir string, d *volData) (fresh bool, err error) {
	if _, err := podmount.MakeDir(dir, dirMode); err != nil {
		return false, err
	}
	there, err := csivolume.ReadData(dir)
	if err != nil || there != nil && *there == *d {
		return false, err
	}
	text, err := json.Marshal(d)
	if err != nil {
		return false, err
	}
	_, err = os.Lstat(filepath.Join(dir, csivolume.DataFile))
	fresh = errors.Is(err, fs.ErrNotExist)
	return fresh, durable.WriteFile(filepath.Join(dir, csivolume.DataFile), text, dataMode)
}

// disk is the plugin's part of the node's directories and mounts.
type disk struct{ csivolume.Disk }

// The layout's words.
type (
	source  = csivolume.Source
	volData = csivolume.Data
)

// removePlace removes what a driver has left at a place, the data beside it and the
// directory of both. Nothing is removed but what is empty and not mounted.
func (d disk) removePlace(place, dir string) error {
	mounted, err := d.isMounted(place)
	if err != nil {
		return err
	}
	if mounted {
		return stillMounted(place, nil)
	}
	if err := podmount.RemovePoint(place); err != nil {
		return err
	}
	if err := durable.Remove(filepath.Join(dir, csivolume.DataFile)); err != nil {
		return err
	}
	if err := podmount.RemoveDir(dir); err != nil {
		return err
	}
	_ = podmount.RemoveDir(filepath.Dir(dir)) // which others may use
	return nil
}

func stillMounted(place string, err error) error {
	if err != nil {
		return err
	}
	return &volume.Failure{Cause: volume.ErrInUse, Subject: place, What: "the driver has answered, and something is still mounted at " + place, Next: "see the driver's log"}
}

func (d disk) isMounted(path string) (bool, error) {
	_, mounted, err := table.Of(d.Host.GetMounter()).At(path)
	return mounted, err
}

// identify finds out of which volume a directory is: by its vol_data.json, by a spec that
// was seen, or by the mount table: a pod's mount shows the file system of a device that
// has data. nil: nothing tells. Without a place, the mount table is not asked.
func (p *Plugin) identify(dir, place string, key knownKey) (*volData, error) {
	d, err := csivolume.ReadData(dir)
	if d != nil || err != nil {
		return d, err
	}
	if s, ok := p.known.find(key); ok {
		return &volData{VolumeHandle: s.handle, DriverName: s.driver, Lifecycle: csivolume.Lifecycle(s.inline)}, nil
	}
	if place == "" {
		return nil, nil
	}
	mounts := table.Of(p.Host.GetMounter())
	own, mounted, err := mounts.At(place)
	if err != nil || !mounted {
		return nil, err
	}
	same, err := mounts.ByDevice(own.Device)
	if err != nil {
		return nil, err
	}
	return p.disk.deviceAmong(same)
}

func (d disk) deviceAmong(entries []mount.Entry) (*volData, error) {
	for _, e := range entries {
		device := filepath.Dir(e.Target)
		if filepath.Base(e.Target) != csivolume.GlobalDir || filepath.Dir(filepath.Dir(device)) != d.Dir() {
			continue
		}
		if d, err := csivolume.ReadData(device); d != nil || err != nil {
			return d, err
		}
	}
	return nil, nil
}

var _ volume.StagedFinder = (*Plugin)(nil)

// FindStaged implements [volume.StagedFinder] by the kubelet's layout: a vol_data.json
// beside each global mount, and one for each block volume. One that is torn, or is not that
// of the directory's volume, is an error.
func (p *Plugin) FindStaged(context.Context) (found []volume.StagedDevice, err error) {
	drivers, err := readDirs(p.disk.Dir())
	errs := []error{err}
	for _, driver := range drivers {
		volumes, err := readDirs(filepath.Join(p.disk.Dir(), driver))
		errs = append(errs, err)
		for _, name := range volumes {
			d, err := p.disk.stagedIn(driver, name)
			errs = append(errs, err)
			if d != nil {
				found = append(found, *d)
			}
		}
	}
	return found, errors.Join(errs...)
}

// readDirs lists the directories in one; a missing one has none.
func readDirs(dir string) (names []string, err error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	for _, e := range entries {
		if e.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names, err
}

// stagedIn is the device of a directory below a driver's, or a like one; nil: there is none.
func (d disk) stagedIn(driver, name string) (*volume.StagedDevice, error) {
	if driver == "volumeDevices" {
		return d.stagedBlock(name)
	}
	dir := filepath.Join(d.Dir(), driver, name)
	data, err := csivolume.ReadData(dir)
	if err != nil {
		return nil, err
	}
	place := filepath.Join(dir, csivolume.GlobalDir)
	if data == nil {
		if there, err := d.IsThere(place); err != nil || !there {
			return nil, err
		}
		return nil, unidentified(dir)
	}
	specName := name
	if driver != csivolume.LegacyDir {
		specName = "pv-" + name[:min(len(name), 16)] // which the data does not tell
		if own := d.GlobalMount(&source{Driver: data.DriverName, Handle: data.VolumeHandle}); own != place {
			return nil, unidentified(dir)
		}
	}
	return &volume.StagedDevice{Spec: data.Spec(specName, v1.PersistentVolumeFilesystem), Path: place}, nil
}

func (d disk) stagedBlock(name string) (*volume.StagedDevice, error) {
	data, err := csivolume.ReadData(d.BlockData(name))
	if data == nil || err != nil {
		return nil, err // staging and publish have no data
	}
	published, err := os.ReadDir(filepath.Dir(d.BlockPublish(name, "any")))
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return &volume.StagedDevice{Spec: data.Spec(name, v1.PersistentVolumeBlock), Path: d.BlockStaging(name), Published: err != nil || len(published) > 0}, err
}
