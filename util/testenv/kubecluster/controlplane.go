package kubecluster

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

const (
	serviceRange = "10.0.0.0/24"
	// ServiceAddress is the address of the service "kubernetes". An API server that
	// listens there at port 443 is found by pods, without any proxy.
	ServiceAddress = "10.0.0.1"
)

// Config says how a control plane is started. Its fields must not change after [New].
type Config struct {
	// Assets is the directory with the programs.
	Assets string
	// Dir is for data, certificates and logs, and exists.
	Dir string
	// Address is where the API server listens; empty means 127.0.0.1.
	Address string
	Port    int
	// Flags are added to those of kube-apiserver, after the package's own: of two
	// for the same thing the last one counts.
	Flags []string
	// Controllers says whether kube-controller-manager and kube-scheduler run.
	Controllers bool
	// ManagerFlags are added to those of kube-controller-manager, as Flags are.
	ManagerFlags []string
}

// ControlPlane is a cluster without nodes. Its methods must not be called at the same
// time.
type ControlPlane struct {
	config      Config
	ca          *authority
	etcd, api   *Process
	controllers []*Process
}

// New writes the certificates of a control plane into its directory, and starts nothing.
func New(config Config) (*ControlPlane, error) {
	if config.Address == "" {
		config.Address = "127.0.0.1"
	}
	ca, err := newAuthority()
	if err != nil {
		return nil, err
	}
	c := &ControlPlane{config: config, ca: ca}
	if err := c.writeFiles(); err != nil {
		return nil, err
	}
	c.etcd, c.api = c.config.etcd(), c.config.kubeAPIServer()
	if config.Controllers {
		c.controllers = c.config.controllers()
	}
	return c, nil
}

func (c *ControlPlane) writeFiles() error {
	accounts, err := newKey()
	if err != nil {
		return err
	}
	serving, err := c.ca.server("kube-apiserver", []net.IP{net.ParseIP(c.config.Address), net.ParseIP(ServiceAddress)}, []string{"kubernetes.default.svc"})
	if err != nil {
		return err
	}
	toNodes, err := c.ca.client("kube-apiserver-kubelet-client", []string{"system:masters"})
	if err != nil {
		return err
	}
	controllers, err := c.Kubeconfig("controllers", "system:masters")
	if err != nil {
		return err
	}
	for name, content := range map[string][]byte{
		"ca.crt": c.ca.certificate, "accounts.key": accounts.pem, "controllers.kubeconfig": controllers,
		"server.crt": serving.Certificate, "server.key": serving.Key,
		"kubelet-client.crt": toNodes.Certificate, "kubelet-client.key": toNodes.Key,
	} {
		if err := os.WriteFile(filepath.Join(c.config.Dir, name), content, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// Start starts all processes, and returns once the API server is ready. What it has
// started goes on after an error, until [ControlPlane.Kill].
func (c *ControlPlane) Start(ctx context.Context) error {
	if err := c.etcd.Start(); err != nil {
		return err
	}
	if err := c.etcd.Await(ctx, accepts(filepath.Join(c.config.Dir, etcdSocket))); err != nil {
		return err
	}
	if err := c.StartAPIServer(ctx); err != nil {
		return err
	}
	for _, p := range c.controllers {
		if err := p.Start(); err != nil {
			return err
		}
	}
	return nil
}

// StartAPIServer starts the API server, also again, and returns once it is ready.
func (c *ControlPlane) StartAPIServer(ctx context.Context) error {
	if err := c.api.Start(); err != nil {
		return err
	}
	ready, err := c.ready()
	if err != nil {
		return err
	}
	return c.api.Await(ctx, ready)
}

// KillAPIServer ends the API server at once, as a crash does. Its objects stay.
func (c *ControlPlane) KillAPIServer() { c.api.Kill() }

// Kill ends all processes.
func (c *ControlPlane) Kill() {
	for _, p := range c.Processes() {
		p.Kill()
	}
}

// Processes are all of the control plane's. Those that others need come last.
func (c *ControlPlane) Processes() []*Process {
	return slices.Concat(c.controllers, []*Process{c.api, c.etcd})
}

// URL is where the API server listens.
func (c *ControlPlane) URL() string {
	return fmt.Sprintf("https://%s:%d", c.config.Address, c.config.Port)
}

// CA is the certificate of the authority for all servers and users, as PEM.
func (c *ControlPlane) CA() []byte { return c.ca.certificate }

// Serving makes a certificate for a server at an address, such as a node's.
func (c *ControlPlane) Serving(name, address string) (Pair, error) {
	return c.ca.server(name, []net.IP{net.ParseIP(address)}, []string{name})
}

// Kubeconfig is that of a user who is identified by a certificate, and belongs to
// groups. A node is the user "system:node:<its name>" in "system:nodes".
func (c *ControlPlane) Kubeconfig(user string, groups ...string) ([]byte, error) {
	pair, err := c.ca.client(user, groups)
	if err != nil {
		return nil, err
	}
	type named = map[string]any
	return json.Marshal(named{ // of which YAML is a superset
		"apiVersion": "v1", "kind": "Config", "current-context": "test",
		"clusters": []named{{"name": "test", "cluster": named{"server": c.URL(), "certificate-authority-data": c.ca.certificate}}},
		"users":    []named{{"name": user, "user": named{"client-certificate-data": pair.Certificate, "client-key-data": pair.Key}}},
		"contexts": []named{{"name": "test", "context": named{"cluster": "test", "user": user}}},
	})
}

// Client is an HTTP client of a user who is identified by a certificate.
func (c *ControlPlane) Client(user string, groups ...string) (*http.Client, error) {
	pair, err := c.ca.client(user, groups)
	if err != nil {
		return nil, err
	}
	certificate, err := tls.X509KeyPair(pair.Certificate, pair.Key)
	if err != nil {
		return nil, err
	}
	config := &tls.Config{RootCAs: c.ca.pool(), Certificates: []tls.Certificate{certificate}}
	return &http.Client{Transport: &http.Transport{TLSClientConfig: config}}, nil
}

// ready returns what asks the API server whether it is: its own initial objects, such as
// roles, are there then.
func (c *ControlPlane) ready() (func(context.Context) error, error) {
	client, err := c.Client("ready", "system:masters")
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) error {
		defer client.CloseIdleConnections()
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second) // it may accept, and not answer yet
		defer cancel()
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.URL()+"/readyz", nil)
		if err != nil {
			return err
		}
		response, err := client.Do(request)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		said, err := io.ReadAll(response.Body)
		if err == nil && response.StatusCode != http.StatusOK {
			err = fmt.Errorf("%s: %s", response.Status, strings.TrimSpace(string(said)))
		}
		return err
	}, nil
}

// accepts returns what tries to connect to a socket.
func accepts(socket string) func(context.Context) error {
	return func(ctx context.Context) error {
		var d net.Dialer
		c, err := d.DialContext(ctx, "unix", socket)
		if err == nil {
			err = c.Close()
		}
		return err
	}
}
