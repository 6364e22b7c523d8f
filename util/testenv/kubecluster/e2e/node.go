package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/testenv/kubecluster"
)

// maxNodes is how many nodes a run may have: the cluster's tests ask for two.
const maxNodes = 4

// node is one of the cluster's: a container runtime and a kubelet, in namespaces.
type node struct{ number int }

func (n node) name() string    { return fmt.Sprintf("node%d", n.number) }
func (n node) address() string { return fmt.Sprintf("10.77.0.%d", n.number) }
func (n node) dir() string     { return filepath.Join(base, "nodes", n.name()) }

// kind is which program the node runs.
func (n node) kind(o options) string { return o.Kinds[(n.number-1)%len(o.Kinds)] }

// endpoint is the container runtime's, in the node's namespace of mounts.
const endpoint = "unix:///run/containerd/containerd.sock"

// own are the directories of a node's own, in place of the machine's.
func own() []string { return []string{"var", "tmp", "run"} }

// removeState removes what the node has stored, and keeps its logs.
func (n node) removeState(o options) error {
	var all error
	for _, name := range own() {
		all = errors.Join(all, remove(filepath.Join(o.Dir, "nodes", n.name(), name)))
	}
	return all
}

// detachLoops detaches the loop devices of files that tests, and their CSI drivers, have made.
func (n node) detachLoops(o options) error {
	for _, dir := range []string{"tmp", "var/lib/csi-hostpath-data"} {
		err := detachLoops(filepath.Join(o.Dir, "nodes", n.name(), dir))
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // it was never made
			return err
		}
	}
	return nil
}

// prepare makes the node's directories, its identity and its configuration.
func (n node) prepare(o options, plane *kubecluster.ControlPlane) error {
	for _, name := range append(own(), "var/tmp", "var/log", "var/lib", "var/lib/kubelet", "cni", "sbin") {
		if err := os.MkdirAll(filepath.Join(n.dir(), name), 0o755); err != nil {
			return err
		}
	}
	for _, name := range []string{"tmp", "var/tmp"} {
		if err := os.Chmod(filepath.Join(n.dir(), name), 0o777|os.ModeSticky); err != nil {
			return err
		}
	}
	config, err := plane.Kubeconfig("system:node:"+n.name(), "system:nodes")
	if err != nil {
		return err
	}
	serving, err := plane.Serving("system:node:"+n.name(), n.address())
	if err != nil {
		return err
	}
	network, err := json.Marshal(n.network())
	if err != nil {
		return err
	}
	kubelet, err := json.Marshal(n.kubeletConfiguration())
	if err != nil {
		return err
	}
	for name, content := range map[string][]byte{
		"kubeconfig": config, "ca.crt": plane.CA(), "node.crt": serving.Certificate, "node.key": serving.Key,
		"cni/10-pods.conflist": network, "kubelet.json": kubelet,
	} {
		if err := os.WriteFile(filepath.Join(n.dir(), name), content, 0o600); err != nil {
			return err
		}
	}
	return os.WriteFile(n.dir()+"/sbin/crictl", fmt.Appendf(nil, crictl, filepath.Join(o.Assets, "ctr")), 0o755)
}

// crictl has the two commands of the real crictl that tests run in a node's mounts: find a
// container by a label and a name, and stop it.
const crictl = `#!/bin/sh
ctr="%s --namespace k8s.io"
case $1 in
  ps) exec $ctr containers ls --quiet "labels.\"${3%%%%=*}\"==${3#*=},labels.\"io.kubernetes.container.name\"==$5" ;;
  stop) exec $ctr tasks kill --signal SIGTERM "$2" ;;
  *) echo "crictl: only ps and stop are known" >&2; exit 2 ;;
esac
`

// network says how a pod is reached: each over a pair of interfaces of its own.
func (n node) network() any {
	type object = map[string]any
	return object{"cniVersion": "0.4.0", "name": "pods", "plugins": []object{{
		"type": "ptp",
		"ipam": object{
			"type": "host-local", "dataDir": "/run/cni",
			"ranges": [][]object{{{"subnet": fmt.Sprintf("10.88.%d.0/24", n.number)}}},
			"routes": []object{{"dst": "0.0.0.0/0"}},
		},
	}}}
}

// initStage is process 1 of the node.
func (n node) initStage(o options) error {
	if err := enterCGroup(o.CGroup, n.name()); err != nil {
		return err
	}
	if err := n.mounts(); err != nil {
		return err
	}
	if err := unix.Sethostname([]byte(n.name())); err != nil {
		return os.NewSyscallError("sethostname", err)
	}
	return reap("node-"+n.name(), o)
}

// mounts makes the machine's files read-only for the node, but for what is its own.
func (n node) mounts() error {
	if err := mountOwn(); err != nil {
		return err
	}
	for _, name := range own() {
		if err := mounting(filepath.Join(n.dir(), name), "/"+name, "", unix.MS_BIND, ""); err != nil {
			return err
		}
	}
	return errors.Join(
		mounting(n.dir()+"/sbin", "/usr/local/sbin", "", unix.MS_BIND, ""),
		mounting("", "/", "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""),
		mounting("", "/", "", unix.MS_REC|unix.MS_SHARED, ""), // as on a node that systemd has started
	)
}

// stage runs the container runtime and the kubelet, until one of them ends.
func (n node) stage(o options) error {
	ctx := context.Background()
	containerd, err := n.containerd(o)
	if err != nil {
		return err
	}
	if err := containerd.Start(); err != nil {
		return err
	}
	defer containerd.Kill()
	if err := containerd.Await(ctx, accepts); err != nil {
		return err
	}
	if _, err := quietly(inCluster(ctx, o, "ctr", "-n", "k8s.io", "images", "import", "--local", base+"/images.tar")); err != nil {
		return err
	}
	orders, err := n.listen(ctx, o)
	if err != nil {
		return err
	}
	agent := &agent{node: n, o: o}
	if err := agent.start(n.kind(o), nil); err != nil {
		return err
	}
	defer agent.kill()
	for {
		select {
		case <-containerd.Exited():
			return fmt.Errorf("containerd has ended: %s", containerd.Tail())
		case <-agent.exited():
			return fmt.Errorf("%s has ended: %s", agent.process.Name, agent.process.Tail())
		case given := <-orders:
			given.obeyed <- agent.obey(given.order)
		}
	}
}

// accepts tries to connect to the container runtime.
func accepts(ctx context.Context) error {
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", endpoint[len("unix://"):])
	if err == nil {
		err = c.Close()
	}
	return err
}
