package release

import (
	"context"
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/pvapi"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/persistentvolume/index"
	"github.com/podvol/podvol/volume/recyclerpod"
	"github.com/podvol/podvol/volume/volumesource"
)

// annConfigSource says where a node has a pod from: the kubelet's.
const annConfigSource = "kubernetes.io/config.source"

// Use is one use of a PersistentVolume's data.
type Use struct {
	// By is the claim, pod or PersistentVolume.
	By volume.ObjectRef
	// How says what of it uses the data.
	How string
}

// InUseError names the users of a PersistentVolume whose data is to be destroyed.
type InUseError struct {
	Volume string
	// Uses are never none.
	Uses []Use
}

func (e *InUseError) Error() string {
	parts := make([]string, 0, index.MaxNamed+1)
	for i, use := range e.Uses {
		if i == index.MaxNamed {
			parts = append(parts, fmt.Sprintf("%d more", len(e.Uses)-index.MaxNamed))
			break
		}
		parts = append(parts, fmt.Sprintf("%s (%s)", use.By, use.How))
	}
	return fmt.Sprintf("the data of PersistentVolume %q is still used by %s; it is reclaimed once they are gone", e.Volume, strings.Join(parts, ", "))
}

// Is matches [volume.ErrInUse].
func (e *InUseError) Is(target error) bool { return target == volume.ErrInUse }

// useFinder looks for uses of one released volume.
type useFinder struct {
	pv     *v1.PersistentVolume
	spec   *volume.Spec
	plugin volume.VolumePlugin
	all    *usage
	uses   []Use
}

// findUses looks at what the API says from now on.
func (r *Verifier) findUses(ctx context.Context, pv *v1.PersistentVolume) ([]Use, error) {
	f, err := r.newFinder(ctx, pv)
	if err != nil {
		return nil, err
	}
	f.addClaims()
	if err := f.addUsers(); err != nil {
		return nil, err
	}
	if err := f.addAttachments(ctx, objects.Live(r.Objects)); err != nil {
		return nil, err
	}
	return f.uses, nil
}

func (r *Verifier) newFinder(ctx context.Context, pv *v1.PersistentVolume) (*useFinder, error) {
	f := &useFinder{pv: pv, spec: volume.NewSpecFromPersistentVolume(pv, false)}
	var err error
	if f.plugin, err = pvapi.PluginOf(r.Plugins, f.spec); err != nil {
		return nil, err
	}
	f.all, err = r.reads.share(ctx, func(ctx context.Context) (*usage, error) { return readUsage(ctx, objects.Live(r.Objects)) })
	return f, err
}

func (f *useFinder) add(kind, namespace, name, format string, args ...any) {
	f.uses = append(f.uses, Use{By: volume.NewObjectRef(kind, namespace, name), How: fmt.Sprintf(format, args...)})
}

// addClaims notes the claim that has not left the volume after all, any
// other that names it, and those whose volumes are being copied from it.
func (f *useFinder) addClaims() {
	for _, claim := range f.all.claimsOf(f.pv) {
		switch {
		case f.hasOther(claim):
		case claim.UID == f.pv.Spec.ClaimRef.UID:
			f.add(pvapi.KindClaim, claim.Namespace, claim.Name, "the volume's own claim still exists")
		case claim.Spec.VolumeName == f.pv.Name:
			f.add(pvapi.KindClaim, claim.Namespace, claim.Name, "it names the volume")
		}
	}
	name, _ := pvapi.ClaimRefOf(f.pv)
	for _, claim := range f.all.clones[name] {
		f.add(pvapi.KindClaim, claim.Namespace, claim.Name, "its volume is being made as a copy")
	}
}

// addAttachments notes where the storage is attached, or is being detached: the node may still
// write.
func (f *useFinder) addAttachments(ctx context.Context, live objects.Reader) error {
	_, attaches := volume.AsAttachable(f.plugin)
	if _, able := f.plugin.(volume.SpecAttacher); !attaches && !able {
		return nil
	}
	attachments, err := objects.List[*storagev1.VolumeAttachment](ctx, live, pvapi.KindAttachment, metav1.NamespaceAll)
	if err != nil {
		return err
	}
	for _, a := range attachments {
		if f.isOf(a) {
			f.add(pvapi.KindAttachment, "", a.Name, "it is attached to node %s", a.Spec.NodeName)
		}
	}
	return nil
}

// isOf reports whether an attachment is of the volume, or of its driver's handle by another name.
func (f *useFinder) isOf(a *storagev1.VolumeAttachment) bool {
	if ptr.Deref(a.Spec.Source.PersistentVolumeName, "") == f.pv.Name {
		return true
	}
	s := f.pv.Spec.CSI
	return s != nil && a.Name == pvapi.CSIAttachmentName(s.VolumeHandle, s.Driver, a.Spec.NodeName)
}

// hasOther reports whether a claim has another volume. Which one a claim has
// never changes, so it has no data in this one, even if that was meant for it.
func (f *useFinder) hasOther(claim *v1.PersistentVolumeClaim) bool {
	return claim.Spec.VolumeName != "" && claim.Spec.VolumeName != f.pv.Name
}

// sharers are other PersistentVolumes that show this data, and inline volumes of pods that
// have not ended. A PersistentVolume in any phase counts: nothing says that its data may go.
func (f *useFinder) sharers() ([]*user, error) {
	near, err := f.all.near(f.plugin, f.spec)
	if err != nil {
		return nil, err
	}
	var found []*user
	for _, u := range near {
		if u.pod == nil && (u.name == f.pv.Name || f.isMadeInside(u.spec)) || u.pod != nil && f.isRecycler(u.pod) {
			continue
		}
		shares, err := volumesource.SharesData(f.plugin, f.spec, u.spec)
		if err != nil {
			return nil, fmt.Errorf("compare it with %s: %w", u, err)
		}
		if shares {
			found = append(found, u)
		}
	}
	return found, nil
}

// addUsers notes the sharers, and the pods that have the volume by a claim.
func (f *useFinder) addUsers() error {
	found, err := f.sharers()
	if err != nil {
		return err
	}
	for _, name := range f.all.claimNamesOf(f.pv) {
		for _, u := range f.all.byClaim[name] {
			if !f.isRecycler(u.pod) && f.usesClaim(u.pod, name) {
				found = append(found, u)
			}
		}
	}
	f.addAll(found)
	return nil
}

func (f *useFinder) addAll(found []*user) {
	slices.SortFunc(found, func(a, b *user) int { return a.order - b.order })
	for _, u := range found {
		switch {
		case u.pod == nil:
			f.add(pvapi.KindVolume, "", u.name, "shows the same data as %s", volumesource.Describe(f.plugin, f.spec))
		case u.spec != nil:
			f.add(pvapi.KindPod, u.pod.Namespace, u.pod.Name, "volume %q", u.name)
		default:
			f.add(pvapi.KindPod, u.pod.Namespace, u.pod.Name, "volume %q, claim %q", u.name, u.claim)
		}
	}
}

// isMadeInside reports whether the plugin has made this volume within another that it
// has made too, as for a class whose share is a volume of another class. It knows what
// it has made by the mark, so that the inner one can go: the outer one waits for it,
// and both would wait for ever if the inner one waited, too.
func (f *useFinder) isMadeInside(outer *volume.Spec) bool {
	maker := f.plugin.GetPluginName()
	if f.pv.Annotations[pvapi.AnnProvisionedBy] != maker || outer.PersistentVolume.Annotations[pvapi.AnnProvisionedBy] != maker {
		return false
	}
	on, at, err := volumesource.Place(f.plugin, f.spec)
	outerOn, outerAt, outerErr := volumesource.Place(f.plugin, outer)
	return err == nil && outerErr == nil && on == outerOn && strings.HasPrefix(at, strings.TrimSuffix(outerAt, "/")+"/") && at != outerAt
}

// isRecycler reports whether a pod is the one that empties this volume for this
// very release, left by a controller that was restarted.
func (f *useFinder) isRecycler(pod *v1.Pod) bool {
	return pod.Labels[recyclerpod.Label] == recyclerpod.ReleaseID(f.pv) && pod.Annotations[recyclerpod.Annotation] == f.pv.Name
}

// usesClaim reports whether a pod's claim of this name gives it the volume. A
// new claim of the old one's name gives it another volume, now or later, but not
// to pods that are older than that claim: they were started with the old one.
// Times have whole seconds, so a pod of the same second may be older, and nothing
// says when a node has started one that it has not from the API. A pod that is on
// no node has not been started, and cannot be any more with a claim that is gone.
func (f *useFinder) usesClaim(pod *v1.Pod, name types.NamespacedName) bool {
	claim := f.all.claims[name]
	if claim != nil && claim.Spec.VolumeName == f.pv.Name {
		return true
	}
	ref := f.pv.Spec.ClaimRef
	if name.Namespace != ref.Namespace || name.Name != ref.Name || claim != nil && claim.UID == ref.UID && f.hasOther(claim) {
		return false
	}
	if isStatic(pod) {
		return true
	}
	startsWithNew := claim != nil && claim.UID != ref.UID && !claim.CreationTimestamp.IsZero() && claim.CreationTimestamp.Before(&pod.CreationTimestamp)
	return pod.Spec.NodeName != "" && !startsWithNew
}

// isStatic reports whether a node has a pod from elsewhere than the API, which
// shows a copy.
func isStatic(pod *v1.Pod) bool {
	source, told := pod.Annotations[annConfigSource]
	_, mirrors := pod.Annotations[v1.MirrorPodAnnotationKey]
	return mirrors || told && source != "api"
}
