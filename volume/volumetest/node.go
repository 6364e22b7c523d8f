package volumetest

import (
	"context"
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/fakehost"
	"github.com/podvol/podvol/volume/volumetest/internal/faultymount"
	"github.com/podvol/podvol/volume/volumetest/internal/tree"
)

// Node is a node with one plugin, as a check uses it.
type Node struct {
	*fakehost.Host
	// Dir is an empty directory outside the node's root, for what is the
	// source of a volume: a hostPath, the content of an export.
	Dir string
	// Kernel says that mounts are real, and Fake is nil.
	Kernel bool

	kit     *kit
	plugin  volume.VolumePlugin
	mounter faultymount.Mounter
	working Case
	devices *devices
	agent   *agent
}

// node returns a new node for a case, whose source is prepared.
func (k *kit) node(c Case) *Node {
	k.Helper()
	return k.nodeWith(c, tree.New(k))
}

// nodeWith is node with a Dir that may be another node's too.
func (k *kit) nodeWith(c Case, dir string) *Node {
	k.Helper()
	n := &Node{Dir: dir, Kernel: k.on == onKernel, kit: k, working: c, devices: newDevices(), agent: &agent{}}
	if n.Kernel {
		n.Host = fakehost.NewOnKernel(k, faultymount.NewKernel())
	} else {
		n.Host = fakehost.New(k)
		for fstype, content := range k.runner.suite.FileSystems {
			n.Fake.ServeType(fstype, content)
		}
	}
	n.mounter = n.GetMounter().(faultymount.Mounter)
	n.Add(k.runner.suite.Objects...)
	if c.Prepare != nil {
		c.Prepare(n)
	}
	n.start()
	return n
}

// start gives the node a new plugin.
func (n *Node) start() {
	n.T().Helper()
	n.plugin = n.kit.runner.newPlugin()
	n.Pods = podRunnerRole{n}
	if err := n.plugin.Init(n.Host); err != nil {
		n.T().Fatalf("Init: %v", err)
	}
}

// restart returns the node as it is after the agent was started again: root,
// mounts and objects stay; plugin, host and everything they remember is new.
func (n *Node) restart() *Node {
	n.T().Helper()
	again := *n
	again.Host, again.agent = n.Restarted(), &agent{}
	again.start()
	again.sweep()
	return &again
}

// sweep has the plugin unmount what it had mounted for itself when it died, as
// the manager does at its start.
func (n *Node) sweep() {
	n.T().Helper()
	p, ok := volume.AsWorkMount(n.plugin)
	if !ok {
		return
	}
	if err := p.SweepWork(n.T().Context()); err != nil {
		n.T().Errorf("SweepWork: %v", err)
	}
}

// pod returns a pod that uses the spec.
func (n *Node) pod(name string, spec *volume.Spec) *v1.Pod {
	pod := fakehost.Pod(name)
	if spec.Volume != nil {
		pod.Spec.Volumes = []v1.Volume{*spec.Volume.DeepCopy()}
	}
	if n.working.Pod != nil {
		n.working.Pod(pod)
	}
	return pod
}

// podVolume is the case's volume in one pod.
type podVolume struct {
	node *Node
	spec *volume.Spec
	pod  *v1.Pod
	volume.Mounter
}

// volume returns the case's volume in the pod of this name.
func (n *Node) volume(podName string) *podVolume {
	n.T().Helper()
	spec := n.working.Spec(n)
	return n.volumeOf(spec, n.pod(podName, spec))
}

func (n *Node) volumeOf(spec *volume.Spec, pod *v1.Pod) *podVolume {
	n.T().Helper()
	m, err := n.plugin.NewMounter(spec, pod)
	if err != nil {
		n.T().Fatalf("NewMounter: %v", err)
	}
	return &podVolume{node: n, spec: spec, pod: pod, Mounter: m}
}

// same returns the volume as a restarted node sees it.
func (v *podVolume) same(n *Node) *podVolume {
	n.T().Helper()
	return n.volumeOf(v.spec, v.pod)
}

// setUp mounts the volume as a node does: where it needs a device, that is
// attached and mounted first.
func (v *podVolume) setUp(ctx context.Context) error {
	if err := v.stage(ctx); err != nil {
		return err
	}
	return v.SetUp(ctx, v.node.working.Args)
}

func (v *podVolume) mustSetUp() {
	v.node.T().Helper()
	if err := v.setUp(v.node.T().Context()); err != nil {
		v.node.T().Fatalf("SetUp: %v", err)
	}
}

func (v *podVolume) unmounter() volume.Unmounter {
	v.node.T().Helper()
	u, err := v.newUnmounter()
	if err != nil {
		v.node.T().Fatal(err)
	}
	return u
}

func (v *podVolume) newUnmounter() (volume.Unmounter, error) {
	u, err := v.node.plugin.NewUnmounter(v.spec.Name(), v.pod.UID)
	if err != nil {
		return nil, fmt.Errorf("NewUnmounter: %w", err)
	}
	return u, nil
}

// tearDown unmounts the volume as a node does: with the last pod its device
// goes, if it has one. It may be called from any goroutine, so it does not end the test.
func (v *podVolume) tearDown(ctx context.Context) error {
	u, err := v.newUnmounter()
	if err != nil {
		return err
	}
	if err := u.TearDown(ctx); err != nil {
		return err
	}
	return v.release(ctx)
}

func (v *podVolume) mustTearDown() {
	v.node.T().Helper()
	if err := v.tearDown(v.node.T().Context()); err != nil {
		v.node.T().Fatalf("TearDown: %v", err)
	}
}

// owned reports whether the volume has a directory of its own below the root,
// as all have but those that hand out a path of the node.
func (v *podVolume) owned() bool {
	return strings.HasPrefix(v.GetPath(), v.node.RootDir+"/")
}

// persistentVolume returns one with this source, of volume mode Filesystem.
func persistentVolume(source v1.PersistentVolumeSource) *v1.PersistentVolume {
	filesystem := v1.PersistentVolumeFilesystem
	pv := &v1.PersistentVolume{}
	pv.Name = "pv"
	pv.Spec = v1.PersistentVolumeSpec{
		Capacity:               v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")},
		AccessModes:            []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
		VolumeMode:             &filesystem,
		PersistentVolumeSource: *source.DeepCopy(),
	}
	return pv
}

// ownName is part of every name that the checks give to what they make in volumes
// and sources, so that it is none of the plugin's or the author's.
const ownName = "volumetest-7d1c-"

// own is the checks' own name for a path; what is hidden stays so.
func own(path string) string {
	if hidden, ok := strings.CutPrefix(path, "."); ok {
		return "." + ownName + hidden
	}
	return ownName + path
}

// mounterCalls are all calls of the host's mounter.
func mounterCalls(h *fakehost.Host) []fmt.Stringer {
	var calls []fmt.Stringer
	if m, ok := h.GetMounter().(faultymount.Mounter); ok {
		for _, c := range m.Calls() {
			calls = append(calls, c)
		}
	}
	return calls
}
