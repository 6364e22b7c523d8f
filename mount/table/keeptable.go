package table

import (
	"time"

	k8smount "k8s.io/mount-utils"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/internal/mounttable"
	"github.com/podvol/podvol/mount/internal/statmount"
)

// Keep returns a mounter that mounts as m does and for which [Of]
// always returns the same table. So many callers share one read of the table.
//
//   - If m has a table of its own, the result is m. For nil it is nil.
//   - Otherwise m must act on this process's mount namespace. The table is one of
//     [Kernel]'s kind. It reads only the changed mounts again. It opens its
//     two descriptors at the first question.
//   - The result implements [mount.ContextMounter] and mount-utils'
//     MounterForceUnmounter if m does, and no other interface of m. Its method
//     Unwrap() Interface returns m.
//   - It is safe for concurrent use if m is.
func Keep(m mount.Interface) mount.Interface {
	if _, own := m.(Tabler); own || m == nil {
		return m
	}
	kept := keptTable{of: m, table: mounttable.New(statmount.Host{})}
	withContext, inContext := m.(mount.ContextMounter)
	_, forces := m.(k8smount.MounterForceUnmounter)
	switch {
	case inContext && forces:
		return &contextForceTabler{withContext, keptForce{kept}}
	case inContext:
		return &contextTabler{withContext, kept}
	case forces:
		return &forceTabler{m, keptForce{kept}}
	}
	return &plainTabler{m, kept}
}

// keptTable is what a mounter gets.
type keptTable struct {
	of    mount.Interface
	table mount.Table
}

// Table implements [Tabler].
func (k keptTable) Table() mount.Table { return k.table }

// Unwrap returns the mounter that was given the table.
func (k keptTable) Unwrap() mount.Interface { return k.of }

// keptForce is for those that can force an unmount.
type keptForce struct{ keptTable }

// UnmountWithForce is the mounter's own.
func (k keptForce) UnmountWithForce(target string, timeout time.Duration) error {
	return k.of.(k8smount.MounterForceUnmounter).UnmountWithForce(target, timeout)
}

type (
	plainTabler struct {
		mount.Interface
		keptTable
	}
	forceTabler struct {
		mount.Interface
		keptForce
	}
	contextTabler struct {
		mount.ContextMounter
		keptTable
	}
	contextForceTabler struct {
		mount.ContextMounter
		keptForce
	}
)
