package mount

import (
	"time"

	k8smount "k8s.io/mount-utils"

	"github.com/podvol/podvol/mount/internal/statmount"
)

// KeepTable returns a mounter that mounts as m does and for which [TableOf]
// always returns the same table. So many callers share one read of the table.
//
//   - If m has a table of its own, the result is m. For nil it is nil.
//   - Otherwise m must act on this process's mount namespace. The table is one of
//     [KernelTable]'s kind. It reads only the changed mounts again. It opens its
//     two descriptors at the first question.
//   - The result implements [ContextMounter] and mount-utils'
//     MounterForceUnmounter if m does, and no other interface of m. Its method
//     Unwrap() Interface returns m.
//   - It is safe for concurrent use if m is.
func KeepTable(m Interface) Interface {
	if _, own := m.(tabler); own || m == nil {
		return m
	}
	kept := keptTable{of: m, table: newIndex(statmount.Host{})}
	withContext, inContext := m.(ContextMounter)
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
	of    Interface
	table Table
}

// Table implements [tabler].
func (k keptTable) Table() Table { return k.table }

// Unwrap returns the mounter that was given the table.
func (k keptTable) Unwrap() Interface { return k.of }

// keptForce is for those that can force an unmount.
type keptForce struct{ keptTable }

// UnmountWithForce is the mounter's own.
func (k keptForce) UnmountWithForce(target string, timeout time.Duration) error {
	return k.of.(k8smount.MounterForceUnmounter).UnmountWithForce(target, timeout)
}

type (
	plainTabler struct {
		Interface
		keptTable
	}
	forceTabler struct {
		Interface
		keptForce
	}
	contextTabler struct {
		ContextMounter
		keptTable
	}
	contextForceTabler struct {
		ContextMounter
		keptForce
	}
)
