package persistentvolume

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/util/keylock"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/claimbinding"
	"github.com/podvol/podvol/volume/internal/pvapi"
	"github.com/podvol/podvol/volume/internal/work"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/persistentvolume/index"
	"github.com/podvol/podvol/volume/persistentvolume/internal/eventlog"
	"github.com/podvol/podvol/volume/persistentvolume/internal/operation"
	"github.com/podvol/podvol/volume/persistentvolume/internal/reservation"
)

const (
	annProvisioner     = "volume.kubernetes.io/storage-provisioner"
	annProvisionerBeta = "volume.beta.kubernetes.io/storage-provisioner"
	annSelectedNode    = "volume.kubernetes.io/selected-node"
	noProvisioner      = "kubernetes.io/no-provisioner"
)

// ProvisioningFinalizer is on a claim from before storage is made for it until
// the PersistentVolume is stored that says where that is. Its name is known
// before, [ProvisionedName], so a controller that finds the finalizer asks the
// plugin for the same storage again: none is left behind, whenever the
// controller dies, even if the claim is deleted meanwhile.
const ProvisioningFinalizer = pvapi.ProvisioningFinalizer

// ProvisionedName returns the name of the PersistentVolume that is made for a
// claim, as in Kubernetes: "pvc-" and the claim's UID.
func ProvisionedName(claim *v1.PersistentVolumeClaim) string { return "pvc-" + string(claim.UID) }

// provisioner has storage made for claims.
type provisioner struct {
	duties     makerDuties
	cluster    *cluster
	writer     *writer
	pending    *pendingClaims
	plugins    *volume.VolumePluginMgr
	table      *reservation.Table
	waiting    *index.Waiting
	operations *operation.Executor
	events     *eventlog.Log
	queue      *work.Queue[volume.ObjectRef]
	// trustedClaims is ControllerConfig.TrustedClaims.
	trustedClaims bool
	driverOf      func(provisioner string) string
	handles       keylock.Map[v1.UniqueVolumeName] // of drivers' volumes that are about to be stored
}

// provisionKey names the making of a claim's volume.
func provisionKey(claim *v1.PersistentVolumeClaim) string { return "provision " + string(claim.UID) }

func provisionTask(claim *v1.PersistentVolumeClaim, inherited bool, f func(context.Context) error) operation.Task {
	return operation.Task{Key: provisionKey(claim), Volume: ProvisionedName(claim), Class: pvapi.ClaimClass(claim, ""), About: pvapi.ClaimRef(pvapi.NameOf(claim)),
		On: claim.Annotations[annSelectedNode], Inherited: inherited, Do: f}
}

// provision has storage made for a claim that has found none, and why. It reports
// false where the class makes none.
func (p *provisioner) provision(ctx context.Context, claim *v1.PersistentVolumeClaim, class *storagev1.StorageClass, why *index.UnboundError) (handled bool, err error) {
	name, inherited := pvapi.ClaimClass(claim, ""), isProvisioning(claim)
	with, err := p.makingOf(claim, class)
	if err != nil {
		return true, p.failProvisioning(ctx, claim, failedToProvision(claim, err))
	}
	switch class = with.Class; {
	case name == "":
		return false, nil
	case class == nil:
		return true, p.missClass(ctx, claim, name, why)
	case class.Provisioner == noProvisioner:
		return false, nil
	case p.duties.isExternal(class.Provisioner):
		return true, p.awaitExternal(ctx, claim, class, why)
	}
	if pv, exists := p.cluster.volumes.Last(types.NamespacedName{Name: ProvisionedName(claim)}); exists && inherited && pv.DeletionTimestamp != nil {
		return true, p.pending.leave(ctx, claim, errMadeAgain, event{}) // which is enqueued then
	}
	key := provisionKey(claim)
	if !inherited {
		p.operations.GiveUp(key)
	}
	p.operations.Move(key, claim.Annotations[annSelectedNode])
	now := p.operations.Status(key)
	state, err := now.State, now.Err
	if now.MayBegin {
		if claim, state, err = p.beginMaking(ctx, claim, class); state == operation.Refused {
			return true, err
		}
	}
	switch state {
	case operation.Done: // and the volume stored, which enqueues the claim
		p.operations.Forget(key)
		if _, exists := p.cluster.volumes.Last(types.NamespacedName{Name: ProvisionedName(claim)}); !exists { // but it has gone since
			p.queue.Enqueue(pvapi.ClaimRef(pvapi.NameOf(claim)))
		}
		return true, nil
	case operation.Running:
		p.events.PluginSlow(claim, err)
		return true, p.pending.leave(ctx, claim, p.beingMade(claim, err), event{})
	}
	if failed := p.failProvisioning(ctx, claim, failedToProvision(claim, err)); failed != nil {
		return true, failed
	}
	return true, p.endAttempt(ctx, pvapi.NameOf(claim), key, waitsForConsumer(class))
}

// beginMaking has storage made, unless the plugin refuses to before it has begun:
// nothing needs to be noted in the claim for that. It returns the claim as stored.
func (p *provisioner) beginMaking(ctx context.Context, claim *v1.PersistentVolumeClaim, class *storagev1.StorageClass) (*v1.PersistentVolumeClaim, operation.State, error) {
	inherited := isProvisioning(claim)
	var source *v1.PersistentVolume
	if !inherited {
		with, refused := p.planOf(ctx, claim, class)
		if refused == nil {
			_, _, refused = p.prepare(ctx, claim, with)
		}
		if refused != nil {
			state, err := p.operations.Do(provisionTask(claim, false, func(context.Context) error { return volume.NothingDone(refused) }))
			return claim, state, err
		}
		source = with.Source
	}
	next, err := p.withProvisioning(claim, class, source)
	if err == nil {
		claim, err = p.writer.updateClaim(ctx, claim, next)
	}
	if err != nil {
		return claim, operation.Refused, err
	}
	if !inherited {
		p.duties.tellBegun(claim)
	}
	state, err := p.operations.Do(provisionTask(claim, inherited, func(ctx context.Context) error {
		if err := p.checkSource(ctx, claim, source); err != nil {
			return err
		}
		return p.makeVolume(ctx, claim, class)
	}))
	return claim, state, err
}

// endAttempt is for an attempt that has failed. Where it has left nothing, the
// claim may have another volume, or go; and the choice of the node is given back,
// once, unless there is but one.
func (p *provisioner) endAttempt(ctx context.Context, name types.NamespacedName, key string, waits bool) error {
	attempt := p.operations.Status(key)
	if !attempt.Certain {
		return nil
	}
	claim, exists, err := p.cluster.claims.Get(ctx, name)
	if err != nil || !exists || provisionKey(claim) != key {
		return err
	}
	next := claim.DeepCopy()
	endProvisioning(next)
	if chosen := next.Annotations[annSelectedNode]; waits && (p.cluster.nodeName == "" || chosen != p.cluster.nodeName) && !attempt.NodeRejected {
		delete(next.Annotations, annSelectedNode)
	}
	if _, err = p.writer.updateClaim(ctx, claim, next); err == nil {
		p.operations.RejectNode(key)
	}
	return err
}

// beingMade is why a claim has no volume while that is being made: what went wrong
// the last time, until it is known whether that has changed.
func (p *provisioner) beingMade(claim *v1.PersistentVolumeClaim, slow error) error {
	failed := p.operations.Status(provisionKey(claim)).Failure
	switch {
	case slow != nil:
		return fmt.Errorf("%w: %w", errBeingMade, slow)
	case failed != nil:
		return failedToProvision(claim, failed)
	}
	return errBeingMade
}

const (
	// ErrNotProvisioned is a cause of [Controller.Explain]: the last attempt to make the claim's
	// volume has failed.
	ErrNotProvisioned volume.Cause = "failed to provision volume"
	// ErrNoClass is another one: the claim's StorageClass does not exist.
	ErrNoClass volume.Cause = "the StorageClass does not exist"
)

func failedToProvision(claim *v1.PersistentVolumeClaim, err error) error {
	return fmt.Errorf("%w with StorageClass %q: %w", ErrNotProvisioned, pvapi.ClaimClass(claim, ""), err)
}

func (p *provisioner) failProvisioning(ctx context.Context, claim *v1.PersistentVolumeClaim, why error) error {
	return p.pending.leave(ctx, claim, why, event{v1.EventTypeWarning, reasonProvisioningFailed, why.Error(), ""})
}

// missClass is for a claim whose class does not exist, and that has found no volume
// of that class either. An attempt that has failed while it did stays told.
func (p *provisioner) missClass(ctx context.Context, claim *v1.PersistentVolumeClaim, class string, why *index.UnboundError) error {
	missing := &volume.Failure{Cause: ErrNoClass, Subject: class, What: fmt.Sprintf("storageclass.storage.k8s.io %q not found", class), Next: "create it, or a volume of this class that fits"}
	waits := *why
	waits.Err = fmt.Errorf("%w: %w", claimbinding.ErrUnbound, missing)
	if failed := p.operations.Status(provisionKey(claim)).Failure; failed != nil {
		waits.Err = fmt.Errorf("%w; before that: %w", waits.Err, failedToProvision(claim, failed))
	}
	return p.pending.leave(ctx, claim, &waits, event{v1.EventTypeWarning, reasonProvisioningFailed, missing.Error(), why.Reasons()})
}

// awaitExternal asks another process for the volume.
func (p *provisioner) awaitExternal(ctx context.Context, claim *v1.PersistentVolumeClaim, class *storagev1.StorageClass, why *index.UnboundError) error {
	provisioner := p.driverOf(class.Provisioner)
	claim, err := p.writer.updateClaim(ctx, claim, withProvisioner(claim, provisioner))
	if err != nil {
		return err
	}
	waits := *p.explainOnNode(ctx, claim, why)
	waits.Err = fmt.Errorf("%w: it waits for a volume from the external provisioner %s", waits.Err, provisioner)
	message := fmt.Sprintf("Waiting for a volume to be created either by the external provisioner '%s' "+
		"or manually by the system administrator. If volume creation is delayed, please verify that the provisioner is running and correctly registered.", provisioner)
	return p.pending.leave(ctx, claim, &waits, event{v1.EventTypeNormal, reasonExternalProvisioning, message, ""})
}

func withProvisioner(claim *v1.PersistentVolumeClaim, provisioner string) *v1.PersistentVolumeClaim {
	claim = protectedClaim(claim).DeepCopy()
	metav1.SetMetaDataAnnotation(&claim.ObjectMeta, annProvisioner, provisioner)
	metav1.SetMetaDataAnnotation(&claim.ObjectMeta, annProvisionerBeta, provisioner)
	return claim
}

// forgetGoneNode gives the choice of a node back that does not exist, of a class
// that makes nothing there: no pod could be placed elsewhere.
func (p *provisioner) forgetGoneNode(ctx context.Context, claim *v1.PersistentVolumeClaim, class *storagev1.StorageClass) (bool, error) {
	if class == nil || class.Provisioner != noProvisioner {
		return false, nil
	}
	if _, err := p.cluster.selectedNode(ctx, claim); !errors.Is(err, volume.ErrNotFound) {
		return false, err
	}
	return true, p.reschedule(ctx, pvapi.NameOf(claim))
}

// reschedule gives the choice of a node back where nothing could be made.
func (p *provisioner) reschedule(ctx context.Context, name types.NamespacedName) error {
	claim, exists, err := p.cluster.claims.Get(ctx, name)
	if err != nil || !exists {
		return err
	}
	next := claim.DeepCopy()
	delete(next.Annotations, annSelectedNode)
	_, err = p.writer.updateClaim(ctx, claim, next)
	return err
}

// finishProvisioning is for a claim that does not want its new storage any more.
// Storage that was made, or may have been, gets its PersistentVolume, and is
// reclaimed as after any claim's end.
func (p *provisioner) finishProvisioning(ctx context.Context, claim *v1.PersistentVolumeClaim) error {
	if claim.DeletionTimestamp != nil && !p.cluster.podsComplete() {
		return nil
	}
	turn, err := p.table.ReserveWriting(ctx, ProvisionedName(claim)) // so that it is not let go of meanwhile
	if err != nil {
		return err
	}
	defer turn.Forget()
	pv, stored, err := p.cluster.volumes.GetLive(ctx, types.NamespacedName{Name: ProvisionedName(claim)})
	if err != nil || stored && p.isLetGo(pv) {
		return err // once that is gone, what it says of the storage is asked for again
	}
	key := provisionKey(claim)
	if !stored && !p.operations.Status(key).Certain {
		p.waiting.Add(index.Wanted{Claim: claim, Delayed: true}) // for its class, if that is gone
		class, err := p.cluster.classOf(ctx, claim)
		if err != nil {
			return err
		}
		with, replaced := p.makingOf(claim, class)
		state, err := p.operations.Do(provisionTask(claim, true, func(ctx context.Context) error {
			if replaced != nil {
				return replaced
			}
			if with.Class == nil {
				return fmt.Errorf("the class %q is gone that knows where; create it again", pvapi.ClaimClass(claim, ""))
			}
			return p.makeVolume(ctx, claim, with.Class)
		}))
		switch state {
		case operation.Running:
			p.events.PluginSlow(claim, err)
			return nil
		case operation.Failed:
			p.events.EventOnce(claim, v1.EventTypeWarning, reasonCleanupFailed, fmt.Sprintf("storage of the name %q may have been made for the claim, and it is kept until that is known: %v; "+
				"it is tried again; if you have seen that there is none, remove the finalizer %s", ProvisionedName(claim), err, ProvisioningFinalizer), "")
			return nil
		}
	}
	next := claim.DeepCopy()
	endProvisioning(next)
	if _, err = p.writer.updateClaim(ctx, claim, next); err == nil {
		p.operations.Forget(key)
	}
	return pvapi.IgnoreMissing(err)
}

// isLetGo reports whether a volume is being deleted, and its storage, which is not
// to stay, is not.
func (p *provisioner) isLetGo(pv *v1.PersistentVolume) bool {
	return pv.DeletionTimestamp != nil && pv.Spec.PersistentVolumeReclaimPolicy == v1.PersistentVolumeReclaimDelete && !holdsStorage(pv, p.duties.storageFinalizers())
}

// checkHeld refuses a volume that was made for a claim and let go before it was this
// call's turn to write: no part of the binding may be written into it, and the claim
// must find its storage again.
func (p *provisioner) checkHeld(ctx context.Context, claim *v1.PersistentVolumeClaim, pv *v1.PersistentVolume) error {
	if pv.Name != ProvisionedName(claim) || !isProvisioning(claim) || !isBoundVolume(pv, claim) {
		return nil
	}
	now, exists, err := p.cluster.volumes.Get(ctx, types.NamespacedName{Name: pv.Name})
	if err == nil && (!exists || now.UID != pv.UID || p.isLetGo(now)) {
		err = fmt.Errorf("%w: volume %q has been let go", objects.ErrConflict, pv.Name)
	}
	return err
}

// errMadeAgain is for a claim whose volume was deleted before it had it.
var errMadeAgain = errors.New("the PersistentVolume that was made for it is being deleted, and is made again once it is gone")

// explainOnNode says of a claim whose pod was placed why there is no volume for it on
// that node.
func (p *provisioner) explainOnNode(ctx context.Context, claim *v1.PersistentVolumeClaim, why *index.UnboundError) *index.UnboundError {
	if !errors.Is(why, index.ErrWaitsForConsumer) {
		return why
	}
	node, err := p.cluster.selectedNode(ctx, claim)
	if err != nil || node == nil {
		return why
	}
	_, err = p.table.Match(index.Wanted{Claim: claim, NodeName: node.Name, NodeLabels: node.Labels})
	if there, ok := errors.AsType[*index.UnboundError](err); ok {
		return there
	}
	return why
}

// annProvisioning is beside the finalizer: what the storage is made with, so that
// the same is asked for again even if the class has been replaced since, or
// another node selected.
const annProvisioning = ProvisioningFinalizer

// making is what a claim's storage is made with.
type making struct {
	Class *storagev1.StorageClass `json:"class"`
	// Node is the selected node, if there was one.
	Node string `json:"node,omitempty"`
	// Source is the volume whose content it begins with; nil: it begins empty.
	Source *v1.PersistentVolume `json:"source,omitempty"`
}

// makingOf returns class and node of the storage that was begun for a claim, else
// those for a new one. The class may be nil. A user who may make claims could
// write the annotation, and so a class of their own: unless claims are trusted it
// counts only where the class says the same.
func (p *provisioner) makingOf(claim *v1.PersistentVolumeClaim, class *storagev1.StorageClass) (making, error) {
	if begun, ok := begunWith(claim); ok {
		if p.trustedClaims || class != nil && equality.Semantic.DeepEqual(begun.Class, madeWith(class)) {
			return begun, nil
		}
		return making{}, fmt.Errorf("storage may have been made for it by a StorageClass %q other than there is now: make that again as it was "+
			"(the claim's annotation %s has it), or, if you have seen that there is no storage, remove the finalizer %s", begun.Class.Name, annProvisioning, ProvisioningFinalizer)
	}
	if !waitsForConsumer(class) {
		return making{Class: class}, nil
	}
	return making{Class: class, Node: claim.Annotations[annSelectedNode]}, nil
}

// begunWith returns what a claim says that its storage was begun with.
func begunWith(claim *v1.PersistentVolumeClaim) (begun making, ok bool) {
	ok = isProvisioning(claim) && json.Unmarshal([]byte(claim.Annotations[annProvisioning]), &begun) == nil && begun.Class != nil
	return begun, ok
}

// madeWith returns the fields of a class that its storage depends on.
func madeWith(class *storagev1.StorageClass) *storagev1.StorageClass {
	return &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: class.Name}, Provisioner: class.Provisioner, Parameters: class.Parameters, ReclaimPolicy: class.ReclaimPolicy,
		MountOptions: class.MountOptions, VolumeBindingMode: class.VolumeBindingMode, AllowedTopologies: class.AllowedTopologies,
	}
}

// withProvisioning returns the claim as it is before its storage is made, of source.
func (p *provisioner) withProvisioning(claim *v1.PersistentVolumeClaim, class *storagev1.StorageClass, source *v1.PersistentVolume) (*v1.PersistentVolumeClaim, error) {
	next, noted := p.duties.begin(claim, class)
	if !waitsForConsumer(class) {
		delete(next.Annotations, annSelectedNode) // also one that another program wrote: the pod is placed once the claim is bound
	}
	if _, known := begunWith(next); known || noted {
		return next, nil
	}
	begun := making{Class: madeWith(class), Source: source}
	if waitsForConsumer(class) {
		begun.Node = claim.Annotations[annSelectedNode]
	}
	data, err := json.Marshal(begun)
	if err != nil {
		return nil, fmt.Errorf("record what the volume is made with: %w", err)
	}
	metav1.SetMetaDataAnnotation(&next.ObjectMeta, annProvisioning, string(data))
	next.Finalizers = withOne(next.Finalizers, ProvisioningFinalizer)
	return next, nil
}

// endProvisioning changes a claim's annotations and finalizers: only a stored
// volume has storage for it now.
func endProvisioning(claim *v1.PersistentVolumeClaim) {
	delete(claim.Annotations, annProvisioning)
	claim.Finalizers = pvapi.Without(claim.Finalizers, ProvisioningFinalizer)
}

func isProvisioning(claim *v1.PersistentVolumeClaim) bool {
	return slices.Contains(claim.Finalizers, ProvisioningFinalizer)
}
