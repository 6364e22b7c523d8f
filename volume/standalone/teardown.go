package standalone

import (
	"context"
	"errors"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/volumemanager"
)

// TearDownPods tears the pods of these volumes down, all at once. It calls show,
// from several goroutines, with each volume that is not torn down, and the
// reason.
func (n *Node) TearDownPods(ctx context.Context, volumes []volumemanager.VolumeStatus, show func(volumemanager.VolumeStatus)) {
	pods := make(map[types.UID][]volumemanager.VolumeStatus)
	for _, v := range volumes {
		pods[v.PodUID] = append(pods[v.PodUID], v)
	}
	var all sync.WaitGroup
	for uid, volumes := range pods {
		all.Go(func() {
			err := n.TearDownPod(ctx, uid)
			for _, v := range volumes {
				if v, pending := stillPending(v, err); pending {
					show(v)
				}
			}
		})
	}
	all.Wait()
}

// stillPending is the row of a volume whose teardown was not finished. pending is
// false if the pod's error does not name the volume.
func stillPending(v volumemanager.VolumeStatus, err error) (row volumemanager.VolumeStatus, pending bool) {
	v.State, v.Err = volumemanager.StatePending, err
	podErr, ok := errors.AsType[*volumemanager.PodError](err)
	if !ok {
		return v, err != nil
	}
	for _, e := range podErr.Errs {
		own, ok := errors.AsType[*volume.Error](e)
		waiting, waits := errors.AsType[*volumemanager.PendingError](e)
		if ok && own.Volume == v.Volume || waits && waiting.Volume == v.Volume {
			v.Err, pending = e, true
		}
	}
	return v, pending
}
