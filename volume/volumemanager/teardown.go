package volumemanager

import (
	"context"
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
	keys := m.volumesOf(podUID)
	result := &PodVolumes{PodUID: podUID, Volumes: make([]VolumeStatus, len(keys))}
	var all sync.WaitGroup
	for i, key := range keys {
		all.Go(func() { result.Volumes[i] = m.tearDownVolume(ctx, key) })
	}
	all.Wait()
	if len(keys) > 0 {
		result.Pod = result.Volumes[0].Pod
	}
	m.podDirs.removeEmpty(ctx, m.host.RootDir, podUID)
	return result.err(opTearDown)
}

func (m *Manager) tearDownVolume(ctx context.Context, key volumeKey) VolumeStatus {
	start := time.Now()
	before, _ := m.current(key)
	err := m.operations.Do(ctx, key, func() error {
		current, ok := m.current(key)
		if !ok {
			return nil
		}
		err := m.unapply(ctx, key, current)
		m.finishTearDown(key, current, start, err)
		return err
	})
	return torn(key, before.status, start, err)
}

// torn is the status after a tear-down.
func torn(key volumeKey, before VolumeStatus, start time.Time, err error) VolumeStatus {
	after := before
	after.Since = time.Now()
	after.Duration = after.Since.Sub(start)
	after.State = StateUnmounted
	record := &volume.Record{Plugin: key.plugin, Volume: before.Volume, Pod: before.Pod, PodUID: key.podUID}
	after.Err = wrap(record, "TearDown", err)
	if err != nil {
		after.State = stateOf(err)
	}
	return after
}

// unapply is the operation: act, then remove the record.
func (m *Manager) unapply(ctx context.Context, key volumeKey, current actualVolume) error {
	if current.record == nil {
		return nil // it was never begun, or is known to be gone
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

// finishTearDown publishes the outcome, also when nobody waits any more.
func (m *Manager) finishTearDown(key volumeKey, current actualVolume, start time.Time, err error) {
	status := torn(key, current.status, start, err)
	if err != nil {
		m.publish(key, status)
		return
	}
	m.mu.Lock()
	m.actual.remove(key)
	m.mu.Unlock()
	m.notify(status)
}
