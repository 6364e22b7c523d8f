package persistentvolume

import (
	"context"
	"errors"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/claimbinding"
	"github.com/podvol/podvol/volume/internal/pvapi"
	"github.com/podvol/podvol/volume/internal/work"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/persistentvolume/index"
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
const ProvisioningFinalizer = "podvol.io/provisioning"

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
	events     *eventLog
	queue      *work.Queue[volume.ObjectRef]
	// trustedClaims is ControllerConfig.TrustedClaims.
	trustedClaims bool
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
	if pv, exists := p.cluster.volumes.last(types.NamespacedName{Name: ProvisionedName(claim)}); exists && inherited && pv.DeletionTimestamp != nil {
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
	case operation.Done: // and the volume stored, which has the claim looked at
		p.operations.Forget(key)
		if _, exists := p.cluster.volumes.last(types.NamespacedName{Name: ProvisionedName(claim)}); !exists { // but it has gone since
			p.queue.Add(pvapi.ClaimRef(pvapi.NameOf(claim)))
		}
		return true, nil
	case operation.Running:
		p.events.isSlow(claim, err)
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
	if !inherited {
		if _, _, refused := p.prepareAs(ctx, claim, class); refused != nil {
			state, err := p.operations.Do(provisionTask(claim, false, func(context.Context) error { return volume.NothingDone(refused) }))
			return claim, state, err
		}
	}
	next, err := p.withProvisioning(claim, class)
	if err == nil {
		claim, err = p.writer.updateClaim(ctx, claim, next)
	}
	if err != nil {
		return claim, operation.Refused, err
	}
	if !inherited {
		p.duties.tellBegun(claim)
	}
	state, err := p.operations.Do(provisionTask(claim, inherited, func(ctx context.Context) error { return p.makeVolume(ctx, claim, class) }))
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
	claim, exists, err := p.cluster.claims.get(ctx, name)
	if err != nil || !exists || provisionKey(claim) != key {
		return err
	}
	next := claim.DeepCopy()
	endProvisioning(next)
	if chosen := next.Annotations[annSelectedNode]; waits && (p.cluster.nodeName == "" || chosen != p.cluster.nodeName) && !attempt.TakenBack {
		delete(next.Annotations, annSelectedNode)
	}
	if _, err = p.writer.updateClaim(ctx, claim, next); err == nil {
		p.operations.TakeBack(key)
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

func failedToProvision(claim *v1.PersistentVolumeClaim, err error) error {
	return fmt.Errorf("failed to provision volume with StorageClass %q: %w", pvapi.ClaimClass(claim, ""), err)
}

func (p *provisioner) failProvisioning(ctx context.Context, claim *v1.PersistentVolumeClaim, why error) error {
	return p.pending.leave(ctx, claim, why, event{v1.EventTypeWarning, reasonProvisioningFailed, why.Error(), ""})
}

// missClass is for a claim whose class does not exist, and that has found no volume
// of that class either.
func (p *provisioner) missClass(ctx context.Context, claim *v1.PersistentVolumeClaim, class string, why *index.UnboundError) error {
	missing := fmt.Errorf("storageclass.storage.k8s.io %q not found; create it, or a volume of this class that fits", class)
	waits := *why
	waits.Err = fmt.Errorf("%w: %w", claimbinding.ErrUnbound, missing)
	return p.pending.leave(ctx, claim, &waits, event{v1.EventTypeWarning, reasonProvisioningFailed, missing.Error(), why.Reasons()})
}

// awaitExternal asks another process for the volume.
func (p *provisioner) awaitExternal(ctx context.Context, claim *v1.PersistentVolumeClaim, class *storagev1.StorageClass, why *index.UnboundError) error {
	claim, err := p.writer.updateClaim(ctx, claim, withProvisioner(claim, class))
	if err != nil {
		return err
	}
	waits := *p.explainOnNode(ctx, claim, why)
	waits.Err = fmt.Errorf("%w: it waits for a volume from the external provisioner %s", waits.Err, class.Provisioner)
	message := fmt.Sprintf("Waiting for a volume to be created either by the external provisioner '%s' "+
		"or manually by the system administrator. If volume creation is delayed, please verify that the provisioner is running and correctly registered.", class.Provisioner)
	return p.pending.leave(ctx, claim, &waits, event{v1.EventTypeNormal, reasonExternalProvisioning, message, ""})
}

func withProvisioner(claim *v1.PersistentVolumeClaim, class *storagev1.StorageClass) *v1.PersistentVolumeClaim {
	claim = protectedClaim(claim).DeepCopy()
	metav1.SetMetaDataAnnotation(&claim.ObjectMeta, annProvisioner, class.Provisioner)
	metav1.SetMetaDataAnnotation(&claim.ObjectMeta, annProvisionerBeta, class.Provisioner)
	return claim
}

// reschedule gives the choice of a node back where nothing could be made.
func (p *provisioner) reschedule(ctx context.Context, name types.NamespacedName) error {
	claim, exists, err := p.cluster.claims.get(ctx, name)
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
	pv, stored, err := p.cluster.volumes.getLive(ctx, types.NamespacedName{Name: ProvisionedName(claim)})
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
			p.events.isSlow(claim, err)
			return nil
		case operation.Failed:
			p.events.is(claim, v1.EventTypeWarning, reasonCleanupFailed, fmt.Sprintf("storage of the name %q may have been made for the claim, and it is kept until that is known: %v; "+
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

// errMadeAgain is for a claim whose volume was deleted before it had it.
var errMadeAgain = errors.New("the PersistentVolume that was made for it is being deleted, and is made again once it is gone")

// errStorageIsThere hides that the PersistentVolume's write has left nothing: the
// storage is there.
var errStorageIsThere = errors.New("the storage is there, and its PersistentVolume is not")

// makeVolume makes the storage, or finds what an earlier attempt has made, and
// stores its PersistentVolume.
func (p *provisioner) makeVolume(ctx context.Context, claim *v1.PersistentVolumeClaim, class *storagev1.StorageClass) error {
	name := ProvisionedName(claim)
	switch stored, exists, err := p.cluster.volumes.getLive(ctx, types.NamespacedName{Name: name}); {
	case err != nil:
		return err
	case exists && stored.DeletionTimestamp != nil && claim.DeletionTimestamp == nil && checkMadeFor(stored, claim) == nil:
		return errMadeAgain
	case exists:
		return checkMadeFor(stored, claim)
	}
	provisioner, node, err := p.prepareAs(ctx, claim, class)
	if err != nil {
		return volume.NothingDone(err)
	}
	pv, err := provisioner.Provision(ctx, node, class.AllowedTopologies)
	if err != nil {
		return err
	}
	if err := checkMade(pv, claim, node); err != nil {
		return fmt.Errorf("the plugin %s %w; its storage may be there, and the plugin is asked again: mend it", p.duties.pluginFor(class.Provisioner), err)
	}
	stored, err := update(ctx, p.cluster.objects.Create, p.madeFor(pv, claim, class))
	if errors.Is(err, objects.ErrExists) {
		stored, _, err = p.cluster.volumes.getLive(ctx, types.NamespacedName{Name: name})
		return errors.Join(err, checkMadeFor(stored, claim))
	}
	if err != nil {
		return fmt.Errorf("%w: store PersistentVolume %q: %w", errStorageIsThere, name, err)
	}
	p.cluster.volumes.put(stored)
	p.events.happened(claim, v1.EventTypeNormal, reasonProvisioningSucceeded, fmt.Sprintf("Successfully provisioned volume %s using %s", name, class.Provisioner))
	return nil
}

// prepareAs is prepare for what the claim, or else the class, says.
func (p *provisioner) prepareAs(ctx context.Context, claim *v1.PersistentVolumeClaim, class *storagev1.StorageClass) (volume.Provisioner, *v1.Node, error) {
	with, err := p.makingOf(claim, class)
	if err != nil {
		return nil, nil, err
	}
	return p.prepare(ctx, claim, with)
}

// prepare takes the steps before the storage is made.
func (p *provisioner) prepare(ctx context.Context, claim *v1.PersistentVolumeClaim, with making) (volume.Provisioner, *v1.Node, error) {
	attributes, err := p.cluster.attributesClassFor(ctx, claim, with.Class)
	if err != nil {
		return nil, nil, err
	}
	provisioner, err := p.newProvisioner(claim, with.Class, attributes)
	if err != nil {
		return nil, nil, err
	}
	node, err := p.cluster.nodeNamed(ctx, with.Node)
	if errors.Is(err, volume.ErrNotFound) && isProvisioning(claim) {
		err = fmt.Errorf("storage may have been made on node %q, which is gone: %w; have the node join again, or, if its storage is gone with it, remove the finalizer %s",
			with.Node, err, ProvisioningFinalizer)
	}
	return provisioner, node, err
}

func (p *provisioner) newProvisioner(claim *v1.PersistentVolumeClaim, class *storagev1.StorageClass, attributes *storagev1.VolumeAttributesClass) (volume.Provisioner, error) {
	if p.plugins == nil {
		return nil, errNoPlugins
	}
	plugin, err := p.plugins.FindProvisionablePluginByName(p.duties.pluginFor(class.Provisioner))
	if err != nil {
		return nil, err
	}
	if len(class.MountOptions) > 0 && !volume.SupportsMountOption(plugin) {
		return nil, volume.Invalid("mountOptions", "are not supported by the provisioner %s; remove them from StorageClass %q", class.Provisioner, class.Name)
	}
	return plugin.NewProvisioner(volume.VolumeOptions{
		PVName: ProvisionedName(claim), PVC: claim, Parameters: class.Parameters,
		PersistentVolumeReclaimPolicy: policyOf(class), MountOptions: class.MountOptions,
		VolumeAttributesClass: attributes,
	})
}

// checkMade refuses what a plugin must not have made for a claim: bound, it would
// be less than the claim asks for, or could not be mounted at all.
func checkMade(pv *v1.PersistentVolume, claim *v1.PersistentVolumeClaim, node *v1.Node) error {
	if pv == nil {
		return errors.New("has made no PersistentVolume and says no reason")
	}
	if pv.Name != ProvisionedName(claim) {
		return fmt.Errorf("was asked for a PersistentVolume %q and has made %q", ProvisionedName(claim), pv.Name)
	}
	made := func(format string, args ...any) error {
		return fmt.Errorf("has made a PersistentVolume %q that the claim cannot have: %s", pv.Name, fmt.Sprintf(format, args...))
	}
	if detail := index.Unusable(pv); detail != "" {
		return made("%s", detail)
	}
	if claim.DeletionTimestamp != nil || claim.Spec.VolumeName != "" && claim.Spec.VolumeName != pv.Name {
		return nil // it is stored only to be deleted, which needs no more
	}
	have, want := pv.Spec.Capacity[v1.ResourceStorage], claim.Spec.Resources.Requests[v1.ResourceStorage]
	if have.Cmp(want) < 0 {
		return made("its capacity is %s of %s", have.String(), want.String())
	}
	for _, mode := range claim.Spec.AccessModes {
		if !slices.Contains(pv.Spec.AccessModes, mode) {
			return made("its access modes are %v without %s", pv.Spec.AccessModes, mode)
		}
	}
	if have, want := pvapi.VolumeMode(pv.Spec.VolumeMode), pvapi.VolumeMode(claim.Spec.VolumeMode); have != want {
		return made("its volumeMode is %s instead of %s", have, want)
	}
	selector, err := metav1.LabelSelectorAsSelector(claim.Spec.Selector)
	if claim.Spec.Selector != nil && (err != nil || !selector.Matches(labels.Set(pv.Labels))) {
		return errors.Join(made("its labels %v do not match the claim's selector", pv.Labels), err)
	}
	if node == nil {
		return nil
	}
	if reachable, err := claimbinding.MatchesNode(pv, node.Labels, node.Name); err != nil || !reachable {
		return errors.Join(made("it cannot be reached from node %q, which was selected for the claim's pod", node.Name), err)
	}
	return nil
}

// madeFor completes what a plugin has made, as Kubernetes stores it.
func (p *provisioner) madeFor(pv *v1.PersistentVolume, claim *v1.PersistentVolumeClaim, class *storagev1.StorageClass) *v1.PersistentVolume {
	pv = pv.DeepCopy()
	pv.Name, pv.UID, pv.ResourceVersion = ProvisionedName(claim), "", ""
	metav1.SetMetaDataAnnotation(&pv.ObjectMeta, pvapi.AnnProvisionedBy, class.Provisioner)
	pv.Spec.PersistentVolumeReclaimPolicy = policyOf(class)
	pv.Spec.StorageClassName = class.Name
	pv.Spec.VolumeAttributesClassName = claim.Spec.VolumeAttributesClassName
	pv.Spec.MountOptions = slices.Clone(class.MountOptions)
	pv.Spec.ClaimRef = &v1.ObjectReference{
		Kind: pvapi.KindClaim, APIVersion: v1.SchemeGroupVersion.String(),
		Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID,
	}
	p.duties.complete(pv)
	return pv
}

func checkMadeFor(pv *v1.PersistentVolume, claim *v1.PersistentVolumeClaim) error {
	if pv == nil || pv.Spec.ClaimRef != nil && pv.Spec.ClaimRef.UID == claim.UID {
		return nil
	}
	return volume.Invalid("metadata.name", "PersistentVolume %q, whose name is this claim's, is not made for it; remove that volume", pv.Name)
}

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
