package manifest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/validation"
)

// Loader reads manifests for one node. Its zero value is ready.
type Loader struct {
	// NodeName is the node of the pods. Pods of another node are left out. Pods
	// without a node get this one. Empty: the only node that the pods name, or if
	// they name none the machine's host name.
	NodeName string
	// Stdin is read for the path "-"; nil means os.Stdin.
	Stdin io.Reader
}

// Set is the content of manifests: a store with all their objects, including the
// pods of workloads, and a list of the objects that were left out.
type Set struct {
	*objects.Store
	// NodeName is the node of the pods.
	NodeName string
	// Skipped lists the objects that were left out, in order.
	Skipped []Skipped
	// StatefulSets are the StatefulSets in the manifests, also those without
	// pods. A claim that is not in the store was left by a scale-down if its set
	// is in this list, else by a deletion of its set ([Retention]).
	StatefulSets []types.NamespacedName

	pods []*v1.Pod
}

// Skipped is an object that was left out.
type Skipped struct {
	// File and Document are the object's place, as in [Error].
	File     string
	Document int
	Ref      volume.ObjectRef
	// Reason is a clause that says why.
	Reason string
}

func (s Skipped) String() string {
	return oneLine(fmt.Sprintf("%s: document %d: %s is left out: %s", s.File, s.Document, s.Ref, s.Reason))
}

// Pods returns the pods as they were loaded, in the order of the manifests and of
// their ordinals. The caller owns the slice. It must not change the pods.
func (s *Set) Pods() []*v1.Pod { return slices.Clone(s.pods) }

// Objects returns all objects, pods included, in order of kind, namespace and
// name. They must not be changed.
func (s *Set) Objects(ctx context.Context) ([]metav1.Object, error) {
	var all []metav1.Object
	for _, kind := range objects.Kinds() {
		list, err := s.List(ctx, kind.Kind, metav1.NamespaceAll)
		if err != nil {
			return nil, err
		}
		all = append(all, list...)
	}
	return all, nil
}

// Load reads manifests for the node that they name, or this machine; see
// [Loader.Load].
func Load(paths ...string) (*Set, error) { return Loader{}.Load(paths...) }

// Load reads files, directories and standard input ("-"). Of a directory it reads
// the .yaml, .yml and .json files in order of name, but no subdirectories. A pipe,
// a socket or a device of such a name is a fault.
//
//   - A namespace defaults to "default".
//   - An object without metadata.uid gets one. It is made from kind, namespace
//     and name, and for pods from the node and the ordinal too, but never from
//     the content.
//   - A workload's pods are named <workload>-<ordinal>.
//
// The error joins an *[Error] for every fault (Unwrap() []error); then the Set is
// nil. Load only reads.
func (l Loader) Load(paths ...string) (*Set, error) {
	files, faults := l.read(paths)
	return l.load(files, faults)
}

// Decode is Load for one manifest in memory. name stands for its file in errors.
// Decode does not keep data.
func (l Loader) Decode(name string, data []byte) (*Set, error) {
	if err := checkText(data); err != nil {
		return nil, &Error{File: name, Err: err}
	}
	return l.load([]file{{name: name, data: data}}, nil)
}

func (l Loader) load(files []file, faults []error) (*Set, error) {
	var d decoder
	for _, f := range files {
		documents := split(f)
		if len(documents) == 0 {
			faults = append(faults, &Error{File: f.name, Err: ErrEmpty})
		}
		for _, doc := range documents {
			d.document(doc)
		}
	}
	b := builder{faults: append(faults, d.faults...), skipped: d.skipped}
	b.sort(d.objects)
	return b.build(l)
}

// builder makes a Set of decoded objects.
type builder struct {
	pods    []podAt
	others  []placed
	derived []placed // claims of StatefulSets
	skipped []Skipped
	sets    []types.NamespacedName // of kind StatefulSet
	faults  []error
}

func (b *builder) fault(errs ...error) { b.faults = append(b.faults, errs...) }

// sort separates pods, workloads and other objects, and expands the workloads.
func (b *builder) sort(found []placed) {
	for _, p := range found {
		if pod, ok := p.object.(*v1.Pod); ok {
			// The status is from a pod that ran elsewhere. This pod is still to
			// run. The kubelet, too, sets the phase of a manifest's pod to
			// Pending.
			pod.Status.Phase = ""
			b.pods = append(b.pods, podAt{placed: p, pod: pod, owner: p.ref()})
		} else if w, ok := asWorkload(p); ok {
			b.expand(w)
		} else {
			if secret, ok := p.object.(*v1.Secret); ok {
				mergeStringData(secret)
			}
			b.others = append(b.others, p)
			b.fault(p.faults(p.ref().String(), "", check(p))...)
		}
	}
}

func (b *builder) expand(w workload) {
	count, err := w.count()
	if err == nil {
		err = checkName(w.placed)
	}
	if err != nil {
		b.fault(w.faults(w.ref().String(), "", err)...)
		return
	}
	if w.retention.StatefulSet.Name != "" {
		b.sets = append(b.sets, w.retention.StatefulSet)
	}
	if count == 0 {
		b.validate(w.pod(0), w.ref()) // a template is checked though it is not used
		b.skipped = append(b.skipped, Skipped{
			File: w.file, Document: w.document, Ref: w.ref(), Reason: "it asks for no pods",
		})
	}
	for i := range count {
		pod := w.pod(i)
		if i == 0 && !b.validate(pod, w.ref()) {
			return
		}
		b.pods = append(b.pods, pod)
		b.derived = append(b.derived, w.claimsOf(i)...)
	}
}

// validate checks a pod. One pod of a workload stands for all: they do not differ
// in any checked field.
func (b *builder) validate(p podAt, of volume.ObjectRef) bool {
	pod := p.pod.DeepCopy()
	if pod.UID == "" {
		pod.UID = objects.DerivedPodUID("", of.Kind, of.Namespace, of.Name, p.ordinal)
	}
	faults := p.faults(of.String(), p.prefix, errors.Join(validation.PodVolumes(pod), checkNodeName(pod)))
	b.fault(faults...)
	return len(faults) == 0
}

// mergeStringData merges a secret's plain text into its data, as the API server
// does.
func mergeStringData(s *v1.Secret) {
	if len(s.StringData) > 0 && s.Data == nil {
		s.Data = make(map[string][]byte, len(s.StringData))
	}
	for key, value := range s.StringData {
		s.Data[key] = []byte(value)
	}
	s.StringData = nil
}

func (b *builder) build(l Loader) (*Set, error) {
	for _, p := range b.pods {
		if p.prefix == "" {
			b.validate(p, p.ref())
		}
	}
	node, err := l.chooseNode(b.pods)
	if err != nil {
		b.fault(&Error{File: "manifests", Field: "spec.nodeName", Err: err})
	}
	pods, elsewhere := assign(b.pods, node)
	b.checkDuplicates(pods)
	if len(b.faults) > 0 {
		return nil, errors.Join(b.faults...)
	}
	set := &Set{Store: objects.NewStore(), NodeName: node, Skipped: append(b.skipped, elsewhere...), StatefulSets: b.sets}
	if err := b.fill(set, pods); err != nil {
		return nil, err
	}
	return set, nil
}

// checkDuplicates finds objects that are there twice, and pods that would share a
// directory. It drops a derived claim if the manifests have that claim, too.
func (b *builder) checkDuplicates(pods []podAt) {
	first := make(map[volume.ObjectRef]place)
	uids := make(map[types.UID]place)
	enter := func(p placed) {
		ref := p.ref()
		if at, twice := first[ref]; twice {
			b.fault(p.fault(ref.String(), "", fmt.Errorf("%w: it is also in %s", ErrDuplicate, at)))
			return
		}
		first[ref] = p.place
		uid := p.object.GetUID()
		if at, twice := uids[uid]; uid != "" && twice {
			b.fault(p.fault(ref.String(), "metadata.uid", fmt.Errorf("an object in %s has the same UID", at)))
		}
		uids[uid] = p.place
	}
	for _, p := range b.others {
		enter(p)
	}
	for _, p := range pods {
		enter(p.placed)
	}
	b.derived = slices.DeleteFunc(b.derived, func(p placed) bool {
		_, there := first[p.ref()]
		first[p.ref()] = p.place
		if !there {
			b.fault(p.faults(p.ref().String(), "", check(p))...)
		}
		return there
	})
}

func (b *builder) fill(set *Set, pods []podAt) error {
	for _, p := range slices.Concat(b.others, b.derived) {
		if p.object.GetUID() == "" {
			p.object.SetUID(objects.DerivedUID(p.kind, p.object.GetNamespace(), p.object.GetName()))
		}
		if _, err := set.Create(context.Background(), p.object); err != nil {
			return p.fault(p.ref().String(), "", err)
		}
	}
	for _, p := range pods {
		if _, err := set.Create(context.Background(), p.pod); err != nil {
			return p.fault(p.ref().String(), "", err)
		}
		created, err := objects.Get[*v1.Pod](context.Background(), set, p.ref())
		if err != nil {
			return p.fault(p.ref().String(), "", err)
		}
		set.pods = append(set.pods, created)
	}
	return nil
}
