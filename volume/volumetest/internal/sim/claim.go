package sim

import (
	"context"
	"fmt"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/volumetest/internal/specs"
)

// Claim is a claim, and the storage that the node's plugin makes for it.
type Claim struct {
	Name string
	// PV is what Provision has returned, as a controller binds it; nil: nothing.
	PV *v1.PersistentVolume

	node  *Node
	size  string
	class Class
}

// Class is a storage class.
type Class struct {
	// Parameters returns a new map each time; nil: there are none.
	Parameters   func() map[string]string
	MountOptions []string
}

// Claim returns a claim of this name and size, for which nothing is made yet.
func (n *Node) Claim(name, size string, class Class) *Claim {
	return &Claim{Name: name, node: n, size: size, class: class}
}

// Options are the claim's wishes, new each time.
func (c *Claim) Options() volume.VolumeOptions {
	claim := &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{
		Namespace: metav1.NamespaceDefault, Name: c.Name, UID: types.UID("uid-of-" + c.Name)}}
	claim.Spec = v1.PersistentVolumeClaimSpec{
		AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}, VolumeMode: new(v1.PersistentVolumeFilesystem),
		StorageClassName: new("class"),
		Resources:        v1.VolumeResourceRequirements{Requests: v1.ResourceList{v1.ResourceStorage: resource.MustParse(c.size)}},
	}
	options := volume.VolumeOptions{PVName: "pvc-uid-of-" + c.Name, PVC: claim, MountOptions: c.class.MountOptions,
		PersistentVolumeReclaimPolicy: v1.PersistentVolumeReclaimDelete}
	if c.class.Parameters != nil {
		options.Parameters = c.class.Parameters()
	}
	return options
}

// Provision asks the plugin for the storage. It may be called from any goroutine.
func (c *Claim) Provision(ctx context.Context) (*v1.PersistentVolume, error) {
	p, _ := volume.AsProvisionable(c.node.Plugin)
	options := c.Options()
	given := c.Options()
	provisioner, err := p.NewProvisioner(options)
	if err != nil {
		return nil, fmt.Errorf("NewProvisioner: %w", err)
	}
	pv, err := provisioner.Provision(ctx, nil, nil)
	if diff := cmp.Diff(given, options); diff != "" {
		c.node.t.Errorf("Provision has changed its options (-before +after):\n%s", diff)
	}
	if err != nil {
		return nil, err
	}
	if pv == nil {
		return nil, fmt.Errorf("neither a PersistentVolume nor an error is returned by Provision")
	}
	return c.bound(pv), nil
}

// bound is the PersistentVolume as a controller stores it.
func (c *Claim) bound(pv *v1.PersistentVolume) *v1.PersistentVolume {
	pv = pv.DeepCopy()
	pv.UID = types.UID("uid-of-" + pv.Name)
	if pv.Spec.ClaimRef == nil {
		claim := c.Options().PVC
		pv.Spec.ClaimRef = &v1.ObjectReference{Kind: "PersistentVolumeClaim", APIVersion: "v1", Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID}
	}
	return pv
}

// Delete has the plugin delete the storage. It may be called from any goroutine.
func (c *Claim) Delete(ctx context.Context) error {
	p, _ := volume.AsDeletable(c.node.Plugin)
	d, err := p.NewDeleter(specs.ToDelete(volume.NewSpecFromPersistentVolume(c.PV, false)))
	if err != nil {
		return fmt.Errorf("NewDeleter: %w", err)
	}
	return d.Delete(ctx)
}

// Recycle has the plugin empty the volume of the spec.
func (n *Node) Recycle(ctx context.Context, spec *volume.Spec) error {
	p, _ := volume.AsRecyclable(n.Plugin)
	return p.Recycle(ctx, spec.Name(), spec, func(string, string) {})
}
