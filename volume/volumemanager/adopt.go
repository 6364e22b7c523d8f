package volumemanager

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/mountrecord"
	"github.com/podvol/podvol/volume/volumemanager/internal/rootdir"
)

// ErrKubeletRuns says that a kubelet runs on this machine, whose volumes must
// not be taken over under its hands.
var ErrKubeletRuns = errors.New("a kubelet runs on this machine; stop it before its volumes are adopted")

// refuseKubelet fails while a process called kubelet runs.
func (c Config) refuseKubelet() error {
	proc := cmp.Or(c.kubeletDir, rootdir.ProcDir)
	for _, pid := range rootdir.Processes(proc) {
		if rootdir.CommandOf(proc, pid) == "kubelet" {
			return fmt.Errorf("%w (process %d)", ErrKubeletRuns, pid)
		}
	}
	return nil
}

// adopt makes a record for each directory of a volume that has none. What no
// plugin knows is left alone.
func (m *Manager) adopt(ctx context.Context, mounted rootdir.Mounts) error {
	dirs, err := rootdir.VolumeDirs(m.host.RootDir)
	if err != nil {
		return err
	}
	for _, key := range dirs {
		if m.isRecorded(key) {
			continue
		}
		if err := m.adoptOne(ctx, key, mounted); err != nil {
			m.log.Warn("a volume cannot be adopted and is left alone", "podUID", key.PodUID, "plugin", key.Plugin, "volume", key.Spec, "error", err)
		}
	}
	return nil
}

func (m *Manager) isRecorded(key rootdir.Key) bool { return m.volumeAt(key) != nil }

// volumeAt returns the volume of a directory that is there; nil: none.
func (m *Manager) volumeAt(key rootdir.Key) *podVolume {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.pods[key.PodUID].find(func(s *podVolume) bool { return s.actual.exists() && s.actual.key == key })
}

func (m *Manager) adoptOne(ctx context.Context, key rootdir.Key, mounted rootdir.Mounts) error {
	record, err := m.rebuild(ctx, key)
	if err != nil {
		return err
	}
	line, err := mountrecord.Encode(record)
	if err != nil {
		return err
	}
	device, err := m.foundDevice(record)
	if err != nil {
		return err
	}
	if err := m.records.Write(key, line); err != nil {
		return err
	}
	record.Confirmed = &mountrecord.Confirmation{At: time.Now(), MountPoint: mounted.Has(record.Path), Device: device}
	if err := m.records.Confirm(key, *record.Confirmed); err != nil {
		return err
	}
	m.log.Info("adopted a volume without a record", "podUID", key.PodUID, "plugin", key.Plugin, "volume", key.Spec, "source", record.Source, "guessed", record.Guessed)
	return m.recoverRecord(record, mounted)
}

// rebuild makes a record from a volume's directory and the mount table.
func (m *Manager) rebuild(ctx context.Context, key rootdir.Key) (*mountrecord.Record, error) {
	plugin, err := m.plugins.FindPluginByName(key.Plugin)
	if err != nil {
		return nil, err
	}
	if m.hasDeviceLink(key) {
		return m.rebuildBlock(ctx, key, plugin)
	}
	path := m.host.GetPodVolumeDir(key.PodUID, key.Plugin, key.Spec)
	found, err := plugin.ConstructVolumeSpec(ctx, key.Spec, path)
	if err != nil {
		return nil, err
	}
	return &mountrecord.Record{
		PodUID: key.PodUID, Volumes: []string{key.Spec}, Plugin: key.Plugin, Path: path,
		Source:       volume.DescribeSource(plugin, found.Spec),
		InlineVolume: found.Spec.Volume, PersistentVolume: found.Spec.PersistentVolume, ReadOnly: found.Spec.ReadOnly,
		SELinuxLabel: found.SELinuxMountContext,
		Rebuilt:      true, Guessed: !found.Complete,
	}, nil
}
