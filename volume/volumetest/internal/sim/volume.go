package sim

import (
	"context"
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/mountrecord"
	"github.com/podvol/podvol/volume/volumesource"
)

// Volume is a volume in one pod of the node.
type Volume struct {
	Spec *volume.Spec
	Pod  *v1.Pod
	volume.Mounter

	node *Node
	args volume.MounterArgs
}

// Volume returns a volume by the plugin's NewMounter; args are the pod's wishes.
func (n *Node) Volume(spec *volume.Spec, pod *v1.Pod, args volume.MounterArgs) *Volume {
	n.t.Helper()
	m, err := n.Plugin.NewMounter(spec, pod)
	if err != nil {
		n.t.Fatalf("NewMounter: %v", err)
	}
	return n.VolumeBy(m, spec, pod, args)
}

// VolumeBy is [Node.Volume] with a mounter that the plugin has made.
func (n *Node) VolumeBy(m volume.Mounter, spec *volume.Spec, pod *v1.Pod, args volume.MounterArgs) *Volume {
	return &Volume{Spec: spec, Pod: pod, Mounter: m, node: n, args: args}
}

// SetUpWithDevice mounts the volume as a node does: where it needs a device, that is
// attached and mounted first.
func (v *Volume) SetUpWithDevice(ctx context.Context) error {
	if err := v.stage(ctx); err != nil {
		return err
	}
	return v.SetUp(ctx, v.args)
}

// MustSetUp is SetUpWithDevice; an error ends the test.
func (v *Volume) MustSetUp() {
	v.node.t.Helper()
	if err := v.SetUpWithDevice(v.node.t.Context()); err != nil {
		v.node.t.Fatalf("SetUp: %v", err)
	}
}

// Unmounter returns a new unmounter of the volume.
func (v *Volume) Unmounter() volume.Unmounter {
	v.node.t.Helper()
	u, err := v.newUnmounter()
	if err != nil {
		v.node.t.Fatal(err)
	}
	return u
}

func (v *Volume) newUnmounter() (volume.Unmounter, error) {
	u, err := v.node.Plugin.NewUnmounter(v.Spec.Name(), v.Pod.UID)
	if err != nil {
		return nil, fmt.Errorf("NewUnmounter: %w", err)
	}
	return u, nil
}

// TearDownWithDevice unmounts the volume as a node does: with the last pod its device
// goes, if it has one. It may be called from any goroutine, so it does not end the test.
func (v *Volume) TearDownWithDevice(ctx context.Context) error {
	u, err := v.newUnmounter()
	if err != nil {
		return err
	}
	if err := u.TearDown(ctx); err != nil {
		return err
	}
	return v.release(ctx)
}

// MustTearDown is TearDownWithDevice; an error ends the test.
func (v *Volume) MustTearDown() {
	v.node.t.Helper()
	if err := v.TearDownWithDevice(v.node.t.Context()); err != nil {
		v.node.t.Fatalf("TearDown: %v", err)
	}
}

// Owned reports whether the volume has a directory of its own below the root,
// as all have but those that hand out a path of the node.
func (v *Volume) Owned() bool {
	return strings.HasPrefix(v.GetPath(), v.node.RootDir+"/")
}

// Record writes the volume's record and reads it again, as a restart does.
func (v *Volume) Record() *mountrecord.Record {
	t := v.node.t
	t.Helper()
	data, err := mountrecord.Encode(&mountrecord.Record{
		PodUID: v.Pod.UID, Pod: types.NamespacedName{Namespace: v.Pod.Namespace, Name: v.Pod.Name},
		Volumes: []string{v.Spec.Name()}, Plugin: v.node.Plugin.GetPluginName(), Path: v.GetPath(),
		Source:       volumesource.Describe(v.node.Plugin, v.Spec),
		InlineVolume: v.Spec.Volume, PersistentVolume: v.Spec.PersistentVolume, ReadOnly: v.Spec.ReadOnly,
	})
	if err != nil {
		t.Fatalf("the volume cannot be recorded: %v", err)
	}
	record, err := mountrecord.Decode(data, nil)
	if err != nil {
		t.Fatal(err)
	}
	return record
}
