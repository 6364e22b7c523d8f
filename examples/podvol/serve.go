package main

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/podvol/podvol/volume/volumemanager"
)

// nodeServer answers questions about a node over HTTP. Without an address it
// listens nowhere.
type nodeServer struct {
	url      string // empty where it does not listen
	listener net.Listener
	server   *http.Server
	ended    sync.WaitGroup
}

// listen takes the address, so that one that is in use is an error before
// anything is done; whoever asks waits until serve.
func listen(ctx context.Context, addr string) (*nodeServer, error) {
	if addr == "" {
		return &nodeServer{}, nil
	}
	addr, err := listenAddress(addr)
	if err != nil {
		return nil, err
	}
	var config net.ListenConfig
	l, err := config.Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, usagef("--metrics-addr: %w", err)
	}
	return &nodeServer{listener: l, url: "http://" + l.Addr().String()}, nil
}

// listenAddress completes PORT and :PORT to one of the loopback interface:
// what a node mounts is not everybody's business.
func listenAddress(value string) (string, error) {
	if !strings.Contains(value, ":") {
		value = ":" + value
	}
	host, port, err := net.SplitHostPort(value)
	if err != nil {
		return "", usagef("--metrics-addr %q must be PORT or HOST:PORT", value)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil {
		return "", usagef("--metrics-addr %q: %q is no port number", value, port)
	} else if host == "" {
		return net.JoinHostPort("127.0.0.1", strconv.FormatUint(n, 10)), nil
	}
	return value, nil
}

// serve begins to answer.
func (s *nodeServer) serve(metrics *nodeMetrics, explain func() []volumemanager.VolumeStatus) {
	if s.listener == nil {
		return
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(metrics.registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok\n") })
	mux.HandleFunc("GET /explain", func(w http.ResponseWriter, _ *http.Request) {
		rows := explain()
		if rows == nil {
			rows = []volumemanager.VolumeStatus{}
		}
		w.Header().Set("Content-Type", "application/json")
		encoder := json.NewEncoder(w)
		encoder.SetIndent("", "  ")
		_ = encoder.Encode(rows) // whoever asked has gone
	})
	limited := limitConnections(s.listener, maxConnections)
	s.server = &http.Server{Handler: mux, ConnState: limited.connState, ReadTimeout: readTimeout, WriteTimeout: writeTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: 16 << 10}
	s.ended.Go(func() { _ = s.server.Serve(limited) })
}

// However many connect, and however slowly they read and write, the node keeps the
// descriptors and the memory that its volumes need. Connections without a whole
// request take nobody's place; those with one have it for these times at most.
const (
	maxConnections = 64
	readTimeout    = 10 * time.Second
	writeTimeout   = time.Minute
	idleTimeout    = 30 * time.Second
)

func (s *nodeServer) close() {
	switch {
	case s.server != nil:
		_ = s.server.Close()
		s.ended.Wait()
	case s.listener != nil:
		_ = s.listener.Close()
	}
}
