package csivolume

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
)

// DataFile is the file of a volume's [Data].
const DataFile = "vol_data.json"

// GlobalDir is where a volume is staged, beside its data.
const GlobalDir = "globalmount"

// LegacyDir holds the devices of kubelets before 1.24, by the names of their PersistentVolumes.
const LegacyDir = "pv"

// Data is the content of vol_data.json: all that the kubelet keeps of a volume.
type Data struct {
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

// IsKnown reports whether the data names a volume of a driver. Names from disk are
// checked like names from specs.
func (d *Data) IsKnown() bool {
	return d != nil && CheckDriverName("driverName", d.DriverName) == nil && CheckHandle(d.VolumeHandle) == nil
}

// ReadData returns the data in a directory; nil: there is none, or it is empty or torn.
func ReadData(dir string) (*Data, error) {
	text, err := os.ReadFile(filepath.Join(dir, DataFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	d := new(Data)
	if json.Unmarshal(text, d) != nil || !d.IsKnown() {
		return nil, nil
	}
	return d, nil
}

// Lifecycle is the word of vol_data.json for inline and for persistent volumes.
func Lifecycle(inline bool) string {
	if inline {
		return string(storagev1.VolumeLifecycleEphemeral)
	}
	return string(storagev1.VolumeLifecyclePersistent)
}

// Spec returns a spec with the fields that vol_data.json has: enough to unmount the volume.
func (d *Data) Spec(volumeName string, mode v1.PersistentVolumeMode) *volume.Spec {
	if d.Lifecycle == Lifecycle(true) {
		return volume.NewSpecFromVolume(&v1.Volume{Name: volumeName, VolumeSource: v1.VolumeSource{CSI: &v1.CSIVolumeSource{Driver: d.DriverName}}})
	}
	pv := &v1.PersistentVolume{}
	pv.Name = volumeName
	pv.Spec.CSI = &v1.CSIPersistentVolumeSource{Driver: d.DriverName, VolumeHandle: d.VolumeHandle}
	pv.Spec.VolumeMode = &mode
	return volume.NewSpecFromPersistentVolume(pv, false)
}

// Disk is the drivers' part of the node's directories.
type Disk struct{ Host volume.VolumeHost }

// IsThere reports whether there is a file or directory at a place. It only reads the parent:
// a mount there may hang.
func (d Disk) IsThere(place string) (bool, error) {
	entries, err := os.ReadDir(filepath.Dir(place))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	for _, e := range entries {
		if e.Name() == filepath.Base(place) {
			return true, nil
		}
	}
	return false, nil
}

// StagedTrace returns what shows in a device's directory that something may be staged there;
// empty: nothing does.
func (d Disk) StagedTrace(dir string) (place string, err error) {
	for _, name := range []string{GlobalDir, DataFile} {
		if there, err := d.IsThere(filepath.Join(dir, name)); there || err != nil {
			return filepath.Join(dir, name), err
		}
	}
	return "", nil
}

// Dir is the plugin's directory.
func (d Disk) Dir() string { return d.Host.GetPluginDir(PluginName) }

// RootDir is this root directory, which the machine's table of staged volumes tells from others.
func (d Disk) RootDir() string {
	return filepath.Dir(filepath.Dir(filepath.Dir(d.Dir()))) // <root>/plugins/kubernetes.io/csi
}

// OpsDir is where operations on volumes below this root directory are noted.
func (d Disk) OpsDir() string { return filepath.Join(d.RootDir(), "podvol", "csi") }

// DeviceDir is the directory of a volume that is staged once for the node.
func (d Disk) DeviceDir(s *Source) string {
	sum := sha256.Sum256([]byte(s.Handle))
	return filepath.Join(d.Dir(), s.Driver, hex.EncodeToString(sum[:]))
}

// GlobalMount is where a volume with a file system is staged.
func (d Disk) GlobalMount(s *Source) string { return filepath.Join(d.DeviceDir(s), GlobalDir) }

// BlockDir is the directory of all block volumes, or a place below it.
func (d Disk) BlockDir(sub ...string) string {
	return filepath.Join(append([]string{d.Dir(), "volumeDevices"}, sub...)...)
}

// BlockStaging is where a block volume is staged.
func (d Disk) BlockStaging(volumeName string) string { return d.BlockDir("staging", volumeName) }

// BlockData is the directory of a block volume's [DataFile].
func (d Disk) BlockData(volumeName string) string { return d.BlockDir(volumeName, "data") }

// BlockPublish is where a block volume is published to a pod.
func (d Disk) BlockPublish(volumeName string, pod types.UID) string {
	return d.BlockDir("publish", volumeName, string(pod))
}
