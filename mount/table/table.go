package table

import (
	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/internal/mounttable"
	"github.com/podvol/podvol/mount/internal/statmount"
)

// Tabler is implemented by mounters that keep a table of their own.
type Tabler interface {
	Table() mount.Table
}

// Of returns the table that m acts on.
//
//   - It is m's own if m has a method Table() Table, as in mount/host and
//     mount/fakemount, and in the results of host.Wrap.
//   - Any other mounter must act on this process's mount namespace. Its table keeps
//     nothing open and reads /proc/self/mountinfo for each question. host.Wrap gives it
//     one that is kept in memory.
//
// Of opens nothing. If a table cannot be read, its questions return the error.
func Of(m mount.Interface) mount.Table {
	if t, ok := m.(Tabler); ok {
		return t.Table()
	}
	return mounttable.Uncached{}
}

// Kernel returns a table of this process's mount namespace. It is kept in memory and
// updated before each answer. It holds two descriptors from the first question on, which
// are closed when it is no longer used. Kernel opens nothing; a process without /proc
// gets the error by its first question.
//
// The table is the process's. A thread with another mount namespace or root directory
// (unshare(2), chroot(2)) gets the same answers, slower.
func Kernel() mount.Table { return mounttable.New(statmount.Host{}) }
