package volumemanager

import (
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
)

// usedByOther says that a PersistentVolume whose only access mode is ReadWriteOncePod
// is not set up for a pod, since another one on this node has it. It is set up once
// that pod's volume is torn down.
func usedByOther(pv string, pod, user types.NamespacedName, userUID types.UID) error {
	return &volume.Failure{
		Cause: ErrUsedByOtherPod, Subject: pv,
		What: fmt.Sprintf("PersistentVolume %s has the access mode ReadWriteOncePod and is in use by pod %s (UID %s)", pv, user, userUID),
		Next: fmt.Sprintf("pod %s gets it when that one has left this node", pod),
	}
}

func isOncePod(pv *v1.PersistentVolume) bool {
	return pv != nil && slices.Equal(pv.Spec.AccessModes, []v1.PersistentVolumeAccessMode{v1.ReadWriteOncePod})
}

// checkOncePod refuses a ReadWriteOncePod volume that another pod has something
// of, as the kubelet does (KEP-2485), but whatever its plugin; then the volume is
// tried again when a pod has let go of it. The caller holds the lock.
func (w *world) checkOncePod(u *setUp) error {
	pv := u.record.PersistentVolume
	if !isOncePod(pv) {
		return nil
	}
	for _, p := range w.pods {
		if p == u.of.pod || p.find(func(s *podVolume) bool { return s.has(u, pv.Name) }) == nil {
			continue
		}
		waiters := w.oncePod[pv.Name]
		if waiters == nil {
			waiters = make(map[*podVolume]struct{})
			w.oncePod[pv.Name] = waiters
		}
		waiters[u.of] = struct{}{}
		u.of.oncePod = pv.Name
		return usedByOther(pv.Name, u.record.Pod, p.name, p.uid)
	}
	return nil
}

// has reports whether the volume has something of a PersistentVolume that is asked
// for. Of a directory whose record is lost only the name is known.
func (s *podVolume) has(u *setUp, pvName string) bool {
	r := s.actual.record
	switch {
	case !s.actual.exists():
		return false
	case r == nil || r.Rebuilt:
		return s.actual.key.Plugin == u.key.Plugin && s.actual.key.Spec == u.key.Spec
	}
	return r.PersistentVolume != nil && r.PersistentVolume.Name == pvName
}

// stopWaitingForPod forgets that the volume waits for another pod. The caller holds
// the lock.
func (w *world) stopWaitingForPod(s *podVolume) {
	if s.oncePod == "" {
		return
	}
	delete(w.oncePod[s.oncePod], s)
	if len(w.oncePod[s.oncePod]) == 0 {
		delete(w.oncePod, s.oncePod)
	}
	s.oncePod = ""
}

// wakeForPV has the volumes tried again that wait for another pod to let go of a
// PersistentVolume. The caller holds the lock.
func (w *world) wakeForPV(pvName string) {
	for s := range w.oncePod[pvName] {
		w.stopWaitingForPod(s)
		if s.wanted && s.pod.wanted {
			w.resync(s)
		}
	}
}

// stopWaiting makes a volume wait for no other pod, and for no label of a device. The caller
// holds the lock.
func (w *world) stopWaiting(s *podVolume) {
	w.devices.StopWaiting(s)
	w.stopWaitingForPod(s)
}
