package csi

import (
	"context"
	"path/filepath"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/plugins/csi/internal/drivers"
	"github.com/podvol/podvol/volume/volumesource"
)

const registryDir = "plugins_registry"

var _ volume.RunningPlugin = (*Plugin)(nil)

// Run registers the drivers that announce themselves by sockets below
// [Config.RegistryDir], by the kubelet's protocol, until ctx ends. It implements
// [volume.RunningPlugin].
//
//   - A socket that goes ends its registration. One that is made anew is another one.
//   - Of several registrations of one name the newest counts. If it ends, the one before
//     counts again.
//   - A driver of [Config.Drivers] is not replaced.
//   - A registration that fails is tried again, after at most two minutes, or at once
//     when the socket is made anew.
//   - A host with the role [volume.CSINodePublisher] is told of each driver by NodeGetInfo
//     before its registration counts, and anew when the driver's limit is due
//     (nodeAllocatableUpdatePeriodSeconds), or has turned out to be wrong. It is told when
//     the last registration of a name has ended, and of the drivers of [Config.Drivers].
//   - A socket must belong to root or to this process's user, have one name, and be
//     closed to others.
//
// Registered drivers stay known when Run ends, so that volumes can be torn down.
func (p *Plugin) Run(ctx context.Context, wake func(source string)) error {
	dir := p.config.RegistryDir
	if dir == "" {
		root := filepath.Dir(filepath.Dir(filepath.Dir(p.disk.Dir()))) // <root>/plugins/kubernetes.io/csi
		dir = filepath.Join(root, registryDir)
	}
	told, cancel := context.WithCancel(ctx)
	p.cluster.names.Start(told)
	defer p.cluster.names.Wait()
	defer cancel()
	for name := range p.config.Drivers {
		p.cluster.names.Enqueue(name)
	}
	return p.drivers.Run(ctx, dir, drivers.Events{Introduce: p.cluster.introduce, Ended: p.cluster.names.Enqueue,
		Registered: func(name string) {
			p.cluster.names.Enqueue(name) // its limit may be due again
			wake(name)
		}})
}

// Discover has the drivers known that register themselves at present, without telling
// their registrars: it is for commands that look at drivers. It returns what is wrong
// with sockets that register none. Run must not run.
func (p *Plugin) Discover(ctx context.Context) (refused map[string]error, err error) {
	return p.drivers.Discover(ctx)
}

// DriverStatus has the facts about a driver that need no call.
type DriverStatus = drivers.Status

// CallStatus is a call under way.
type CallStatus = drivers.CallStatus

// Operation is a call of a driver that has ended: a sample of the kubelet's histogram
// csi_operations_seconds.
type Operation = drivers.Operation

// Drivers returns the status of all drivers, by name. It does no I/O.
func (p *Plugin) Drivers() []DriverStatus { return p.drivers.Status() }

// Subscribe calls f after each call of a driver, until stop is called. f must not block,
// and may be called concurrently, also once more while stop is called.
func (p *Plugin) Subscribe(f func(Operation)) (stop func()) { return p.drivers.Subscribe(f) }

// Connect connects to a driver unless there is a connection, so that [Plugin.Drivers]
// knows its version and what it can do. The error is that of a call.
func (p *Plugin) Connect(ctx context.Context, name string) error { return p.drivers.Connect(ctx, name) }

// AskName asks the driver at a socket for its name, which [Config.Drivers] needs. It waits as
// long as ctx lets it. An [ErrUnreachable] says why there is no name: nothing answers, the
// answer is no name of a driver, or the socket is another user's or everybody's.
func AskName(ctx context.Context, socket string) (string, error) { return drivers.AskName(ctx, socket) }

// SourceHealth implements [volumesource.HealthPlugin]: a volume's server is its driver.
func (p *Plugin) SourceHealth(spec *volume.Spec) (volumesource.Health, bool) {
	s, err := p.Source(spec)
	if err != nil || s.IsNothing() {
		return volumesource.Health{}, false
	}
	d, err := p.drivers.Get(s.Driver)
	if err != nil {
		return volumesource.Health{Source: s.Driver, Err: err}, true
	}
	return d.Health(), true
}

// Causes of failures. [errors.Is] finds them.
const (
	// ErrNotRegistered: no driver of this name is known on the node.
	ErrNotRegistered = drivers.ErrNotRegistered
	// ErrUnreachable: the driver's socket refuses, or nobody greets there. No call was
	// sent.
	ErrUnreachable = drivers.ErrUnreachable
	// ErrOtherDriver: another driver than the configured one answers at a socket.
	ErrOtherDriver = drivers.ErrOtherDriver
	// ErrNoAnswer: a call may have been done, or may be going on.
	ErrNoAnswer = drivers.ErrNoAnswer
	// ErrRefused: the driver answered that it has not done a call.
	ErrRefused = drivers.ErrRefused
	// ErrStagedElsewhere: the volume is staged below another root directory.
	ErrStagedElsewhere = drivers.ErrStagedElsewhere
	// ErrNotAttached: the volume is not attached to this node yet, or no more.
	ErrNotAttached = drivers.ErrNotAttached
	// ErrUnidentified: nothing says of which driver a volume on disk is.
	ErrUnidentified = drivers.ErrUnidentified
)
