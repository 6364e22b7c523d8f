package volumemanager

import (
	"context"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
)

// TearDownPod tears down every recorded volume of the pod and removes its
// directories. The caller promises that its containers no longer run. It is
// idempotent; a pod without volumes is torn down with success. Failures are
// collected in a *[PodError]; their volumes keep their records, and another
// call tries again. Data that outlives pods (NFS, hostPath, local) stays.
// Waiting for Run and [ErrStopped] are as for SetUpPod.
func (m *Manager) TearDownPod(ctx context.Context, podUID types.UID) error {
	if err := volume.CheckPathSegment("pod UID", string(podUID)); err != nil {
		return err
	}
	ctx, leave, err := m.enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	keys := m.mountsOf(podUID)
	rows := make([][]VolumeStatus, len(keys))
	var all sync.WaitGroup
	for i, key := range keys {
		all.Go(func() { rows[i] = m.tearDownMount(ctx, key) })
	}
	all.Wait()
	result := &PodVolumes{PodUID: podUID, Volumes: slices.Concat(rows...)}
	if len(result.Volumes) > 0 {
		result.Pod = result.Volumes[0].Pod
	}
	if len(m.mountsOf(podUID)) == 0 {
		m.dropRows(podUID)
	}
	m.podDirs.removeEmpty(ctx, m.host.RootDir, podUID)
	return result.err(opTearDown)
}

// dropRows ends what is known of a pod's volumes that never came as far as a
// directory.
func (m *Manager) dropRows(podUID types.UID) {
	for _, row := range m.rowsOf(podUID) {
		row.State, row.Err = StateUnmounted, nil
		m.publish(row)
	}
}

// tearDownMount tears one directory down and returns the rows of the volumes
// that it was, afterwards.
func (m *Manager) tearDownMount(ctx context.Context, key volumeKey) []VolumeStatus {
	start := time.Now()
	before := m.rowsOfMount(key)
	abandoned, err := m.operate(ctx, key, func() error {
		err := m.unapply(ctx, key)
		for _, row := range torn(m.rowsOfMount(key), StateUnmounted, start, err) {
			m.publish(row)
		}
		return err
	})
	if abandoned != nil {
		return torn(before, StatePending, start, abandoned)
	}
	return torn(before, StateUnmounted, start, err)
}

// rowsOfMount returns the rows of the volumes that a directory is.
func (m *Manager) rowsOfMount(key volumeKey) []VolumeStatus {
	v, ok := m.mounted(key)
	if !ok {
		return nil
	}
	if v.unreadable != nil {
		return []VolumeStatus{v.unreadable.status(key)}
	}
	return m.rowsOf(key.podUID, v.record.Volumes...)
}

// torn returns the rows after a tear-down: in this state, or failed.
func torn(rows []VolumeStatus, state VolumeState, start time.Time, err error) []VolumeStatus {
	after := slices.Clone(rows)
	now := time.Now()
	for i := range after {
		row := &after[i]
		row.Since, row.Duration, row.State, row.Err = now, now.Sub(start), state, nil
		if err == nil {
			continue
		}
		if state == StateUnmounted {
			row.State = StateFailed
		}
		row.Err = wrap(&volume.Record{Plugin: row.Plugin, Pod: row.Pod, PodUID: row.PodUID}, row.Volume, "TearDown", err)
	}
	return after
}

// unapply is the operation: act, then remove the record.
func (m *Manager) unapply(ctx context.Context, key volumeKey) error {
	v, ok := m.mounted(key)
	if !ok {
		return nil // it was torn down meanwhile
	}
	if v.unreadable != nil {
		return volume.NothingDone(v.unreadable)
	}
	plugin, err := m.plugins.FindPluginByName(key.plugin)
	if err != nil {
		return err
	}
	unmounter, err := plugin.NewUnmounter(key.spec, key.podUID)
	if err != nil {
		return err
	}
	if err := unmounter.TearDown(ctx); err != nil {
		return err
	}
	return m.records.remove(key)
}
