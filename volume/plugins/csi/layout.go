package csi

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/util/durable"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/podmount"
)

const (
	dataFile  = "vol_data.json"
	dirMode   = 0o750
	dataMode  = 0o644 // the kubelet's; it has no secrets
	globalDir = "globalmount"
	mountDir  = "mount"
)

// volData is the content of vol_data.json: all that the kubelet keeps of a volume.
type volData struct {
	SpecVolID    string `json:"specVolID,omitempty"`
	VolumeHandle string `json:"volumeHandle"`
	DriverName   string `json:"driverName"`
	NodeName     string `json:"nodeName,omitempty"`
	AttachmentID string `json:"attachmentID,omitempty"`
	Lifecycle    string `json:"volumeLifecycleMode,omitempty"`
	SELinux      string `json:"seLinuxMountContext"`
	// Owning is podvol's own, which the kubelet does not read: files are still to be
	// given to the pod's fsGroup.
	Owning string `json:"podvol.io/owning,omitempty"`
}

// isKnown reports whether the data names a volume of a driver. Names from disk are
// checked as those from specs are.
func (d *volData) isKnown() bool {
	return d != nil && checkDriverName("driverName", d.DriverName) == nil && checkHandle(d.VolumeHandle) == nil
}

// readData returns the data in a directory; nil: there is none, or it is empty or torn.
func readData(dir string) (*volData, error) {
	text, err := os.ReadFile(filepath.Join(dir, dataFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	d := new(volData)
	if json.Unmarshal(text, d) != nil || !d.isKnown() {
		return nil, nil
	}
	return d, nil
}

// writeData makes the directory with the data, unless it is there. It reports whether
// there was no data before: what an earlier attempt wrote, and did not remove, tells of
// something that may be there.
func writeData(dir string, d *volData) (fresh bool, err error) {
	if _, err := podmount.MakeDir(dir, dirMode); err != nil {
		return false, err
	}
	there, err := readData(dir)
	if err != nil || there != nil && *there == *d {
		return false, err
	}
	text, err := json.Marshal(d)
	if err != nil {
		return false, err
	}
	_, err = os.Lstat(filepath.Join(dir, dataFile))
	fresh = errors.Is(err, fs.ErrNotExist)
	return fresh, durable.WriteFile(filepath.Join(dir, dataFile), text, dataMode)
}

// disk is the plugin's part of the node's directories and mounts.
type disk struct{ host volume.VolumeHost }

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
	if err := durable.Remove(filepath.Join(dir, dataFile)); err != nil {
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
	_, mounted, err := table.Of(d.host.GetMounter()).At(path)
	return mounted, err
}

func (d disk) dir() string { return d.host.GetPluginDir(PluginName) }

// deviceDir is the directory of a volume that is staged once for the node.
func (d disk) deviceDir(s *source) string {
	sum := sha256.Sum256([]byte(s.handle))
	return filepath.Join(d.dir(), s.driver, hex.EncodeToString(sum[:]))
}

func (d disk) globalMount(s *source) string { return filepath.Join(d.deviceDir(s), globalDir) }

// The places of a block volume.

func (d disk) blockDir(sub ...string) string {
	return filepath.Join(append([]string{d.dir(), "volumeDevices"}, sub...)...)
}

func (d disk) blockStaging(volumeName string) string { return d.blockDir("staging", volumeName) }
func (d disk) blockData(volumeName string) string    { return d.blockDir(volumeName, "data") }
func (d disk) blockPublish(volumeName string, pod types.UID) string {
	return d.blockDir("publish", volumeName, string(pod))
}

// identify finds out of which volume a directory is: by its vol_data.json, by a spec that
// was seen, or by the mount table: a pod's mount shows the file system of a device that
// has data. nil: nothing tells. Without a place, the mount table is not asked.
func (p *Plugin) identify(dir, place string, key knownKey) (*volData, error) {
	d, err := readData(dir)
	if d != nil || err != nil {
		return d, err
	}
	if s, ok := p.known.find(key); ok {
		return &volData{VolumeHandle: s.handle, DriverName: s.driver, Lifecycle: s.lifecycle()}, nil
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
		if filepath.Base(e.Target) != globalDir || filepath.Dir(filepath.Dir(device)) != d.dir() {
			continue
		}
		if d, err := readData(device); d != nil || err != nil {
			return d, err
		}
	}
	return nil, nil
}

var _ volume.StagedFinder = (*Plugin)(nil)

// legacyDir holds the devices of kubelets before 1.24, by the names of their PersistentVolumes.
const legacyDir = "pv"

// FindStaged implements [volume.StagedFinder] by the kubelet's layout: a vol_data.json
// beside each global mount, and one for each block volume. One that is torn, or is not that
// of the directory's volume, is an error. Block volumes that are published are left out: their
// pods must go first.
func (p *Plugin) FindStaged(context.Context) (found []volume.StagedDevice, err error) {
	drivers, err := readDirs(p.disk.dir())
	errs := []error{err}
	for _, driver := range drivers {
		volumes, err := readDirs(filepath.Join(p.disk.dir(), driver))
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
	dir := filepath.Join(d.dir(), driver, name)
	data, err := readData(dir)
	if err != nil {
		return nil, err
	}
	place := filepath.Join(dir, globalDir)
	if data == nil {
		if there, err := d.isThere(place); err != nil || !there {
			return nil, err
		}
		return nil, unidentified(dir)
	}
	specName := name
	if driver != legacyDir {
		specName = "pv-" + name[:min(len(name), 16)] // which the data does not tell
		if own := d.globalMount(&source{driver: data.DriverName, handle: data.VolumeHandle}); own != place {
			return nil, unidentified(dir)
		}
	}
	return &volume.StagedDevice{Spec: data.spec(specName, v1.PersistentVolumeFilesystem), Path: place}, nil
}

func (d disk) stagedBlock(name string) (*volume.StagedDevice, error) {
	data, err := readData(d.blockData(name))
	if data == nil || err != nil {
		return nil, err // staging and publish have no data
	}
	published, err := os.ReadDir(filepath.Dir(d.blockPublish(name, "any")))
	if err != nil && !errors.Is(err, fs.ErrNotExist) || len(published) > 0 {
		return nil, err
	}
	return &volume.StagedDevice{Spec: data.spec(name, v1.PersistentVolumeBlock), Path: d.blockStaging(name)}, nil
}
