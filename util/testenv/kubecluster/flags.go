package kubecluster

import (
	"fmt"
	"path/filepath"
	"slices"
)

// etcdSocket is where etcd listens, below the working directory of both. Paths of
// sockets are short, those of temporary directories need not be.
const etcdSocket = "localhost:2379"

func (c *Config) process(name string, args ...string) *Process {
	return &Process{Name: name, Path: filepath.Join(c.Assets, name), Dir: c.Dir, Args: args}
}

func (c *Config) etcd() *Process {
	return c.process("etcd",
		"--data-dir=etcd",
		"--listen-client-urls=unix://"+etcdSocket, "--advertise-client-urls=unix://"+etcdSocket,
		"--listen-peer-urls=http://127.0.0.1:0", // any port
		"--unsafe-no-fsync",                     // it need not outlive the machine
		"--log-level=warn",
	)
}

func (c *Config) kubeAPIServer() *Process {
	args := []string{
		"--etcd-servers=unix://" + etcdSocket,
		"--bind-address=" + c.Address, "--advertise-address=" + c.Address, fmt.Sprintf("--secure-port=%d", c.Port), "--permit-port-sharing",
		"--endpoint-reconciler-type=none",
		"--service-cluster-ip-range=" + serviceRange,
		"--cert-dir=.", "--tls-cert-file=server.crt", "--tls-private-key-file=server.key", "--client-ca-file=ca.crt",
		"--kubelet-client-certificate=kubelet-client.crt", "--kubelet-client-key=kubelet-client.key", "--kubelet-preferred-address-types=InternalIP",
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=accounts.key", "--service-account-signing-key-file=accounts.key",
		"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction",
		"--allow-privileged",
	}
	if !c.Controllers {
		args = append(args, "--disable-admission-plugins=ServiceAccount") // nothing creates the default ones
	}
	return c.process("kube-apiserver", slices.Concat(args, c.Flags)...)
}

// controllers are the controller manager and the scheduler. They listen nowhere.
func (c *Config) controllers() []*Process {
	common := []string{"--kubeconfig=controllers.kubeconfig", "--leader-elect=false", "--secure-port=0"}
	return []*Process{
		c.process("kube-controller-manager", slices.Concat(common, []string{"--root-ca-file=ca.crt", "--service-account-private-key-file=accounts.key",
			"--allocate-node-cidrs=false", "--flex-volume-plugin-dir=flexvolume"}, c.ManagerFlags)...),
		c.process("kube-scheduler", common...),
	}
}
