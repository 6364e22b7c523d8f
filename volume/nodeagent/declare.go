package nodeagent

import (
	"errors"
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume/volumemanager"
)

// declaredPods are the pods that the node knows in their wanted version. Of any
// other pod the node shows only the past, or the wishes of another version. That
// is no reason to tear anything down.
type declaredPods struct {
	node    *volumemanager.Manager
	say     func(string)
	known   map[types.UID]bool
	refused map[types.UID]*v1.Pod // the versions that the node has refused
}

func newDeclaredPods(node *volumemanager.Manager, say func(string)) *declaredPods {
	return &declaredPods{node: node, say: say, known: make(map[types.UID]bool), refused: make(map[types.UID]*v1.Pod)}
}

func (d *declaredPods) has(uid types.UID) bool { return d.known[uid] }

// withdraw records that the node does not know the pod's wanted version.
func (d *declaredPods) withdraw(uid types.UID) { delete(d.known, uid) }

// forget records that the pod is not wanted.
func (d *declaredPods) forget(uid types.UID) {
	delete(d.refused, uid)
	delete(d.known, uid)
}

// declare declares a pod. A refused pod must not stop the others. Its refusal is
// reported once for each version.
func (d *declaredPods) declare(pod *v1.Pod) error {
	err := d.node.PutPod(pod)
	if err == nil {
		delete(d.refused, pod.UID)
		d.known[pod.UID] = true
		return nil
	}
	delete(d.known, pod.UID)
	if errors.Is(err, volumemanager.ErrStopped) {
		return err
	}
	if d.refused[pod.UID] != pod {
		d.refused[pod.UID] = pod
		d.say(fmt.Sprintf("pod %s/%s is refused, and its volumes stay as they are: %v", pod.Namespace, pod.Name, err))
	}
	return nil
}
