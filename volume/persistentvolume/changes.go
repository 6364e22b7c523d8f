package persistentvolume

import (
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/latest"
	"github.com/podvol/podvol/volume/internal/pvapi"
	"github.com/podvol/podvol/volume/internal/work"
	"github.com/podvol/podvol/volume/persistentvolume/index"
	"github.com/podvol/podvol/volume/persistentvolume/internal/eventlog"
	"github.com/podvol/podvol/volume/persistentvolume/internal/operation"
	"github.com/podvol/podvol/volume/persistentvolume/internal/reservation"
	"github.com/podvol/podvol/volume/persistentvolume/internal/resizer"
)

// changes does what follows from a new version of an object ([latest]): it tells index,
// reservations and operations of it, and enqueues the objects that it concerns.
type changes struct {
	cluster    *cluster
	index      *index.Index
	waiting    *index.Waiting
	table      *reservation.Table
	operations *operation.Executor
	events     *eventlog.Log
	resizer    *resizer.Resizer // nil beside another controller
	queue      *work.Queue[volume.ObjectRef]
	// copies are the claims that are to be copies of a claim, by that one. Only claimChanged
	// uses them.
	copies map[types.NamespacedName]map[types.NamespacedName]*v1.PersistentVolumeClaim
}

// claimChanged enqueues the claim, the volumes that mean it, and the one that it
// names no more. It does so after the controller's own reads and writes too: the
// claim may be gone again by the time that they are noted. Only a claim that is
// written for a pair is not enqueued.
func (c *changes) claimChanged(name types.NamespacedName, prior, now *v1.PersistentVolumeClaim, how latest.Noticed) {
	pair := ""
	c.retryCopies(name, prior, now)
	switch how {
	case latest.Listed:
		c.index.PutClaim(now)
		c.expect(now)
		return
	case latest.Written:
		c.index.PutClaim(now)
		pair = now.Spec.VolumeName
	case latest.Seen:
		resizer.TellOfShrinking(prior, now, c.events)
		c.index.PutClaim(now)
		c.expect(now)
		c.queue.Enqueue(pvapi.ClaimRef(name))
	case latest.Gone:
		c.index.DeleteClaim(name)
		c.events.Forget(prior.UID)
		c.events.Forget(eventlog.SlowState(prior))
		c.operations.Forget(provisionKey(prior))
		c.resizer.Forget(prior)
		c.table.ForgetPods(name)
		for _, pod := range c.cluster.users.of(name) { // it may be one to make again
			c.queue.Enqueue(volume.NewObjectRef(pvapi.KindPod, pod.Namespace, pod.Name))
		}
	}
	if prior != nil && prior.Spec.VolumeName != "" && (how == latest.Gone || now.Spec.VolumeName != prior.Spec.VolumeName) {
		c.queue.Enqueue(pvapi.VolumeRef(prior.Spec.VolumeName)) // which it may have kept from others
	}
	for _, pv := range c.index.Meaning(name, pair) {
		c.queue.Enqueue(pvapi.VolumeRef(pv))
	}
}

// retryCopies has the claims try again that wait for this one to have a volume to copy.
func (c *changes) retryCopies(name types.NamespacedName, prior, now *v1.PersistentVolumeClaim) {
	if source, ok := sourceClaim(prior); ok {
		if delete(c.copies[source], name); len(c.copies[source]) == 0 {
			delete(c.copies, source)
		}
	}
	if source, ok := sourceClaim(now); ok {
		if c.copies[source] == nil {
			c.copies[source] = make(map[types.NamespacedName]*v1.PersistentVolumeClaim)
		}
		c.copies[source][name] = now
	}
	for _, waits := range c.copies[name] {
		c.operations.RetryNow(provisionKey(waits))
	}
}

func sourceClaim(claim *v1.PersistentVolumeClaim) (types.NamespacedName, bool) {
	if claim == nil {
		return types.NamespacedName{}, false
	}
	return pvapi.ClonedClaim(claim)
}

// expect has a new claim wait before it is synced, so that no volume that it could have
// is shown as available first.
func (c *changes) expect(claim *v1.PersistentVolumeClaim) {
	if _, bound := claim.Annotations[pvapi.AnnBindCompleted]; bound || claim.DeletionTimestamp != nil || claim.Spec.VolumeName != "" || !c.cluster.isSelected(pvapi.ClaimRef(pvapi.NameOf(claim))) {
		return
	}
	name := pvapi.ClaimClass(claim, "")
	if pvapi.WantsDefaultClass(claim) {
		name = DefaultClass(c.cluster.classes.All())
	}
	class, _ := c.cluster.classes.Last(types.NamespacedName{Name: name})
	wanted := wantedNow(claim, class)
	wanted.DefaultClass = name
	c.waiting.Add(wanted)
}

// volumeChanged enqueues the volume, and the claims that it means or that name it.
func (c *changes) volumeChanged(name types.NamespacedName, prior, now *v1.PersistentVolume, how latest.Noticed) {
	var pair types.NamespacedName
	switch how {
	case latest.Listed:
		c.index.Put(now)
		return
	case latest.Written:
		pair, _ = pvapi.ClaimRefOf(now)
	}
	claims := c.index.ClaimsOf(name.Name, pair) // before and, below, after
	if how == latest.Gone {
		c.index.Delete(name.Name)
		c.operations.Forget(releaseKey(prior))
		c.events.Forget(prior.UID)
		c.events.Forget(eventlog.SlowState(prior))
	} else {
		c.index.Put(now)
		if prior != nil && !isSameRelease(prior, now) {
			c.operations.Forget(releaseKey(prior))
			c.events.Forget(prior.UID)
			c.events.Forget(eventlog.SlowState(prior))
		}
	}
	for _, claim := range claims {
		c.queue.Enqueue(pvapi.ClaimRef(claim))
	}
	if how != latest.Seen {
		return
	}
	if claim, ok := pvapi.ClaimRefOf(now); ok {
		c.queue.Enqueue(pvapi.ClaimRef(claim))
	}
	c.queue.Enqueue(pvapi.VolumeRef(name.Name))
}

// classChanged enqueues the claims that wait for the class, or for any to be the
// default.
func (c *changes) classChanged(name types.NamespacedName, _, _ *storagev1.StorageClass, _ latest.Noticed) {
	for _, claim := range append(c.waiting.OfClass(name.Name), c.waiting.OfClass("")...) {
		if waits, known := c.cluster.claims.Last(claim); known {
			c.operations.RetryNow(provisionKey(waits))
		}
		c.queue.Enqueue(pvapi.ClaimRef(claim))
	}
}

// podChanged enqueues the pod, and the claims that it names, or has named.
func (c *changes) podChanged(name types.NamespacedName, prior, now *v1.Pod, how latest.Noticed) {
	c.cluster.users.replace(prior, now)
	if prior != nil {
		c.enqueueClaims(prior)
	}
	if how != latest.Gone {
		c.enqueueClaims(now)
		c.queue.Enqueue(volume.NewObjectRef(pvapi.KindPod, name.Namespace, name.Name)) // which may have claims to make
		return
	}
	for i := range prior.Spec.Volumes {
		c.events.Forget(volumeOf(prior, prior.Spec.Volumes[i].Name))
	}
}

func (c *changes) enqueueClaims(pod *v1.Pod) {
	for _, claim := range claimsOfPod(pod) {
		c.queue.Enqueue(pvapi.ClaimRef(claim))
	}
}
