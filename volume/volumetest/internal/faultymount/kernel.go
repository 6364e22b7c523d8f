// Package faultymount lets injected faults meet mounts that are real.
package faultymount

import (
	"context"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/mount/host"
	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/util/fault"
)

// Mounter is a mounter under injected faults: [fakemount.Mounter], or a [Kernel].
type Mounter interface {
	mount.ContextMounter
	Inject(faults ...fakemount.Fault) (remove func())
	Calls() []fakemount.Call
	ResetCalls()
}

// Kernel mounts for real, under injected faults.
type Kernel struct {
	mount.ContextMounter
	faults fault.Injector[fakemount.Call]
}

func NewKernel() *Kernel {
	return &Kernel{ContextMounter: host.New(host.Config{})}
}

var _ Mounter = (*Kernel)(nil)

// Table implements [table.Tabler].
func (m *Kernel) Table() mount.Table { return table.Of(m.ContextMounter) }

// Inject is that of [fakemount.Mounter].
func (m *Kernel) Inject(faults ...fakemount.Fault) (remove func()) {
	return m.faults.Inject(faults...)
}

// Calls is that of [fakemount.Mounter].
func (m *Kernel) Calls() []fakemount.Call { return m.faults.Calls() }

// ResetCalls is that of [fakemount.Mounter].
func (m *Kernel) ResetCalls() { m.faults.ResetCalls() }

// MountContext implements [mount.ContextMounter]. A fault that hits it leaves
// open whether the mount took effect.
func (m *Kernel) MountContext(ctx context.Context, r mount.Request) error {
	call := fakemount.Call{Op: mount.OpMount, Source: r.Source, Target: r.Target, FSType: r.FSType, Options: r.Options}
	var own error
	err := m.faults.Do(ctx, call, func() error {
		own = m.ContextMounter.MountContext(ctx, r)
		return own
	})
	if err == nil || err == own {
		return err
	}
	return &mount.Error{Op: mount.OpMount, Source: r.Source, Target: r.Target, FSType: r.FSType,
		Options: r.Options, Cause: mount.ErrUnknown, Uncertain: true, Err: err}
}

// UnmountContext implements [mount.ContextMounter].
func (m *Kernel) UnmountContext(ctx context.Context, target string, o mount.UnmountOptions) (mount.Rung, error) {
	call := fakemount.Call{Op: mount.OpUnmount, Target: target, Rung: mount.RungNormal}
	var rung mount.Rung
	var own error
	err := m.faults.Do(ctx, call, func() error {
		rung, own = m.ContextMounter.UnmountContext(ctx, target, o)
		return own
	})
	if err == nil || err == own {
		return rung, err
	}
	return rung, &mount.Error{Op: mount.OpUnmount, Target: target, Cause: mount.ErrUnknown, Uncertain: true, Err: err}
}
