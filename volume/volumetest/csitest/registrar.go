package csitest

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"slices"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/podvol/podvol/volume/internal/csiregistration"
)

// Registrar registers a driver at a node, as the sidecar node-driver-registrar does: it
// serves pluginregistration.v1 on a socket in the node's plugins_registry.
type Registrar struct {
	// Type, Name, Endpoint and Versions are what it tells of its driver; an empty Type:
	// "CSIPlugin", nil Versions: "1.0.0". They must not change after Start.
	Type, Name, Endpoint string
	Versions             []string

	socket   string
	server   *grpc.Server
	mu       sync.Mutex
	statuses []string
	told     chan struct{}
}

// Start serves until Stop.
func (r *Registrar) Start(socket string) error {
	if err := os.Remove(socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		return err
	}
	listener.SetUnlinkOnClose(false)
	r.socket, r.server, r.told = socket, grpc.NewServer(), make(chan struct{}, 1)
	r.server.RegisterService(&grpc.ServiceDesc{ServiceName: csiregistration.Service, HandlerType: (*any)(nil), Methods: []grpc.MethodDesc{
		{MethodName: "GetInfo", Handler: r.getInfo}, {MethodName: "NotifyRegistrationStatus", Handler: r.notify}}}, r)
	server := r.server
	go func() { _ = server.Serve(listener) }() // its only errors are those of the end
	return nil
}

// Kill ends the registrar. Its socket stays.
func (r *Registrar) Kill() { r.server.Stop() }

// Stop ends the registrar and removes its socket, which ends the registration.
func (r *Registrar) Stop() error {
	r.server.Stop()
	return os.Remove(r.socket)
}

// Statuses are those that the node has told: "registered", or why not.
func (r *Registrar) Statuses() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.statuses)
}

// Told receives a value after the node has told a status.
func (r *Registrar) Told() <-chan struct{} { return r.told }

func (r *Registrar) getInfo(_ any, _ context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
	if err := decode(new(emptypb.Empty)); err != nil {
		return nil, err
	}
	info := csiregistration.Info{Type: r.Type, Name: r.Name, Endpoint: r.Endpoint, Versions: r.Versions}
	if info.Type == "" {
		info.Type = csiregistration.CSIPlugin
	}
	if info.Versions == nil {
		info.Versions = []string{"1.0.0"}
	}
	return info.Message(), nil
}

func (r *Registrar) notify(_ any, _ context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
	m := new(emptypb.Empty)
	if err := decode(m); err != nil {
		return nil, err
	}
	s, err := csiregistration.ParseStatus(m)
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	text := s.Error
	if s.Registered {
		text = "registered"
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.statuses = append(r.statuses, text)
	select {
	case r.told <- struct{}{}:
	default:
	}
	return new(emptypb.Empty), nil
}
