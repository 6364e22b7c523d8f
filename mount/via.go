package mount

import "fmt"

// Via is the way a mount is made.
type Via int

// The ways.
const (
	// ViaBest uses system calls where the kernel can make the mount alone, and
	// mount(8) where it cannot: for types that have a helper, such as FUSE, for
	// NFS with Kerberos, and for options that mount(8) itself carries out. See
	// [HostMounter] for which is which.
	ViaBest Via = iota
	// ViaSystemCalls starts no process; what needs one is refused before
	// anything is touched ([ErrNeedsCommand]).
	ViaSystemCalls
	// ViaCommand runs mount(8) for everything, as mount-utils does.
	ViaCommand
)

func (v Via) String() string {
	switch v {
	case ViaBest:
		return "best"
	case ViaSystemCalls:
		return "system calls"
	case ViaCommand:
		return "command"
	}
	return fmt.Sprintf("Via(%d)", int(v))
}
