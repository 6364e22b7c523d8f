package csi

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

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
// directory of both, with what crashed writers of the data have left. Nothing else is removed
// but what is empty and not mounted.
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
	if _, err := durable.Sweep(dir); err != nil {
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
// beside each global mount, and one for each block volume. Where one is torn, or is not that
// of the directory's volume, a spec that was seen tells; else the device is in doubt.
func (p *Plugin) FindStaged(context.Context) (found []volume.StagedDevice, err error) {
	drivers, err := readDirs(p.disk.Dir())
	errs := []error{err}
	for _, driver := range drivers {
		volumes, err := readDirs(filepath.Join(p.disk.Dir(), driver))
		errs = append(errs, err)
		for _, name := range volumes {
			d, err := p.disk.stagedIn(driver, name, &p.known)
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
func (d disk) stagedIn(driver, name string, known *volumeCache) (*volume.StagedDevice, error) {
	if driver == "volumeDevices" {
		return d.stagedBlock(name, known)
	}
	dir := filepath.Join(d.Dir(), driver, name)
	data, err := csivolume.ReadData(dir)
	if err != nil {
		return nil, err
	}
	place := filepath.Join(dir, csivolume.GlobalDir)
	legacy := driver == csivolume.LegacyDir
	mayBe := func(volumeName string) bool { // by the directory, which is named by them
		driver, handle, _ := strings.Cut(volumeName, "^")
		return legacy || d.GlobalMount(&source{Driver: driver, Handle: handle}) == place
	}
	if data == nil {
		if s, seen := known.find(knownKey{name: place}); seen {
			data = &volData{DriverName: s.driver, VolumeHandle: s.handle}
		} else {
			return d.inDoubt(dir, place, mayBe)
		}
	}
	specName := name
	if !legacy {
		specName = "pv-" + name[:min(len(name), 16)] // which the data does not tell
		if own := d.GlobalMount(&source{Driver: data.DriverName, Handle: data.VolumeHandle}); own != place {
			return d.inDoubt(dir, place, func(name string) bool { return mayBe(name) || name == data.DriverName+"^"+data.VolumeHandle })
		}
	}
	return &volume.StagedDevice{Spec: data.Spec(specName, v1.PersistentVolumeFilesystem), Path: place}, nil
}

// inDoubt is a device of which nothing says which volume it is; nil: there are no traces of one.
func (d disk) inDoubt(dir, place string, mayBe func(string) bool) (*volume.StagedDevice, error) {
	if trace, err := d.StagedTrace(dir); trace == "" || err != nil {
		return nil, err
	}
	return &volume.StagedDevice{Path: place, MayBe: mayBe, Err: unidentified(dir)}, nil
}

func (d disk) stagedBlock(name string, known *volumeCache) (*volume.StagedDevice, error) {
	data, err := csivolume.ReadData(d.BlockData(name))
	if err != nil {
		return nil, err
	}
	if s, seen := known.find(knownKey{name: name}); data == nil && seen {
		data = &volData{DriverName: s.driver, VolumeHandle: s.handle}
	}
	if torn, err := d.IsThere(filepath.Join(d.BlockData(name), csivolume.DataFile)); data == nil {
		if err != nil || !torn { // staging and publish have no data
			return nil, err
		}
		return d.inDoubt(d.BlockData(name), d.BlockStaging(name), func(string) bool { return true })
	}
	published, err := os.ReadDir(filepath.Dir(d.BlockPublish(name, "any")))
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return &volume.StagedDevice{Spec: data.Spec(name, v1.PersistentVolumeBlock), Path: d.BlockStaging(name), Published: err != nil || len(published) > 0}, err
}
