package apiserver

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
)

// etcdSocket is where etcd listens, below the working directory of both. Paths of
// sockets are short, those of temporary directories need not be.
const etcdSocket = "localhost:2379"

func etcd(assets, dir string) *process {
	return &process{name: "etcd", path: filepath.Join(assets, "etcd"), dir: dir, args: []string{
		"--data-dir=etcd",
		"--listen-client-urls=unix://" + etcdSocket, "--advertise-client-urls=unix://" + etcdSocket,
		"--listen-peer-urls=http://127.0.0.1:0", // any port
		"--unsafe-no-fsync",                     // it need not outlive the machine
		"--log-level=warn",
	}}
}

// kubeAPIServer returns the process, and writes the files that it asks for.
func kubeAPIServer(assets, dir string, ca *authority, port int, flags []string) (*process, error) {
	serving, err := ca.server()
	if err != nil {
		return nil, err
	}
	accounts, err := newKey()
	if err != nil {
		return nil, err
	}
	for name, content := range map[string][]byte{"ca.crt": ca.certificate, "server.crt": serving.certificate, "server.key": serving.key, "accounts.key": accounts.pem} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			return nil, err
		}
	}
	own := []string{
		"--etcd-servers=unix://" + etcdSocket,
		"--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", port), "--permit-port-sharing",
		"--endpoint-reconciler-type=none",
		"--service-cluster-ip-range=10.0.0.0/24",
		"--cert-dir=.", "--tls-cert-file=server.crt", "--tls-private-key-file=server.key", "--client-ca-file=ca.crt",
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=accounts.key", "--service-account-signing-key-file=accounts.key",
		"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction",
		"--disable-admission-plugins=ServiceAccount", // nobody creates the default ones
		"--allow-privileged",
	}
	return &process{name: "kube-apiserver", path: filepath.Join(assets, "kube-apiserver"), dir: dir, args: slices.Concat(own, flags)}, nil
}
