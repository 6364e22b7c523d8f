package main

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
)

// endingNodes is the client by which virtual-kubelet updates its node. v1.12 retries
// with client-go's RetryOnConflict, which returns nil where the error of a request is
// that of its context; virtual-kubelet then reads the node that it has not got, and
// panics. So the error of a request that was cut off does not wrap the context's here.
type endingNodes struct{ corev1client.NodeInterface }

func (n endingNodes) Get(ctx context.Context, name string, options metav1.GetOptions) (*v1.Node, error) {
	node, err := n.NodeInterface.Get(ctx, name, options)
	if wait.Interrupted(err) {
		err = fmt.Errorf("the request was cut off: %v", err)
	}
	return node, err
}
