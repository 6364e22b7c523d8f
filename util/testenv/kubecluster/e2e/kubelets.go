package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/podvol/podvol/util/testenv/kubecluster"
)

// nodePrograms are the programs that can be a node's kubelet.
func nodePrograms() map[string]func(node, options) *kubecluster.Process {
	return map[string]func(node, options) *kubecluster.Process{"virtualkubelet": node.virtualKubelet, "kubelet": node.kubelet}
}

// virtualKubelet is podvol's node.
func (n node) virtualKubelet(o options) *kubecluster.Process {
	flags := o.NodeFlags
	if o.CSI {
		flags = append([]string{"--csi"}, flags...)
	}
	return &kubecluster.Process{Name: "virtualkubelet", Path: base + "/programs/virtualkubelet", Dir: n.dir(), Args: append([]string{
		"--kubeconfig=" + n.dir() + "/kubeconfig", "--nodename=" + n.name(), "--node-ip=" + n.address(),
		"--dir=/var/lib/podvol", "--root-dir=/var/lib/kubelet", "--no-taint", "--runtime-endpoint=" + endpoint,
		"--tls-cert-file=" + n.dir() + "/node.crt", "--tls-private-key-file=" + n.dir() + "/node.key", "--client-ca-file=" + n.dir() + "/ca.crt",
	}, flags...)}
}

// kubelet is Kubernetes' own, the control of the experiment.
func (n node) kubelet(o options) *kubecluster.Process {
	return &kubecluster.Process{Name: "kubelet", Path: filepath.Join(o.Assets, "kubelet"), Dir: n.dir(), Args: append([]string{
		"--kubeconfig=" + n.dir() + "/kubeconfig", "--hostname-override=" + n.name(), "--node-ip=" + n.address(),
		"--config=" + n.dir() + "/kubelet.json",
	}, o.NodeFlags...)}
}

// kubeletConfiguration is the kubelet's file. It evicts nothing: the disk is the machine's.
func (n node) kubeletConfiguration() any {
	type object = map[string]any
	return object{
		"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
		"address": n.address(), "healthzPort": 0, "readOnlyPort": 0,
		"tlsCertFile": n.dir() + "/node.crt", "tlsPrivateKeyFile": n.dir() + "/node.key",
		"authentication":           object{"anonymous": object{"enabled": false}, "webhook": object{"enabled": false}, "x509": object{"clientCAFile": n.dir() + "/ca.crt"}},
		"authorization":            object{"mode": "AlwaysAllow"},
		"containerRuntimeEndpoint": endpoint,
		"cgroupDriver":             "cgroupfs", "failCgroupV1": false, "failSwapOn": false, "localStorageCapacityIsolation": true,
		"enforceNodeAllocatable":      []string{"none"},
		"evictionHard":                object{"memory.available": "1Mi", "nodefs.available": "0%", "nodefs.inodesFree": "0%", "imagefs.available": "0%"},
		"imageGCHighThresholdPercent": 100, "resolvConf": "",
		"serializeImagePulls": false, "protectKernelDefaults": false,
	}
}

// containerd returns the node's container runtime, after it has written its
// configuration. Its directories are the default ones, which are the node's own.
func (n node) containerd(o options) (*kubecluster.Process, error) {
	config := fmt.Sprintf(`version = 2
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = %q
restrict_oom_score_adj = true
disable_apparmor = true
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = %q
conf_dir = %q
[plugins."io.containerd.grpc.v1.cri".containerd]
snapshotter = "overlayfs"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
BinaryName = %q
`, pauseImage, o.Assets, n.dir()+"/cni", filepath.Join(o.Assets, "runc"))
	path := n.dir() + "/containerd.toml"
	if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
		return nil, err
	}
	return &kubecluster.Process{Name: "containerd", Path: filepath.Join(o.Assets, "containerd"), Dir: n.dir(),
		Args: []string{"--config", path}, Env: []string{"PATH=" + o.Assets + ":" + os.Getenv("PATH")}}, nil
}
