package cluster

import (
	"context"
	"errors"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
)

// Create implements [objects.Writer]. The errors of all writes match
// [objects.ErrUncertain], with two exceptions: the API refused the write by an
// answer 4xx, or the write was never sent.
func (c *Client) Create(ctx context.Context, object metav1.Object) (metav1.Object, error) {
	r, ref, err := admit(ctx, object)
	if err != nil {
		return nil, err
	}
	if object.GetResourceVersion() != "" {
		return nil, volume.Invalid("metadata.resourceVersion", "must not be set on %s, which is to be created", ref)
	}
	return c.write(ctx, "create", ref, object, r.create)
}

// Update implements [objects.Writer]. The API checks UID and resourceVersion in
// the same transaction.
func (c *Client) Update(ctx context.Context, object metav1.Object) (metav1.Object, error) {
	r, ref, err := admit(ctx, object)
	if err != nil {
		return nil, err
	}
	return c.write(ctx, "update", ref, object, r.update)
}

// UpdateStatus implements [objects.Writer].
func (c *Client) UpdateStatus(ctx context.Context, object metav1.Object) (metav1.Object, error) {
	r, ref, err := admit(ctx, object)
	if err != nil {
		return nil, err
	}
	if r.updateStatus == nil {
		return nil, volume.Invalid("status", "a %s has no status", ref.Kind)
	}
	return c.write(ctx, "update the status of", ref, object, r.updateStatus)
}

// Delete implements [objects.Writer]. Dependents are deleted by the API's default
// for the kind.
func (c *Client) Delete(ctx context.Context, ref volume.ObjectRef, preconditions objects.Preconditions) error {
	r, err := resourceOf(ref.Kind)
	switch {
	case err != nil:
		return err
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	var options metav1.DeleteOptions
	if preconditions != (objects.Preconditions{}) {
		options.Preconditions = &metav1.Preconditions{}
	}
	if preconditions.UID != "" {
		options.Preconditions.UID = &preconditions.UID
	}
	if preconditions.ResourceVersion != "" {
		options.Preconditions.ResourceVersion = &preconditions.ResourceVersion
	}
	var sent sending
	err = r.remove(sent.watched(ctx), c.clientset, ref.Namespace, ref.Name, options)
	return sent.failed("delete", ref, err)
}

// admit checks everything that needs no request.
func admit(ctx context.Context, object metav1.Object) (resource, volume.ObjectRef, error) {
	_, ref, err := objects.Describe(object)
	if err != nil {
		return resource{}, ref, err
	}
	r, err := resourceOf(ref.Kind)
	return r, ref, errors.Join(err, context.Cause(ctx))
}

func (c *Client) write(ctx context.Context, op string, ref volume.ObjectRef, object metav1.Object,
	send func(context.Context, kubernetes.Interface, metav1.Object) (metav1.Object, error)) (metav1.Object, error) {
	// Encoding sets an object's kind for a moment, and this object must not be
	// changed.
	object = object.(runtime.Object).DeepCopyObject().(metav1.Object)
	var sent sending
	stored, err := send(sent.watched(ctx), c.clientset, object)
	if err != nil {
		return nil, sent.failed(op, ref, err)
	}
	return stored, nil
}
