package iscsi

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/durable"
	"github.com/podvol/podvol/util/retry"
	"github.com/podvol/podvol/volume/internal/podmount"
	"github.com/podvol/podvol/volume/plugins/iscsi/internal/openiscsi"
)

// recordName is the kubelet's file in the directory of a device, below its mount.
const recordName = "iscsi.json"

// record is the kubelet's iscsiDisk as it is on disk, with the fields that are podvol's. The
// kubelet ignores those. It has no secrets.
type record struct {
	VolName, Iqn, Iface, Lun, InitIface, InitiatorName string
	Portals                                            []string

	// ID and Size are the disk's, once it was found.
	ID   string `json:"podvolDisk,omitempty"`
	Size int64  `json:"podvolSize,omitempty"`
	// ReadOnly: nothing writes to it by this volume.
	ReadOnly bool `json:"podvolReadOnly,omitempty"`
}

func (s *source) record(volumeName string) record {
	return record{
		VolName: volumeName, Iqn: s.IQN, Iface: s.face, Lun: strconv.Itoa(int(s.Lun)), InitIface: s.base,
		InitiatorName: s.lun.Interface.InitiatorName, Portals: s.portals, ReadOnly: s.deviceReadOnly,
	}
}

// lunOf returns the LUN of a record, with the checks of a manifest's.
func (r *record) lunOf() (openiscsi.LUN, error) {
	number, err := strconv.ParseUint(r.Lun, 10, 8)
	lun := openiscsi.LUN{IQN: r.Iqn, Number: int(number), Interface: openiscsi.Interface{Name: r.Iface, InitiatorName: r.InitiatorName}}
	if r.InitiatorName != "" {
		lun.Interface.Base = r.InitIface
	}
	for _, given := range r.Portals {
		_, portal, bad := parsePortal(given)
		err = errors.Join(err, bad)
		lun.Portals = append(lun.Portals, portal)
	}
	err = errors.Join(err, checkIQN("Iqn", r.Iqn))
	if r.InitiatorName != "" {
		err = errors.Join(err, checkIQN("InitiatorName", r.InitiatorName))
	}
	if err == nil && (len(lun.Portals) == 0 || !ownInterfaceName().MatchString(r.Iface)) {
		err = errors.New("it names no portal or no interface")
	}
	return lun, err
}

// readRecord reads the record of a device. Without one, where a crash or the kubelet left none or
// an empty file, it has what the device's path says. ok is false if that is no device's path.
func readRecord(file, device string) (r record, ok bool, err error) {
	b, err := os.ReadFile(file)
	if err == nil && len(bytes.Trim(b, "\x00")) > 0 { // a power cut leaves zeros of what was not synced
		if err := json.Unmarshal(b, &r); err != nil {
			return r, false, fmt.Errorf("%s is no record of a device, and may name portals that its directory does not: log out of them, and remove the file: %w", file, err)
		}
		return r, true, nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrInvalid) {
		return r, false, err
	}
	of, ok := parsePath(device)
	return record{Iqn: of.iqn, Iface: of.face, Lun: strconv.Itoa(of.lun), InitIface: of.face, Portals: []string{of.portal}}, ok, nil
}

func (p *plugin) writeRecord(r *record, file string) error {
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	p.writing.RLock()
	defer p.writing.RUnlock()
	// Another volume that goes may remove the directory as long as that is empty.
	return retry.Patiently(unix.ENOENT, func() error {
		if _, err := podmount.MakeDir(filepath.Dir(file), 0o750); err != nil {
			return err
		}
		return durable.WriteFile(file, append(b, '\n'), 0o600)
	})
}

// removeRecord removes a record, and what writers that were killed have left beside it: the
// directory could not be removed with that.
func (p *plugin) removeRecord(file string) error {
	p.writing.Lock()
	defer p.writing.Unlock()
	if err := durable.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	_, err := durable.Sweep(filepath.Dir(file))
	return err
}

// blockRecord is the file of a block volume. It is beside the directory of the pods' binds,
// which holds nothing else.
func blockRecord(mapPath string) string { return mapPath + "." + recordName }

// blockDir has the directories and records of block volumes.
func (p *plugin) blockDir() string {
	return filepath.Join(p.Host.GetPluginDir(PluginName), "volumeDevices")
}

// placesOf returns where else than at file, a record, a LUN is staged, or was begun to be: the
// directories of other volumes, and the records of block volumes.
func (p *plugin) placesOf(iqn, lun, file string) (others []string, err error) {
	for _, dir := range []string{p.Host.GetPluginDir(PluginName), p.blockDir()} {
		places, err := placesIn(dir)
		if err != nil {
			return nil, err
		}
		for _, at := range places {
			of, ok := parsePath(strings.TrimSuffix(at, "."+recordName))
			if ok && of.iqn == iqn && strconv.Itoa(of.lun) == lun && at != file && at != filepath.Dir(file) && blockRecord(at) != file {
				others = append(others, at)
			}
		}
	}
	return others, nil
}

// placesIn returns the directories and records of volumes in the directories of interfaces
// below dir.
func placesIn(dir string) (places []string, err error) {
	faces, err := listed(dir)
	if err != nil {
		return nil, err
	}
	for _, face := range faces {
		if !facePart().MatchString(face) {
			continue
		}
		names, err := listed(filepath.Join(dir, face))
		if err != nil {
			return nil, err
		}
		for _, name := range names {
			places = append(places, filepath.Join(dir, face, name))
		}
	}
	return places, nil
}

// listed returns the names in a directory, which may be missing.
func listed(dir string) (names []string, err error) {
	all, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, e := range all {
		names = append(names, e.Name())
	}
	return names, nil
}
