package mount

import "fmt"

// Via is the way a mount is made.
type Via int

// The ways.
const (
	// ViaBest uses system calls if the kernel can make the mount alone. It uses
	// mount(8) for types with a helper, such as FUSE, for NFS with Kerberos, and
	// for options that mount(8) itself carries out. [HostMounter] has the full
	// list.
	ViaBest Via = iota
	// ViaSystemCalls starts no process. A mount that needs one is refused before
	// anything is changed ([ErrNeedsCommand]).
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
