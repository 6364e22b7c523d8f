package flexvolume

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/util/durable"
	"github.com/podvol/podvol/util/pathin"
	"github.com/podvol/podvol/util/secretopt"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/podmount"
	"github.com/podvol/podvol/volume/plugins/flexvolume/internal/driver"
)

// recordName is the file of a mount, in a directory of its own.
const recordName = "flexvolume.json"

// record is what is known of a mount after a crash. It is written before the driver is called.
type record struct {
	Source v1.FlexPersistentVolumeSource
	// Inline: Source is that of a pod's volume. Name is the volume's for the driver.
	Inline bool
	Name   string
	// Capabilities are the driver's.
	Capabilities driver.Capabilities
	// Mounted: the driver's call has succeeded. Ready: the files have their group, too.
	Mounted, Ready bool
	// Secrets tells the secret options from others; empty: there are none.
	Secrets string
	// Attached is the name by which this node began to attach the volume; empty: it did not.
	Attached string
}

func (s *source) record(d *driver.Driver) *record {
	r := &record{Source: *s.FlexPersistentVolumeSource.DeepCopy(), Inline: s.inline, Name: s.name, Capabilities: d.Capabilities}
	r.Source.Options, r.Source.ReadOnly = secretopt.Parameters(s.Options), s.readOnly
	r.Secrets = s.markOf(rand.Text())
	return r
}

// saltLength is how long a text of package rand is.
const saltLength = 26

// markOf is a record's Secrets for a salt, with which it begins: passwords can be short.
func (s *source) markOf(salt string) string {
	secret := s.secretOptions()
	if len(secret) == 0 {
		return ""
	}
	b, _ := json.Marshal(secret) // strings only
	sum := sha256.Sum256([]byte(salt + string(b)))
	return salt + hex.EncodeToString(sum[:])
}

// checkShared refuses a pod whose inline volume is mounted by another pod's, if it has other
// secrets than that, or wants to write where that only reads: the driver has not seen its own.
func (s *source) checkShared(r *record) error {
	what := "other secret options"
	switch {
	case !s.inline:
		return nil
	case r.Secrets == s.markOf(r.Secrets[:min(saltLength, len(r.Secrets))]):
		if !r.Source.ReadOnly || s.readOnly {
			return nil
		}
		what = "readOnly"
	}
	return volume.NothingDone(&volume.Failure{Cause: volume.ErrInUse, Subject: s.specName, What: fmt.Sprintf("the volume of driver %s is mounted on this node by a pod that has it with %s", s.Driver, what),
		Next: "use the same options in all pods, or wait until the other pod has ended"})
}

// spec is the volume of a record, by its name in the manifest.
func (r *record) spec(name string) *volume.Spec {
	if r.Inline {
		v := &v1.Volume{Name: name}
		v.FlexVolume = &v1.FlexVolumeSource{Driver: r.Source.Driver, FSType: r.Source.FSType, ReadOnly: r.Source.ReadOnly, Options: r.Source.Options}
		if r.Source.SecretRef != nil {
			v.FlexVolume.SecretRef = &v1.LocalObjectReference{Name: r.Source.SecretRef.Name}
		}
		return volume.NewSpecFromVolume(v)
	}
	pv := &v1.PersistentVolume{}
	pv.Name = name
	pv.Spec.VolumeMode = new(v1.PersistentVolumeFilesystem)
	pv.Spec.FlexVolume = &r.Source
	return volume.NewSpecFromPersistentVolume(pv, r.Source.ReadOnly)
}

// place is where a volume is mounted, for a pod or once for the node.
type place struct {
	// dir is the mount point. records is the directory of its record. What is empty between that
	// and top is removed with it.
	dir, records, top string
}

// podPlace is a pod's place, of which dir may be another one.
func (p *plugin) podPlace(dir string, podUID types.UID, name string) place {
	marks := p.Host.GetPodPluginDir(podUID, PluginName)
	return place{dir: dir, records: filepath.Join(marks, name), top: filepath.Dir(marks)}
}

// placeAt is the place of a pod's volume by its path.
func (p *plugin) placeAt(volumePath, name string) (place, error) {
	uid := types.UID(filepath.Base(filepath.Dir(filepath.Dir(filepath.Dir(volumePath)))))
	if _, err := volume.NewUnmountedPodVolume(p.Host, PluginName, name, uid); err != nil {
		return place{}, err
	}
	return p.podPlace(volumePath, uid, name), nil
}

// mountName is the mount point of a device, beside its record.
const mountName = "mount"

// devicePlace is where a volume's device is mounted.
func (p *plugin) devicePlace(s *source) place {
	return p.placeBelow(filepath.Join(p.Host.GetPluginDir(PluginName), driver.DirName(s.Driver), s.name))
}

func (p *plugin) placeBelow(dir string) place {
	top := filepath.Dir(filepath.Dir(p.Host.GetPluginDir(PluginName))) // of all plugins
	return place{dir: filepath.Join(dir, mountName), records: dir, top: top}
}

// placeOf is the place of a device by its path.
func (p *plugin) placeOf(deviceMountPath string) (place, error) {
	dir := filepath.Dir(deviceMountPath)
	if _, ok := driver.NameOf(filepath.Base(filepath.Dir(dir))); !ok || filepath.Base(deviceMountPath) != mountName || filepath.Dir(filepath.Dir(dir)) != p.Host.GetPluginDir(PluginName) {
		return place{}, volume.Invalid("deviceMountPath", "%q is not where this plugin mounts", deviceMountPath)
	}
	return p.placeBelow(dir), nil
}

func (at place) file() string { return filepath.Join(at.records, recordName) }

// read returns the record; ok is false if there is none.
func (at place) read() (r record, ok bool, err error) {
	b, err := os.ReadFile(at.file())
	if errors.Is(err, fs.ErrNotExist) {
		return r, false, nil
	}
	if err == nil {
		err = json.Unmarshal(b, &r)
	}
	if err != nil {
		return record{}, false, fmt.Errorf("what is mounted at %s is not known, as %s cannot be read: %w; unmount it and remove that file", at.dir, at.file(), err)
	}
	return r, true, nil
}

func (at place) write(r *record) error {
	b, err := json.Marshal(r)
	if err == nil {
		_, err = podmount.MakeDir(at.records, 0o750)
	}
	if err != nil {
		return err
	}
	return durable.WriteFile(at.file(), append(b, '\n'), 0o600)
}

// remove removes the mount point, which is not mounted, and then the record with its directory.
func (at place) remove() error {
	if err := podmount.RemoveDir(at.dir); err != nil {
		return err
	}
	if err := durable.Remove(at.file()); err != nil {
		return err
	}
	if _, err := durable.Sweep(at.records); err != nil {
		return err
	}
	if err := podmount.RemoveDir(at.records); err != nil {
		return err
	}
	for dir := filepath.Dir(at.records); pathin.Strictly(at.top, dir); dir = filepath.Dir(dir) {
		err := podmount.RemoveDir(dir)
		if _, used := errors.AsType[*podmount.NotEmptyError](err); used {
			return nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}
