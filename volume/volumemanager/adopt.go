package volumemanager

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/mountrecord"
)

// procDir is where processes are looked up.
const procDir = "/proc"

// ErrKubeletRuns says that a kubelet runs on this machine, whose volumes must
// not be taken over under its hands.
var ErrKubeletRuns = errors.New("a kubelet runs on this machine; stop it before its volumes are adopted")

// refuseKubelet fails while a process called kubelet runs.
func (c Config) refuseKubelet() error {
	proc := cmp.Or(c.kubeletDir, procDir)
	for _, pid := range processes(proc) {
		if commandOf(proc, pid) == "kubelet" {
			return fmt.Errorf("%w (process %d)", ErrKubeletRuns, pid)
		}
	}
	return nil
}

// processes lists the ids of all processes that can be seen.
func processes(proc string) (pids []int) {
	entries, err := os.ReadDir(proc)
	if err != nil {
		return nil
	}
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// commandOf is the name of a process's program, empty if it is gone.
func commandOf(proc string, pid int) string {
	text, err := os.ReadFile(filepath.Join(proc, strconv.Itoa(pid), "comm"))
	if err != nil {
		return ""
	}
	return strings.TrimSuffix(string(text), "\n")
}

// adopt makes a record for each directory of a volume that has none. What no
// plugin knows is left alone.
func (m *Manager) adopt(ctx context.Context, mounted mounts) error {
	dirs, err := volumeDirs(m.host.RootDir)
	if err != nil {
		return err
	}
	for _, key := range dirs {
		if m.isRecorded(key) {
			continue
		}
		if err := m.adoptOne(ctx, key, mounted); err != nil {
			m.log.Warn("a volume cannot be adopted and is left alone", "podUID", key.podUID, "plugin", key.plugin, "volume", key.spec, "error", err)
		}
	}
	return nil
}

func (m *Manager) isRecorded(key volumeKey) bool { return m.slotAt(key) != nil }

// slotAt returns the slot of a directory that is there; nil: none.
func (m *Manager) slotAt(key volumeKey) *slot {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.pods[key.podUID].find(func(s *slot) bool { return s.actual.exists() && s.actual.key == key })
}

func (m *Manager) adoptOne(ctx context.Context, key volumeKey, mounted mounts) error {
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
	if err := m.records.write(key, line); err != nil {
		return err
	}
	record.Confirmed = &mountrecord.Confirmation{At: time.Now(), MountPoint: mounted.has(record.Path), Device: device}
	if err := m.records.confirm(key, *record.Confirmed); err != nil {
		return err
	}
	m.log.Info("adopted a volume without a record", "podUID", key.podUID, "plugin", key.plugin, "volume", key.spec, "source", record.Source, "guessed", record.Guessed)
	return m.recoverRecord(record, mounted)
}

// rebuild makes a record from a volume's directory and the mount table.
func (m *Manager) rebuild(ctx context.Context, key volumeKey) (*mountrecord.Record, error) {
	plugin, err := m.plugins.FindPluginByName(key.plugin)
	if err != nil {
		return nil, err
	}
	if m.hasDeviceLink(key) {
		return m.rebuildBlock(ctx, key, plugin)
	}
	path := m.host.GetPodVolumeDir(key.podUID, key.plugin, key.spec)
	found, err := plugin.ConstructVolumeSpec(ctx, key.spec, path)
	if err != nil {
		return nil, err
	}
	return &mountrecord.Record{
		PodUID: key.podUID, Volumes: []string{key.spec}, Plugin: key.plugin, Path: path,
		Source:       volume.DescribeSource(plugin, found.Spec),
		InlineVolume: found.Spec.Volume, PersistentVolume: found.Spec.PersistentVolume, ReadOnly: found.Spec.ReadOnly,
		SELinuxLabel: found.SELinuxMountContext,
		Rebuilt:      true, Guessed: !found.Complete,
	}, nil
}
