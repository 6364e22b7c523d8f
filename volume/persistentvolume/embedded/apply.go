package embedded

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/util/retry"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/claimbinding"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/persistentvolume"
	"github.com/podvol/podvol/volume/validation"
)

const (
	kindPod    = "Pod"
	kindNode   = "Node"
	kindClass  = "StorageClass"
	kindClaim  = "PersistentVolumeClaim"
	kindVolume = "PersistentVolume"
)

// ErrBeingDeleted says that an object was declared that is being deleted: what
// uses it keeps it. Once it is gone it is made anew.
var ErrBeingDeleted = errors.New("it is being deleted, and made anew once it is gone")

// ObjectError says why one object was refused.
type ObjectError struct {
	Ref volume.ObjectRef
	Err error
}

func (e *ObjectError) Error() string {
	if own, ok := errors.AsType[*volume.Failure](e.Err); ok && own.Cause == ErrImmutable && strings.HasPrefix(own.Subject, e.Ref.String()+" ") {
		return e.Err.Error()
	}
	return fmt.Sprintf("%s: %v", e.Ref, e.Err)
}

// Unwrap returns the cause.
func (e *ObjectError) Unwrap() error { return e.Err }

// Apply makes the objects as declared, like kubectl apply: it creates missing ones. It
// gives others the declared fields, and removes fields that were declared the last time
// and are no more. Other writers' changes stay: the volume of a claim and the claim of a
// volume, finalizers, status, a class that was given by default. The objects are only
// read. Apply is idempotent and safe for concurrent use: calls run one after the other.
//
//   - Each claim and volume gets a new UID, as in Kubernetes, whatever UID its manifest has: a
//     claim that is deleted and declared again is another claim, and does not see the data of
//     the first, and no two stores share a claim. Existing ones keep theirs.
//   - Status, finalizers, owners and other fields that only a cluster writes are ignored.
//   - A volume that is declared with its claim's UID, from an earlier record, waits for
//     that claim, which is the one that keeps its UID: until then nothing is reclaimed, and no
//     other claim gets the volume. Two stores that are given both share that claim's data.
//   - Storage comes before claims and those before pods, whatever their order, so that
//     claims find the volumes declared with them. [Cluster.Bind] puts pods on the node.
//   - The error joins one *[ObjectError] for each refused object, which stays as it was:
//     [ErrImmutable], *[volume.InvalidSpecError], [ErrBeingDeleted]. The others are
//     applied.
//   - While the cluster runs, claims that come with new volumes wait up to two seconds
//     until the controller has noticed these.
func (c *Cluster) Apply(ctx context.Context, declared ...metav1.Object) error {
	unlock, err := c.applying.Lock(ctx, struct{}{})
	if err != nil {
		return err
	}
	defer unlock()
	ordered := slices.SortedStableFunc(slices.Values(declared), func(a, b metav1.Object) int { return cmp.Compare(rank(a), rank(b)) })
	var errs []error
	var unseen []string // volumes that the controller may not have noticed yet
	for _, object := range ordered {
		ref := refOf(object)
		if rank(object) >= rank(new(v1.PersistentVolumeClaim)) {
			c.awaitVolumes(ctx, unseen)
			unseen = nil
		}
		created, err := c.applyOne(ctx, ref, object)
		if err != nil {
			errs = append(errs, &ObjectError{ref, err})
		}
		if created && ref.Kind == kindVolume {
			unseen = append(unseen, ref.Name)
		}
	}
	return errors.Join(errs...)
}

// rank orders objects for Apply: those that others need come first.
func rank(object metav1.Object) int {
	switch object.(type) {
	case *v1.PersistentVolume:
		return 1
	case *v1.PersistentVolumeClaim:
		return 2
	case *v1.Pod:
		return 3
	}
	return 0
}

// refOf names an object; kinds are named as their types are.
func refOf(object metav1.Object) volume.ObjectRef {
	kind := reflect.TypeOf(object)
	for kind.Kind() == reflect.Pointer {
		kind = kind.Elem()
	}
	return volume.NewObjectRef(kind.Name(), object.GetNamespace(), object.GetName())
}

// noticed is how long claims wait for the controller to have noticed a volume:
// far longer than it takes, unless it is busy or does not run.
const noticed = 2 * time.Second

// awaitVolumes waits until a controller that runs has seen new volumes: else it
// might have others made for the claims that come with them. At worst that
// happens, too.
func (c *Cluster) awaitVolumes(ctx context.Context, names []string) {
	if len(names) == 0 || !c.running.Load() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, noticed)
	defer cancel()
	changed, stop := c.watch(kindVolume)
	defer stop()
	for _, name := range names {
		for {
			pv, err := objects.Get[*v1.PersistentVolume](ctx, c.objects, volume.NewObjectRef(kindVolume, "", name))
			if err != nil || pv.Status.Phase != "" {
				break
			}
			select {
			case <-changed:
			case <-ctx.Done():
				return
			}
		}
	}
}

func (c *Cluster) applyOne(ctx context.Context, ref volume.ObjectRef, declared metav1.Object) (created bool, err error) {
	if err := validate(declared); err != nil {
		return false, err
	}
	// Again where the controller was faster.
	err = retry.Do(ctx, objects.ErrConflict, func() error {
		created, err = c.tryApply(ctx, ref, declared)
		if errors.Is(err, objects.ErrExists) {
			return fmt.Errorf("%w: %w", objects.ErrConflict, err)
		}
		return err
	})
	c.note(ref, declared, err)
	return created, err
}

func validate(declared metav1.Object) error {
	switch declared := declared.(type) {
	case *v1.PersistentVolumeClaim:
		return validation.PersistentVolumeClaim(declared)
	case *v1.PersistentVolume:
		return validation.PersistentVolume(declared)
	case *storagev1.StorageClass:
		return validation.StorageClass(declared)
	}
	return nil
}

func (c *Cluster) tryApply(ctx context.Context, ref volume.ObjectRef, declared metav1.Object) (created bool, err error) {
	switch declared := declared.(type) {
	case *v1.PersistentVolumeClaim, *v1.PersistentVolume:
		return c.applyRecorded(ctx, ref, declarable(declared))
	case *v1.Pod:
		return c.applyPod(ctx, ref, declared)
	default:
		return c.applyPlain(ctx, ref, declarable(declared))
	}
}

// applyRecorded applies a claim or volume.
func (c *Cluster) applyRecorded(ctx context.Context, ref volume.ObjectRef, declared metav1.Object) (created bool, err error) {
	stored, err := c.objects.Get(ctx, ref)
	switch {
	case errors.Is(err, volume.ErrNotFound):
		return c.create(ctx, ref, declared)
	case err != nil:
		return false, err
	case stored.GetDeletionTimestamp() != nil:
		return false, ErrBeingDeleted
	}
	if gone, err := c.makeWay(ctx, ref, stored, declared); err != nil {
		return false, err
	} else if gone {
		return c.create(ctx, ref, declared)
	}
	if err := checkIdentity(ref, stored, declared); err != nil {
		return false, err
	}
	next, err := merged(stored, declared, c.manager)
	if err != nil {
		return false, err
	}
	switch next := next.(type) {
	case *v1.PersistentVolumeClaim:
		err = checkClaim(stored.(*v1.PersistentVolumeClaim), next)
	case *v1.PersistentVolume:
		err = checkVolume(stored.(*v1.PersistentVolume), next)
		awaitClaim(stored.(*v1.PersistentVolume), next)
	}
	setDefaults(next)
	if err != nil || equality.Semantic.DeepEqual(stored, next) {
		return false, err
	}
	_, err = c.objects.Update(ctx, next)
	return false, err
}

// create makes a declared claim or volume.
func (c *Cluster) create(ctx context.Context, ref volume.ObjectRef, declared metav1.Object) (created bool, err error) {
	if err := mark(declared, declared, c.manager); err != nil {
		return false, err
	}
	if awaited, err := c.isAwaited(ctx, ref, declared.GetUID()); err != nil {
		return false, err
	} else if !awaited {
		declared.SetUID("") // the store gives it one
	}
	setDefaults(declared)
	switch declared := declared.(type) {
	case *v1.PersistentVolume:
		awaitClaim(nil, declared)
	case *v1.PersistentVolumeClaim:
		if err := c.giveDefaultClass(ctx, declared); err != nil {
			return false, err
		}
	}
	_, err = c.objects.Create(ctx, declared)
	return err == nil, err
}

// giveDefaultClass gives a new claim that says nothing of its class the default
// one, as the API server's admission plugin DefaultStorageClass does, whether or
// not the claim names its volume. A claim that was there before any class was the
// default is given it by the controller.
func (c *Cluster) giveDefaultClass(ctx context.Context, claim *v1.PersistentVolumeClaim) error {
	if _, named := claim.Annotations[v1.BetaStorageClassAnnotation]; named || claim.Spec.StorageClassName != nil {
		return nil
	}
	classes, err := objects.List[*storagev1.StorageClass](ctx, c.objects, kindClass, "")
	if err != nil {
		return err
	}
	if class := persistentvolume.DefaultClass(classes); class != "" {
		claim.Spec.StorageClassName = &class
	}
	return nil
}

// applyPod stores a pod that is on no node until it is placed; a mounted one was
// placed before. It uses its mounted volumes, even if declared no more, until it
// is applied again or gone; so does another pod of its name. A claim that it did
// not use before is kept only once it is placed with that.
func (c *Cluster) applyPod(ctx context.Context, ref volume.ObjectRef, declared *v1.Pod) (created bool, err error) {
	next := declarable(declared).(*v1.Pod)
	next.Spec.NodeName = ""
	stored, err := objects.Get[*v1.Pod](ctx, c.objects, ref)
	if errors.Is(err, volume.ErrNotFound) {
		return c.applyPlain(ctx, ref, next)
	}
	if err != nil {
		return false, err
	}
	mounted, err := c.mountedOf(ctx, stored.UID)
	if err != nil {
		return false, err
	}
	mounted = slices.DeleteFunc(mounted, func(m Mounted) bool {
		return m.By != "" || m.PodUID != stored.UID || m.Claim.Name == "" || m.Claim.Namespace != ref.Namespace
	})
	if stored.UID != next.UID {
		for i := range mounted {
			mounted[i].Pod = types.NamespacedName{Namespace: ref.Namespace, Name: fmt.Sprintf("%s.uid-%s", ref.Name, stored.UID)}
		}
		if err := c.storeUsers(ctx, mounted); err != nil {
			return false, err
		}
		return c.applyPlain(ctx, ref, next)
	}
	next.Spec.NodeName = stored.Spec.NodeName
	if next.Spec.NodeName != "" { // what it wants beside, it uses once it is placed with that
		had := claimsOf(stored)
		next.Spec.Volumes = slices.DeleteFunc(next.Spec.Volumes, func(v v1.Volume) bool {
			name, _ := claimbinding.ClaimOf(next, &v)
			return v.PersistentVolumeClaim != nil && !slices.Contains(had, name)
		})
	}
	claims := claimsOf(next)
	for _, m := range mounted {
		if !slices.Contains(claims, m.Claim) {
			next.Spec.Volumes = append(next.Spec.Volumes, m.asVolume(len(next.Spec.Volumes)))
		}
	}
	return c.applyPlain(ctx, ref, next)
}

// applyPlain stores an object that only its manifest changes.
func (c *Cluster) applyPlain(ctx context.Context, ref volume.ObjectRef, next metav1.Object) (created bool, err error) {
	stored, err := c.objects.Get(ctx, ref)
	if err == nil && next.GetUID() != "" && stored.GetUID() != next.GetUID() && ref != c.nodeRef() {
		if err := c.objects.Delete(ctx, ref, objects.Preconditions{UID: stored.GetUID()}); err != nil {
			return false, err
		}
		err = volume.ErrNotFound
	}
	switch {
	case errors.Is(err, volume.ErrNotFound):
		_, err = c.objects.Create(ctx, next)
		return err == nil, err
	case err != nil:
		return false, err
	}
	next.SetUID("")
	if _, err := c.objects.Update(ctx, next); err != nil || ref.Kind != kindNode {
		return false, err
	}
	_, err = c.objects.UpdateStatus(ctx, next) // which says what it has
	return false, err
}

// nodeRef names this node, which always exists.
func (c *Cluster) nodeRef() volume.ObjectRef { return volume.NewObjectRef(kindNode, "", c.nodeName) }

// defaultNode is this node where none is declared.
func (c *Cluster) defaultNode() *v1.Node {
	return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: c.nodeName, Labels: map[string]string{v1.LabelHostname: c.nodeName}}}
}

// note remembers applied objects: objects that are in memory only, to know what
// to prune, and those that have to wait for another to go.
func (c *Cluster) note(ref volume.ObjectRef, declared metav1.Object, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.later, ref)
	switch {
	case errors.Is(err, ErrBeingDeleted):
		c.later[ref] = declared
	case err == nil && ref.Kind != kindClaim && ref.Kind != kindVolume && ref.Kind != kindPod:
		c.plain[ref] = true
	}
}
