package kubeletapi

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// Pods are the pods of the node, with their statuses.
type Pods interface{ List() []*v1.Pod }

// Runtime has the containers. IDs are those of statuses without the runtime's name, but
// for Usage.
type Runtime interface {
	// LogFile returns a directory of the node's, and the path of a run's log below it.
	LogFile(pod types.UID, container string, attempt int32) (dir, name string)
	// ExecURL and its fellows return where the runtime serves a session.
	ExecURL(ctx context.Context, id string, command []string, s Streams) (string, error)
	AttachURL(ctx context.Context, id string, s Streams) (string, error)
	PortForwardURL(ctx context.Context, pod types.UID) (string, error)
	// Usage returns what containers that run use, by their IDs in statuses.
	Usage(ctx context.Context) (map[string]Usage, error)
}

// Streams are what a session has.
type Streams struct{ In, Out, Err, TTY bool }

// Config is what a server needs. All fields are required.
type Config struct {
	// Address is where it listens, such as 192.0.2.1:10250.
	Address string
	// CertFile and KeyFile are the server's certificate; ClientCAFile has the authority
	// of its callers'.
	CertFile, KeyFile, ClientCAFile string
	Node                            string
	API                             kubernetes.Interface
	Pods                            Pods
	Runtime                         Runtime
	Volumes                         Volumes
	// Metrics answers GET /metrics.
	Metrics http.Handler
	// Pages answers GET /podvol/ and what is below, without that prefix, to users that may get
	// nodes/proxy.
	Pages http.Handler
	Log   *slog.Logger
}

// Server is one that listens.
type Server struct {
	Config
	listener net.Listener
	reviews  reviews
	writes   writeWatcher
	// sessions reaches the runtime's own server, which is on this machine: through no proxy.
	sessions http.RoundTripper
}

// Listen opens the address. Serve or Close must follow.
func Listen(c Config) (*Server, error) {
	certificate, err := tls.LoadX509KeyPair(c.CertFile, c.KeyFile)
	if err != nil {
		return nil, err
	}
	authority, err := os.ReadFile(c.ClientCAFile)
	if err != nil {
		return nil, err
	}
	clients := x509.NewCertPool()
	if !clients.AppendCertsFromPEM(authority) {
		return nil, fmt.Errorf("%s has no certificate", c.ClientCAFile)
	}
	listener, err := net.Listen("tcp", c.Address)
	if err != nil {
		return nil, err
	}
	secure := &tls.Config{Certificates: []tls.Certificate{certificate}, ClientCAs: clients, ClientAuth: tls.RequireAndVerifyClientCert, MinVersion: tls.VersionTLS12,
		NextProtos: []string{"http/1.1"}} // sessions are upgrades of it
	return &Server{Config: c, listener: tls.NewListener(listener, secure), sessions: &http.Transport{DisableKeepAlives: true}}, nil
}

// Port is where it listens.
func (s *Server) Port() int32 { return int32(s.listener.Addr().(*net.TCPAddr).Port) }

// Close closes a server that does not serve.
func (s *Server) Close() error { return s.listener.Close() }

// Serve answers until ctx ends, and ends all sessions then.
func (s *Server) Serve(ctx context.Context) error {
	server := &http.Server{Handler: s.authorized(s.routes()), ReadHeaderTimeout: 30 * time.Second, IdleTimeout: 90 * time.Second, ErrorLog: slog.NewLogLogger(s.Log.Handler(), slog.LevelDebug),
		BaseContext: func(net.Listener) context.Context { return ctx }}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(s.listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

func (s *Server) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /containerLogs/{namespace}/{pod}/{container}", s.logs)
	for _, of := range []string{"/{namespace}/{pod}/{container}", "/{namespace}/{pod}/{uid}/{container}"} {
		mux.HandleFunc("/exec"+of, s.exec)
		mux.HandleFunc("/attach"+of, s.attach)
	}
	mux.HandleFunc("/portForward/{namespace}/{pod}", s.portForward)
	mux.HandleFunc("/portForward/{namespace}/{pod}/{uid}", s.portForward)
	mux.HandleFunc("GET /pods", s.pods)
	mux.HandleFunc("GET /stats/summary", s.summary)
	mux.Handle("GET /metrics", s.Metrics)
	mux.Handle("GET /podvol/", http.StripPrefix("/podvol", s.Pages))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "ok") })
	return mux
}

// find returns the pod that a request is about.
func (s *Server) find(r *http.Request) (*v1.Pod, error) {
	namespace, name, uid := r.PathValue("namespace"), r.PathValue("pod"), r.PathValue("uid")
	var found *v1.Pod
	for _, p := range s.Pods.List() { // of two with the name, the one that was created later
		if p.Namespace == namespace && p.Name == name && (uid == "" || string(p.UID) == uid) {
			found = p
		}
	}
	if found == nil {
		return nil, fmt.Errorf("pod %s/%s does not exist on this node", namespace, name)
	}
	return found, nil
}

// statusOf returns what is known of a pod's container.
func statusOf(pod *v1.Pod, container string) (*v1.ContainerStatus, error) {
	for _, list := range [][]v1.ContainerStatus{pod.Status.ContainerStatuses, pod.Status.InitContainerStatuses, pod.Status.EphemeralContainerStatuses} {
		for i := range list {
			if list[i].Name == container {
				return &list[i], nil
			}
		}
	}
	return nil, fmt.Errorf("container %s is not in pod %s/%s", container, pod.Namespace, pod.Name)
}

func (s *Server) pods(w http.ResponseWriter, _ *http.Request) {
	list := v1.PodList{}
	list.Kind, list.APIVersion = "PodList", "v1"
	for _, p := range s.Pods.List() {
		list.Items = append(list.Items, *p)
	}
	reply(w, list)
}

func reply(w http.ResponseWriter, value any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(value) // a caller that has gone hears nothing
}

// handOn proxies a session to the runtime's own server.
func (s *Server) handOn(w http.ResponseWriter, r *http.Request, to string, err error) {
	target, bad := url.Parse(to)
	if err = errors.Join(err, bad); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	proxy := &httputil.ReverseProxy{FlushInterval: -1, Transport: s.sessions, ErrorLog: slog.NewLogLogger(s.Log.Handler(), slog.LevelDebug), Rewrite: func(p *httputil.ProxyRequest) {
		p.Out.URL, p.Out.Host = target, target.Host
	}}
	proxy.ServeHTTP(w, r)
}
