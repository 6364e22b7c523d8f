package criruntime

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"

	v1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/podvol/podvol/util/diskusage"
)

// DiskUsage returns what the runs of a pod's containers have written beside their volumes,
// and their logs. Logs of runs that a kubelet has started do not count.
func (r *Runtime) DiskUsage(ctx context.Context, pod *v1.Pod) (map[string]int64, error) {
	answer, err := r.service.ListContainerStats(ctx, &cri.ListContainerStatsRequest{Filter: &cri.ContainerStatsFilter{LabelSelector: ofPod(pod.UID)}})
	if err != nil {
		return nil, err
	}
	all := map[string]int64{}
	for _, s := range answer.Stats {
		if labels := s.GetAttributes().GetLabels(); r.isOwn(labels) && labels[podUIDLabel] == string(pod.UID) {
			all[labels[containerNameLabel]] += int64(s.GetWritableLayer().GetUsedBytes().GetValue())
		}
	}
	for name := range all {
		logs, unknown := diskusage.Walk(ctx, filepath.Join(r.podDir(pod.UID), name))
		if unknown != nil && !errors.Is(unknown, fs.ErrNotExist) {
			err = errors.Join(err, unknown)
		}
		all[name] += logs.Bytes
	}
	return all, err
}
