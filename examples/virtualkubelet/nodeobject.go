package main

import (
	"context"
	"os"
	goruntime "runtime"
	"runtime/debug"
	"strings"

	"github.com/virtual-kubelet/virtual-kubelet/node"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/examples/virtualkubelet/criruntime"
	"github.com/podvol/podvol/examples/virtualkubelet/csidrivers"
	"github.com/podvol/podvol/examples/virtualkubelet/kubeletapi"
	"github.com/podvol/podvol/examples/virtualkubelet/podlife"
)

// newNodeController keeps the node's object and its lease.
func newNodeController(c config, object *v1.Node) (*node.NodeController, error) {
	return node.NewNodeController(node.NaiveNodeProvider{}, object, endingNodes{c.api.CoreV1().Nodes()},
		node.WithNodeEnableLeaseV1(c.api.CoordinationV1().Leases(v1.NamespaceNodeLease), 0))
}

// newNodeObject describes the node to the API server.
func newNodeObject(ctx context.Context, c config, runtime podlife.Runtime, api *kubeletapi.Server) *v1.Node {
	object := &v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: c.name, Labels: map[string]string{
			"type": "virtual-kubelet", v1.LabelHostname: c.name, v1.LabelOSStable: goruntime.GOOS, v1.LabelArchStable: goruntime.GOARCH}},
		Status: v1.NodeStatus{
			Addresses: []v1.NodeAddress{{Type: v1.NodeInternalIP, Address: c.address}, {Type: v1.NodeHostName, Address: c.name}},
			NodeInfo:  systemInfo(),
		},
	}
	if c.csi {
		object.Annotations = map[string]string{csidrivers.AttachAnnotation: "true"}
	}
	object.Status.Capacity = capacity(c.dir)
	object.Status.Allocatable = object.Status.Capacity.DeepCopy()
	if !c.noTaint { // only pods that tolerate it are run here
		object.Spec.Taints = []v1.Taint{{Key: "virtual-kubelet.io/provider", Value: "podvol", Effect: v1.TaintEffectNoSchedule}}
	}
	if behind, ok := runtime.(*criruntime.Runtime); ok {
		object.Status.NodeInfo.ContainerRuntimeVersion, _ = behind.Version(ctx) // empty: it does not say
		behind.Describe(&object.Status)
	}
	if api != nil {
		object.Status.DaemonEndpoints.KubeletEndpoint.Port = api.Port()
	}
	for _, kind := range []v1.NodeConditionType{v1.NodeReady, v1.NodeMemoryPressure, v1.NodeDiskPressure, v1.NodePIDPressure} {
		condition := v1.NodeCondition{Type: kind, Status: v1.ConditionFalse, Reason: "NotMeasured", Message: "this node evicts no pods for it",
			LastTransitionTime: metav1.Now().Rfc3339Copy(), LastHeartbeatTime: metav1.Now().Rfc3339Copy()}
		if kind == v1.NodeReady {
			condition.Status, condition.Reason, condition.Message = v1.ConditionTrue, "KubeletReady", "the node takes pods"
		}
		object.Status.Conditions = append(object.Status.Conditions, condition)
	}
	return object
}

// capacity is what the machine has, and the file system below dir.
func capacity(dir string) v1.ResourceList {
	size := v1.ResourceList{
		v1.ResourceCPU:  *resource.NewQuantity(int64(goruntime.NumCPU()), resource.DecimalSI),
		v1.ResourcePods: *resource.NewQuantity(110, resource.DecimalSI),
	}
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err == nil {
		size[v1.ResourceMemory] = *resource.NewQuantity(int64(info.Totalram)*int64(info.Unit), resource.BinarySI)
	}
	var disk unix.Statfs_t
	if err := unix.Statfs(dir, &disk); err == nil {
		size[v1.ResourceEphemeralStorage] = *resource.NewQuantity(int64(disk.Blocks)*disk.Bsize, resource.BinarySI)
	}
	return size
}

// systemInfo is what the machine says of itself. The version is that of the Kubernetes API
// that this program knows.
func systemInfo() v1.NodeSystemInfo {
	info := v1.NodeSystemInfo{OperatingSystem: goruntime.GOOS, Architecture: goruntime.GOARCH, KubeletVersion: "podvol-virtualkubelet"}
	if built, ok := debug.ReadBuildInfo(); ok {
		for _, m := range built.Deps {
			if version, is := strings.CutPrefix(m.Version, "v0."); is && m.Path == "k8s.io/api" {
				info.KubeletVersion = "v1." + version + "+podvol"
			}
		}
	}
	read := func(path string) string {
		text, _ := os.ReadFile(path) // a machine may lack it
		return strings.TrimSpace(string(text))
	}
	info.MachineID, info.BootID = read("/etc/machine-id"), read("/proc/sys/kernel/random/boot_id")
	info.SystemUUID, info.KernelVersion = read("/sys/class/dmi/id/product_uuid"), read("/proc/sys/kernel/osrelease")
	for line := range strings.Lines(read("/etc/os-release")) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "PRETTY_NAME="); ok {
			info.OSImage = strings.Trim(name, `"`)
		}
	}
	return info
}
