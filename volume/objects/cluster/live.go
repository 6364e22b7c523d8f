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

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
)

// pageSize is how many objects one request lists, as in client-go's pager.
const pageSize = 500

// Live implements [objects.Cached]: every read is a request, answered from the
// API's most recent state.
func (c *Client) Live() objects.Reader { return live{c.clientset} }

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

// List reads page by page, all of them as of one moment.
func (l live) List(ctx context.Context, kind, namespace string) ([]metav1.Object, error) {
	r, err := resourceOf(kind)
	if err != nil {
		return nil, err
	}
	var all []metav1.Object
	for options := (metav1.ListOptions{Limit: pageSize}); ; {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		page, err := r.list(ctx, l.clientset, namespace, options)
		if err != nil {
			return nil, fmt.Errorf("list objects of kind %s: %w", kind, err)
		}
		if all, err = appendItems(all, page); err != nil {
			return nil, fmt.Errorf("list objects of kind %s: %w", kind, err)
		}
		listMeta, err := meta.ListAccessor(page)
		if err != nil {
			return nil, fmt.Errorf("list objects of kind %s: %w", kind, err)
		}
		if options.Continue = listMeta.GetContinue(); options.Continue == "" {
			sortByName(all)
			return all, nil
		}
	}
}

func appendItems(all []metav1.Object, page runtime.Object) ([]metav1.Object, error) {
	items, err := meta.ExtractList(page)
	if err != nil {
		return nil, err
	}
	for _, item := range items {
		object, err := meta.Accessor(item)
		if err != nil {
			return nil, err
		}
		all = append(all, object)
	}
	return all, nil
}

func sortByName(all []metav1.Object) {
	slices.SortFunc(all, func(a, b metav1.Object) int {
		return cmp.Or(cmp.Compare(a.GetNamespace(), b.GetNamespace()), cmp.Compare(a.GetName(), b.GetName()))
	})
}
