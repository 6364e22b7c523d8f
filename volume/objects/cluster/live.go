package cluster

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/pager"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
)

// Live implements [objects.Cached]. Every read is a request, answered from the
// API's most recent state.
func (c *Client) Live() objects.Reader { return live{c.clientset} }

// Read returns a reader over a clientset, for programs that look at objects now
// and then and watch none: package podfiles and package containerenv take it.
// Every read is a request; its errors are as in [Client]. It may be used
// concurrently.
func Read(clientset kubernetes.Interface) objects.Reader { return live{clientset} }

type live struct{ clientset kubernetes.Interface }

func (l live) Get(ctx context.Context, ref volume.ObjectRef) (metav1.Object, error) {
	r, err := resourceOf(ref.Kind)
	if err != nil {
		return nil, err
	}
	return r.liveGet(ctx, l.clientset, ref)
}

func (r resource) liveGet(ctx context.Context, clientset kubernetes.Interface, ref volume.ObjectRef) (metav1.Object, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	object, err := r.get(ctx, clientset, ref.Namespace, ref.Name)
	if err != nil {
		return nil, failed("get", ref, err)
	}
	return object, nil
}

// List reads all objects as of one moment.
func (l live) List(ctx context.Context, kind, namespace string) ([]metav1.Object, error) {
	r, err := resourceOf(kind)
	if err != nil {
		return nil, err
	}
	// Read page by page, or all at once if the moment of the first page is too
	// long ago.
	pages := pager.New(func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return r.list(ctx, l.clientset, namespace, options)
	})
	list, _, err := pages.List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list objects of kind %s: %w", kind, err)
	}
	items, err := meta.ExtractList(list)
	if err != nil {
		return nil, fmt.Errorf("list objects of kind %s: %w", kind, err)
	}
	all := make([]metav1.Object, 0, len(items))
	for _, item := range items {
		object, err := meta.Accessor(item)
		if err != nil {
			return nil, fmt.Errorf("list objects of kind %s: %w", kind, err)
		}
		all = append(all, object)
	}
	sortByName(all)
	return all, nil
}

func sortByName(all []metav1.Object) {
	slices.SortFunc(all, func(a, b metav1.Object) int {
		return cmp.Or(cmp.Compare(a.GetNamespace(), b.GetNamespace()), cmp.Compare(a.GetName(), b.GetName()))
	})
}
