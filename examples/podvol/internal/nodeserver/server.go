// Package nodeserver shows other processes what podvol run-node knows, at the address of
// --metrics-addr and at a socket of its root directory, and asks there.
package nodeserver

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/examples/nodehttp"
	"github.com/podvol/podvol/examples/nodehttp/nodeevents"
	"github.com/podvol/podvol/examples/nodehttp/nodepage"
	"github.com/podvol/podvol/util/filelock"
	"github.com/podvol/podvol/util/retry"
	"github.com/podvol/podvol/volume/nodeagent"
	"github.com/podvol/podvol/volume/nodeagent/manifestdir"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/plugins/csi"
	"github.com/podvol/podvol/volume/plugins/csi/controller"
	"github.com/podvol/podvol/volume/volumemanager"
)

// socketDir has the sockets of the nodes of this machine. It is closed to other users.
const socketDir = "/run/podvol-node"

// socketOf is the socket of the node that keeps a root directory.
func socketOf(rootDir string) string {
	if real, err := filepath.EvalSymlinks(rootDir); err == nil {
		rootDir = real
	}
	sum := sha256.Sum256([]byte(rootDir))
	return filepath.Join(socketDir, hex.EncodeToString(sum[:16])+".sock")
}

const (
	driversPath = "/drivers"
	eventsPath  = "/events"
	watchPath   = "/watch"
	refusedPath = "/refused" // of the socket alone
)

// Views are what a node shows to others. [Views.Observe] comes before the agent's start, Serve
// after it.
type Views struct {
	// Server is what [Listen] returned, nil where there is no address. It is the caller's.
	Server *nodehttp.Server
	// Rename makes paths those that people know.
	Rename func(string) string

	watch  nodehttp.Watch // is told of all that the page shows
	events nodeevents.Ring
	// refusals are the refused manifests.
	refusals atomic.Pointer[[]manifestdir.Refusal]
}

// Observe returns the configuration of an agent that tells the views of what happens, beside those
// that config tells.
func (v *Views) Observe(config nodeagent.Config) nodeagent.Config {
	v.events.Changed = v.watch.Notify
	status := config.Status
	config.Status = func(row volumemanager.VolumeStatus) error { // also of pods that wait for claims
		v.watch.Changed(row)
		return status(row)
	}
	refused := config.Refused
	config.Refused = func(all []manifestdir.Refusal) {
		v.refusals.Store(&all)
		v.watch.Notify()
		if refused != nil {
			refused(all)
		}
	}
	config.Events, config.ClaimEvents = v.events.Pods(config.Events), v.events.Storage(config.ClaimEvents)
	if config.Store == nil {
		config.Store = objects.NewStore()
	}
	return config
}

// Listen takes the address of --metrics-addr. An address that is wrong or in use is an error
// that usage makes. An empty one has no server, nil.
func Listen(ctx context.Context, value string, usage func(string, ...any) error) (*nodehttp.Server, error) {
	if value == "" {
		return nil, nil
	}
	addr, err := nodehttp.ParseAddress(value)
	if err != nil {
		return nil, usage("--metrics-addr %w", err)
	}
	server, err := nodehttp.Listen(ctx, addr)
	if err != nil {
		return nil, usage("--metrics-addr: %w", err)
	}
	return server, nil
}

// Serve answers at the address of the server, unless that is nil, and as root at the socket of the
// root directory, which the agent has locked. config is what Observe returned. stop ends the latter
// and the measuring. A socket that cannot be made is a notice: volumes are kept without it.
func (v *Views) Serve(ctx context.Context, agent *nodeagent.Agent, config nodeagent.Config) (stop func()) {
	metrics := nodehttp.NewMetrics(agent.Node(), agent.Node().Explain())
	metrics.CountRefused(func() int { return len(v.refused()) })
	stops := []func(){agent.Node().Subscribe(metrics.Observe), agent.Node().Subscribe(v.watch.Changed), v.events.Follow(config.Store)}
	for _, p := range config.Plugins {
		if drivers, ok := p.(*controller.NodePlugin); ok {
			stops = append(stops, drivers.Subscribe(func(o csi.Operation) {
				metrics.ObserveCSI(o.Driver, o.Method, o.Code, o.Migrated, o.Took)
				v.watch.Notify()
			}))
		}
	}
	volumes := func() []volumemanager.VolumeStatus {
		rows := agent.Explain()
		for i := range rows {
			rows[i].Path = v.Rename(rows[i].Path)
		}
		return rows
	}
	explain := func() []volumemanager.VolumeStatus { return append(volumes(), v.refusedRows()...) }
	pages := []nodehttp.Page{
		{Path: driversPath, Value: func() any { return known(config) }},
		{Path: eventsPath, Value: func() any { return v.recent() }},
		nodehttp.WatchPage(watchPath, &v.watch, explain),
	}
	if os.Geteuid() == 0 {
		if socket, err := listenLocally(ctx, config.RootDir); err != nil {
			config.Notice("podvol status, explain and csi cannot ask this process: " + err.Error())
		} else {
			refused := nodehttp.Page{Path: refusedPath, Value: func() any { return v.refusedManifests() }}
			socket.Serve(metrics, explain, append(pages, refused)...)
			stops = append(stops, socket.Close, func() { _ = os.Remove(socketDir) }) // which others may use
		}
	}
	if v.Server != nil {
		page := nodepage.New(nodepage.Config{Node: config.NodeName, Rows: volumes, Refused: v.refusedShown, Damaged: agent.Node().Damaged, Events: v.recent, Version: v.watch.Version,
			Drivers: func() []nodepage.Driver { return shown(known(config)) }})
		v.Server.Serve(metrics, explain, append(pages, nodehttp.Page{Path: "/{$}", Handler: page})...)
		url := v.Server.URL()
		config.Notice("metrics are at " + url + "/metrics, the state of volumes at " + url + "/explain, and for people at " + url + "/")
	}
	return func() {
		for _, stop := range stops {
			stop()
		}
	}
}

// recent are the recent events, the oldest first.
func (v *Views) recent() []nodeevents.Event {
	all := v.events.All()
	for i := range all {
		all[i].Message = v.Rename(all[i].Message)
	}
	return all
}

// listenLocally makes the directory of sockets, which the last node of a machine removes.
func listenLocally(ctx context.Context, rootDir string) (server *nodehttp.Server, err error) {
	err = retry.Patiently(fs.ErrNotExist, func() error {
		if err := os.Mkdir(socketDir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		unlock, err := sweep(ctx, socketDir)
		if err != nil {
			return err
		}
		defer unlock()
		server, err = nodehttp.ListenSocket(ctx, socketOf(rootDir))
		return err
	})
	return server, err
}

// sweep removes the sockets of killed processes, whose roots may never have a node again. It
// locks the directory, so that a socket that another process is about to serve is not taken for
// one of those.
func sweep(ctx context.Context, dir string) (unlock func(), err error) {
	var locked *os.File
	err = retry.Patiently(unix.EWOULDBLOCK, func() (err error) {
		locked, err = filelock.Open(dir, unix.LOCK_EX|unix.LOCK_NB)
		return err
	})
	if err != nil {
		return nil, err
	}
	sockets, err := filepath.Glob(filepath.Join(dir, "*.sock"))
	if err != nil {
		filelock.Close(locked)
		return nil, err
	}
	for _, path := range sockets {
		if info, err := os.Lstat(path); err == nil && info.Mode().Type() == fs.ModeSocket {
			_ = nodehttp.RemoveDead(ctx, path) // the next node tries again
		}
	}
	return func() { filelock.Close(locked) }, nil
}
