package cluster

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"github.com/podvol/podvol/volume/internal/following"
)

// newFollower returns a Follower that updates an entry by a watch of its object.
func newFollower(e *entry, r resource, clientset kubernetes.Interface, logger klog.Logger) *following.Follower {
	return &following.Follower{Kind: e.ref.Kind, Clientset: clientset, Logger: logger, Store: e,
		Selector: fields.OneTermEqualSelector(metav1.ObjectNameField, e.ref.Name),
		List: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return r.list(ctx, clientset, e.ref.Namespace, o)
		},
		Watch: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return r.watch(ctx, clientset, e.ref.Namespace, o)
		},
		Failed: func(err error) { e.fail(fmt.Errorf("watch %s: %w", e.ref, err)) },
	}
}
