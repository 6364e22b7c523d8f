package sim

import (
	"context"
	"errors"
	"fmt"
	"os"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/util/removetree"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/fakehost"
)

// podRunner runs recyclers: it sets a pod's volumes up by the node's plugin,
// empties them as the pod would, and tears them down.
type podRunner struct{ node *Node }

// RunPod implements [volume.PodRunner].
func (r podRunner) RunPod(ctx context.Context, pod *v1.Pod, mayRun func(context.Context) error, record volume.RecycleEventRecorder) error {
	if err := mayRun(ctx); err != nil {
		return err
	}
	return r.node.DoRole(ctx, fakehost.RoleCall{Method: "RunPod", Namespace: pod.Namespace, Name: pod.Name}, func() error {
		pod = pod.DeepCopy()
		pod.UID = types.UID("uid-of-" + pod.Name)
		for i := range pod.Spec.Volumes {
			if err := r.empty(ctx, volume.NewSpecFromVolume(&pod.Spec.Volumes[i]), pod); err != nil {
				return fmt.Errorf("pod %s: %w", pod.Name, err)
			}
		}
		record(v1.EventTypeNormal, "the pod has emptied its volumes")
		return nil
	})
}

func (r podRunner) empty(ctx context.Context, spec *volume.Spec, pod *v1.Pod) error {
	m, err := r.node.Plugin.NewMounter(spec, pod)
	if err != nil {
		return err
	}
	u, err := r.node.Plugin.NewUnmounter(spec.Name(), pod.UID)
	if err != nil {
		return err
	}
	if err := m.SetUp(ctx, volume.MounterArgs{}); err != nil {
		return err
	}
	entries, err := os.ReadDir(m.GetPath())
	for _, e := range entries {
		err = errors.Join(err, removetree.Remove(ctx, m.GetPath(), e.Name()))
	}
	return errors.Join(err, u.TearDown(ctx))
}
