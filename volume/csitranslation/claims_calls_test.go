package csitranslation_test

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/csitranslation"
)

var errAsked = errors.New("it was asked")

// asked is a controller that remembers for which volume, and with which topologies, it was
// called last. All calls fail.
type asked struct {
	csitranslation.Controller
	spec    *volume.Spec
	node    types.NodeName
	class   string
	allowed []v1.TopologySelectorTerm
}

func (a *asked) AttachSpec(_ context.Context, spec *volume.Spec, node types.NodeName) (volume.Attachment, error) {
	a.spec, a.node = spec, node
	return volume.Attachment{}, errAsked
}

func (a *asked) DetachSpec(_ context.Context, spec *volume.Spec, node types.NodeName) error {
	a.spec, a.node = spec, node
	return errAsked
}

func (a *asked) Modify(_ context.Context, spec *volume.Spec, class *storagev1.VolumeAttributesClass) error {
	a.spec, a.class = spec, class.Name
	return errAsked
}

func (a *asked) NewProvisioner(volume.VolumeOptions) (volume.Provisioner, error) { return a, nil }

func (a *asked) Provision(_ context.Context, _ *v1.Node, allowed []v1.TopologySelectorTerm) (*v1.PersistentVolume, error) {
	a.allowed = allowed
	return nil, errAsked
}

// The driver is asked to attach, detach and change its own volume, and not the in-tree one.
func TestCallsAreForTheDriversVolume(t *testing.T) {
	spec := persistent(v1.PersistentVolumeSource{AWSElasticBlockStore: &v1.AWSElasticBlockStoreVolumeSource{VolumeID: "vol-1"}})
	for name, call := range map[string]func(c *csitranslation.Claims) error{
		"attach": func(c *csitranslation.Claims) error {
			_, err := c.AttachSpec(t.Context(), spec, "node1")
			return err
		},
		"detach": func(c *csitranslation.Claims) error { return c.DetachSpec(t.Context(), spec, "node1") },
		"modify": func(c *csitranslation.Claims) error {
			return c.Modify(t.Context(), spec, named("gold"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			a := &asked{}
			if err := call(csitranslation.NewClaims(a, csitranslation.New())); !errors.Is(err, errAsked) {
				t.Fatal(err)
			}
			if csi := a.spec.PersistentVolume.Spec.CSI; csi == nil || csi.Driver != ebsDriver || csi.VolumeHandle != "vol-1" {
				t.Errorf("the driver was asked for %+v", a.spec.PersistentVolume.Spec)
			}
			if (name == "modify") != (a.class == "gold") || (name == "modify") == (a.node == "node1") {
				t.Errorf("for node %q and class %q", a.node, a.class)
			}
		})
	}
}

func named(class string) *storagev1.VolumeAttributesClass {
	c := &storagev1.VolumeAttributesClass{}
	c.Name = class
	return c
}

// Topologies of a class have the driver's keys when a volume is made.
func TestTopologiesOfAnInTreeClass(t *testing.T) {
	a := &asked{}
	p, err := csitranslation.NewClaims(a, csitranslation.New()).NewProvisioner(volume.VolumeOptions{Provisioner: ebsPlugin})
	if err != nil {
		t.Fatal(err)
	}
	zone := func(key string) v1.TopologySelectorTerm {
		return v1.TopologySelectorTerm{MatchLabelExpressions: []v1.TopologySelectorLabelRequirement{{Key: key, Values: []string{"a"}}}}
	}
	if _, err := p.Provision(t.Context(), nil, []v1.TopologySelectorTerm{zone("topology.kubernetes.io/zone")}); !errors.Is(err, errAsked) {
		t.Fatal(err)
	}
	if want := []v1.TopologySelectorTerm{zone("topology.ebs.csi.aws.com/zone")}; !cmp.Equal(a.allowed, want) {
		t.Errorf("the driver was asked for %v, want %v", a.allowed, want)
	}
}
