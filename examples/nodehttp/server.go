package nodehttp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/podvol/podvol/volume/volumemanager"
)

// Server serves a node over HTTP: GET /metrics in the format of Prometheus,
// /explain with the state of volumes in JSON, /healthz, and what Serve is given. It keeps at most 64
// connections, however many clients there are, and however slow.
type Server struct {
	listener net.Listener
	server   *http.Server
	ended    sync.WaitGroup
}

// Listen opens an address, HOST:PORT. So an address in use is an error before
// anything else is done. Connections wait until Serve.
func Listen(ctx context.Context, addr string) (*Server, error) {
	var config net.ListenConfig
	l, err := config.Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	return &Server{listener: l}, nil
}

// ListenSocket opens a Unix socket, which goes with the server. It replaces one that a killed
// process has left, but not one that a process serves: the error matches EADDRINUSE then. The
// caller makes sure that the directory is closed to other users, and that no other process opens
// a socket there meanwhile.
func ListenSocket(ctx context.Context, path string) (*Server, error) {
	if err := RemoveDead(ctx, path); err != nil {
		return nil, err
	}
	var config net.ListenConfig
	l, err := config.Listen(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	return &Server{listener: l}, nil
}

// RemoveDead removes a Unix socket that no process serves. Another one stays; a missing one is
// success.
func RemoveDead(ctx context.Context, path string) error {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "unix", path)
	if err == nil {
		return conn.Close()
	}
	if errors.Is(err, syscall.ECONNREFUSED) {
		err = os.Remove(path)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// URL is the URL of the root of a server at an address, without a slash at its end.
func (s *Server) URL() string { return "http://" + s.listener.Addr().String() }

// ParseAddress completes PORT and :PORT to an address of the loopback interface: the
// mounts of a node are not for the network. Another value must be HOST:PORT.
func ParseAddress(value string) (string, error) {
	if !strings.Contains(value, ":") {
		value = ":" + value
	}
	host, port, err := net.SplitHostPort(value)
	if err != nil {
		return "", fmt.Errorf("%q must be PORT or HOST:PORT", value)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil {
		return "", fmt.Errorf("%q: %q is no port number", value, port)
	} else if host == "" {
		return net.JoinHostPort("127.0.0.1", strconv.FormatUint(n, 10)), nil
	}
	return value, nil
}

// Page is one more answer at GET and a path: what Value returns, in JSON, or what Handler answers
// if there is one. Several goroutines call them.
type Page struct {
	Path    string
	Value   func() any
	Handler http.Handler
}

// WatchPage tells the clients of a path of changes of the rows that explain returns: see [Watch].
func WatchPage(path string, w *Watch, explain func() []volumemanager.VolumeStatus) Page {
	return Page{Path: path, Handler: w.handler(explain)}
}

// Serve begins to answer, until Close. It must be called at most once. explain
// returns the rows of /explain. Several goroutines call it. At a loopback address it answers
// only requests for localhost or for an IP address, as a browser may have been led there by a
// name of somebody else's.
func (s *Server) Serve(metrics *Metrics, explain func() []volumemanager.VolumeStatus, more ...Page) {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", metrics.Handler())
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok\n") })
	pages := append([]Page{{Path: "/explain", Value: func() any { return append([]volumemanager.VolumeStatus{}, explain()...) }}}, more...)
	for _, p := range pages {
		if p.Handler != nil {
			mux.Handle("GET "+p.Path, p.Handler)
			continue
		}
		mux.HandleFunc("GET "+p.Path, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			encoder := json.NewEncoder(w)
			encoder.SetIndent("", "  ")
			_ = encoder.Encode(p.Value()) // the client has gone
		})
	}
	limited := limitConnections(s.listener, maxConnections)
	s.server = &http.Server{Handler: s.forOurNames(mux), ConnState: limited.connState, ReadTimeout: readTimeout, WriteTimeout: writeTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: 16 << 10}
	s.ended.Go(func() { _ = s.server.Serve(limited) })
}

// forOurNames refuses requests whose Host is neither localhost nor an IP address, if the
// server is at a loopback address. A page of another site has its own name there, though that
// name leads here now (DNS rebinding), and would read the answer. HTTP 1.0 may leave Host out.
func (s *Server) forOurNames(next http.Handler) http.Handler {
	if addr, ok := s.listener.Addr().(*net.TCPAddr); !ok || !addr.IP.IsLoopback() {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host := r.Host
		if name, _, err := net.SplitHostPort(host); err == nil {
			host = name
		}
		host = strings.ToLower(strings.TrimSuffix(host, "."))
		if host != "" && host != "localhost" && !strings.HasSuffix(host, ".localhost") && net.ParseIP(strings.Trim(host, "[]")) == nil {
			http.Error(w, "this address is asked for by the name localhost or as an IP address only", http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// The node keeps the descriptors and the memory that its volumes need, however
// many clients there are, and however slow. A connection without a whole request
// gives way to others. One with a request is kept for at most these times.
const (
	maxConnections = 64
	readTimeout    = 10 * time.Second
	writeTimeout   = time.Minute
	idleTimeout    = 30 * time.Second
)

// Close ends the server and waits for its goroutines. A second call does nothing.
func (s *Server) Close() {
	if s.server == nil {
		_ = s.listener.Close()
		return
	}
	_ = s.server.Close()
	s.ended.Wait()
}
