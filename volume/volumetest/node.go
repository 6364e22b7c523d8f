package volumetest

import (
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/fakehost"
	"github.com/podvol/podvol/volume/volumetest/internal/faultymount"
	"github.com/podvol/podvol/volume/volumetest/internal/sim"
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
	working Case
	sim     *sim.Node // on Host
}

// node returns a new node for a case, whose source is prepared.
func (k *kit) node(c Case) *Node {
	k.Helper()
	return k.nodeWith(c, tree.New(k))
}

// nodeWith is node with a Dir that may be another node's too.
func (k *kit) nodeWith(c Case, dir string) *Node {
	k.Helper()
	n := &Node{Dir: dir, Kernel: k.on == onKernel, kit: k, working: c}
	if n.Kernel {
		n.Host = fakehost.NewOnKernel(k, faultymount.NewKernel())
	} else {
		n.Host = fakehost.New(k)
		for fstype, content := range k.runner.suite.FileSystems {
			n.Fake.ServeType(fstype, content)
		}
	}
	n.Add(k.runner.suite.Objects...)
	if c.Prepare != nil {
		c.Prepare(n)
	}
	n.sim = sim.NewNode(k.T, n.Host, k.runner.newPlugin)
	return n
}

// restart returns the node as it is after a restart of its agent, see [sim.Node.Restart].
func (n *Node) restart() *Node {
	n.T().Helper()
	again := *n
	again.sim = n.sim.Restart()
	again.Host = again.sim.Host
	return &again
}

// AssertTornDown is that of [fakehost.Host], but bears with the directories that hold
// the places of the node's devices as well.
func (n *Node) AssertTornDown(t testing.TB) {
	t.Helper()
	n.sim.AssertTornDown(t)
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
	*sim.Volume
	node *Node
}

// volume returns the case's volume in the pod of this name.
func (n *Node) volume(podName string) *podVolume {
	n.T().Helper()
	spec := n.working.Spec(n)
	return n.volumeOf(spec, n.pod(podName, spec))
}

func (n *Node) volumeOf(spec *volume.Spec, pod *v1.Pod) *podVolume {
	n.T().Helper()
	return &podVolume{n.sim.Volume(spec, pod, n.working.Args), n}
}

// volumeBy is volumeOf with a mounter that the plugin has made.
func (n *Node) volumeBy(m volume.Mounter, spec *volume.Spec, pod *v1.Pod) *podVolume {
	return &podVolume{n.sim.VolumeBy(m, spec, pod, n.working.Args), n}
}

// same returns the volume as a restarted node sees it.
func (v *podVolume) same(n *Node) *podVolume {
	n.T().Helper()
	return n.volumeOf(v.Spec, v.Pod)
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
