package manifestdir

import (
	"context"
	"iter"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/objects/manifest"
)

// Contents are the objects of manifests. The caller must not change the objects.
// It owns the maps.
type Contents struct {
	// Objects are all objects but pods.
	Objects map[volume.ObjectRef]metav1.Object
	Pods    map[volume.ObjectRef]*v1.Pod
	// StatefulSets are the names of the objects of that kind, whose pods are in Pods.
	StatefulSets map[types.NamespacedName]bool
	// Held names, for people, the objects that are in no file and still wanted,
	// and the reason; empty: none.
	Held string

	skipped []manifest.Skipped
}

func newContents() *Contents {
	return &Contents{Objects: make(map[volume.ObjectRef]metav1.Object), Pods: make(map[volume.ObjectRef]*v1.Pod), StatefulSets: make(map[types.NamespacedName]bool)}
}

// keys are what no two files may have: the references of all objects, and the UIDs of pods.
func (c *Contents) keys() iter.Seq[any] {
	return func(yield func(any) bool) {
		for ref := range c.Objects {
			if !yield(ref) {
				return
			}
		}
		for ref, pod := range c.Pods {
			if !yield(ref) || !yield(pod.UID) {
				return
			}
		}
	}
}

func contentsOf(set *manifest.Set) (*Contents, error) {
	c := newContents()
	c.skipped = set.Skipped
	for _, name := range set.StatefulSets {
		c.StatefulSets[name] = true
	}
	for _, pod := range set.Pods() {
		c.Pods[volume.NewObjectRef("Pod", pod.Namespace, pod.Name)] = pod
	}
	for _, kind := range objects.Kinds() {
		if kind.Kind == "Pod" {
			continue
		}
		list, err := set.List(context.Background(), kind.Kind, "")
		if err != nil {
			return nil, err
		}
		for _, o := range list {
			c.Objects[volume.NewObjectRef(kind.Kind, o.GetNamespace(), o.GetName())] = o
		}
	}
	return c, nil
}
