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
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/persistentvolume/index"
	"github.com/podvol/podvol/volume/persistentvolume/internal/operation"
)

// errStorageIsThere hides that the PersistentVolume's write has left nothing: the
// storage is there.
var errStorageIsThere = errors.New("the storage is there, and its PersistentVolume is not")

// makeVolume makes the storage, or finds what an earlier attempt has made, and
// stores its PersistentVolume.
func (p *provisioner) makeVolume(ctx context.Context, claim *v1.PersistentVolumeClaim, class *storagev1.StorageClass) error {
	name := ProvisionedName(claim)
	switch stored, exists, err := p.cluster.volumes.GetLive(ctx, types.NamespacedName{Name: name}); {
	case err != nil:
		return err
	case exists && stored.DeletionTimestamp != nil && claim.DeletionTimestamp == nil && checkMadeFor(stored, claim) == nil:
		return errMadeAgain
	case exists:
		return checkMadeFor(stored, claim)
	}
	with, err := p.planOf(ctx, claim, class)
	if err != nil {
		return volume.NothingDone(err)
	}
	provisioner, node, err := p.prepare(ctx, claim, with)
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
	unlock, err := p.reserveHandle(ctx, pv)
	if err != nil {
		return err
	}
	defer unlock()
	stored, err := update(ctx, p.cluster.objects.Create, p.madeFor(pv, claim, class))
	if errors.Is(err, objects.ErrExists) {
		stored, _, err = p.cluster.volumes.GetLive(ctx, types.NamespacedName{Name: name})
		return errors.Join(err, checkMadeFor(stored, claim))
	}
	if err != nil {
		return fmt.Errorf("%w: store PersistentVolume %q: %w", errStorageIsThere, name, err)
	}
	p.cluster.volumes.Put(stored)
	p.events.Event(claim, v1.EventTypeNormal, reasonProvisioningSucceeded, fmt.Sprintf("Successfully provisioned volume %s using %s", name, class.Provisioner))
	return nil
}

// reserveHandle refuses a driver's volume that another PersistentVolume has: both claims would
// write to it. A driver that shortens names makes one volume of several. Until unlock is
// called, no other volume of the handle is stored.
func (p *provisioner) reserveHandle(ctx context.Context, pv *v1.PersistentVolume) (unlock func(), err error) {
	made := pv.Spec.CSI
	if made == nil {
		return func() {}, nil
	}
	if unlock, err = p.handles.Lock(ctx, v1.UniqueVolumeName(made.Driver+"^"+made.VolumeHandle)); err != nil {
		return nil, err
	}
	for _, other := range p.cluster.volumes.All() {
		if has := other.Spec.CSI; has != nil && other.Name != pv.Name && has.Driver == made.Driver && has.VolumeHandle == made.VolumeHandle {
			unlock()
			return nil, volume.NothingDone(fmt.Errorf("driver %s has answered with volume %.128q, which PersistentVolume %q has already, and which stays as it is: "+
				"the driver may shorten the names of volumes; have it keep them whole", made.Driver, made.VolumeHandle, other.Name))
		}
	}
	return unlock, nil
}

// planOf is what the claim, or else the class, says, with the volume to copy.
func (p *provisioner) planOf(ctx context.Context, claim *v1.PersistentVolumeClaim, class *storagev1.StorageClass) (making, error) {
	with, err := p.makingOf(claim, class)
	if err == nil && with.Source == nil {
		with.Source, err = p.sourceOf(ctx, claim)
	}
	return with, err
}

// prepare takes the steps before the storage is made.
func (p *provisioner) prepare(ctx context.Context, claim *v1.PersistentVolumeClaim, with making) (volume.Provisioner, *v1.Node, error) {
	attributes, err := p.cluster.attributesClassFor(ctx, claim, with.Class)
	if err != nil {
		return nil, nil, err
	}
	provisioner, err := p.newProvisioner(claim, with, attributes)
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

func (p *provisioner) newProvisioner(claim *v1.PersistentVolumeClaim, with making, attributes *storagev1.VolumeAttributesClass) (volume.Provisioner, error) {
	class := with.Class
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
	options := volume.VolumeOptions{
		PVName: ProvisionedName(claim), PVC: claim, Provisioner: class.Provisioner, Parameters: class.Parameters,
		PersistentVolumeReclaimPolicy: policyOf(class), MountOptions: class.MountOptions,
		VolumeAttributesClass: attributes,
	}
	if with.Source == nil {
		return plugin.NewProvisioner(options)
	}
	cloner, ok := volume.AsCloning(plugin)
	if !ok {
		return nil, volume.Invalid("spec.dataSource", "is %s, and the provisioner %s cannot copy volumes; use a StorageClass of one that can", index.DataSourceOf(claim), class.Provisioner)
	}
	return cloner.NewCloner(options, with.Source)
}

// fills reports whether the data source of a claim is for this provisioner to fill in: an
// external one, or a plugin that clones. A user who may write claims could forge a begun
// clone of any volume, so plugins clone for trusted claims only.
func (p *provisioner) fills(name string) bool {
	if p.duties.isExternal(name) {
		return true
	}
	if p.plugins == nil || !p.trustedClaims {
		return false
	}
	plugin, err := p.plugins.FindProvisionablePluginByName(p.duties.pluginFor(name))
	if err != nil {
		return false
	}
	_, clones := volume.AsCloning(plugin)
	return clones
}

// sourceOf returns the volume that the claim's is to be a copy of, as it is recorded; nil: the
// claim has no data source. The rules are external-provisioner's. What may change is an
// *[operation.AwaitsError].
func (p *provisioner) sourceOf(ctx context.Context, claim *v1.PersistentVolumeClaim) (*v1.PersistentVolume, error) {
	asked := index.DataSourceOf(claim)
	if asked == "" {
		return nil, nil
	}
	name, ok := pvapi.ClonedClaim(claim)
	if !ok {
		return nil, volume.Invalid("spec.dataSource", "is %s, and only a PersistentVolumeClaim of the same namespace can be copied here, since no other objects with content are known: "+
			"have the means of the storage make a volume of it, and name that volume's PersistentVolume in spec.volumeName", asked)
	}
	source, exists, err := p.cluster.claims.GetLive(ctx, name)
	if err != nil {
		return nil, err
	}
	wait := func(format string, args ...any) error {
		return &operation.AwaitsError{Err: fmt.Errorf("%s, the claim to copy, %s", asked, fmt.Sprintf(format, args...)), HasChanged: func() bool {
			now, still, err := p.cluster.claims.GetLive(ctx, name)
			return err == nil && (still != exists || still && now.ResourceVersion != source.ResourceVersion)
		}}
	}
	switch {
	case !exists:
		return nil, wait("does not exist; create it")
	case source.DeletionTimestamp != nil:
		return nil, wait("is being deleted")
	case source.Spec.VolumeName == "" || source.Status.Phase != v1.ClaimBound:
		return nil, wait("has no volume yet: its phase is %q", source.Status.Phase)
	}
	pv, exists, err := p.cluster.volumes.GetLive(ctx, types.NamespacedName{Name: source.Spec.VolumeName})
	if err != nil {
		return nil, err
	}
	if !exists || pv.DeletionTimestamp != nil || !index.PreBound(pv, source) {
		return nil, wait("has lost its volume %q", source.Spec.VolumeName)
	}
	have, want := pv.Spec.Capacity[v1.ResourceStorage], pvapi.RequestOf(claim)
	if want.Cmp(have) < 0 {
		return nil, volume.Invalid("spec.resources.requests.storage", "is %s, and %s, which is to be copied, has %s; ask for as much", want.String(), asked, have.String())
	}
	if is, asks := pvapi.VolumeMode(pv.Spec.VolumeMode), pvapi.VolumeMode(claim.Spec.VolumeMode); is != asks {
		return nil, volume.Invalid("spec.volumeMode", "is %s, and %s, which is to be copied, has %s; use the same", asks, asked, is)
	}
	return &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: pv.Name, UID: pv.UID},
		Spec: v1.PersistentVolumeSpec{PersistentVolumeSource: *pv.Spec.PersistentVolumeSource.DeepCopy()}}, nil
}

// checkSource makes sure, once the claim says what it is a copy of, that the source is still
// there. From then on the source is not deleted ([release.Verifier]).
func (p *provisioner) checkSource(ctx context.Context, claim *v1.PersistentVolumeClaim, begun *v1.PersistentVolume) error {
	if begun == nil {
		return nil
	}
	now, err := p.sourceOf(ctx, claim)
	if err == nil && now.UID != begun.UID {
		err = fmt.Errorf("%s, the claim to copy, has another volume now", index.DataSourceOf(claim))
	}
	return volume.NothingDone(err)
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
