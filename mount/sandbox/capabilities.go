package sandbox

import (
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// CapabilityNames returns the names in capabilities(7) up to Linux 5.9, each at
// its number, without "CAP_".
func CapabilityNames() []string {
	return []string{"CHOWN", "DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "SETPCAP",
		"LINUX_IMMUTABLE", "NET_BIND_SERVICE", "NET_BROADCAST", "NET_ADMIN", "NET_RAW", "IPC_LOCK", "IPC_OWNER", "SYS_MODULE",
		"SYS_RAWIO", "SYS_CHROOT", "SYS_PTRACE", "SYS_PACCT", "SYS_ADMIN", "SYS_BOOT", "SYS_NICE", "SYS_RESOURCE", "SYS_TIME",
		"SYS_TTY_CONFIG", "MKNOD", "LEASE", "AUDIT_WRITE", "AUDIT_CONTROL", "SETFCAP", "MAC_OVERRIDE", "MAC_ADMIN", "SYSLOG",
		"WAKE_ALARM", "BLOCK_SUSPEND", "AUDIT_READ", "PERFMON", "BPF", "CHECKPOINT_RESTORE"}
}

// capability returns the number of a capability.
func capability(name string) (int, error) {
	n := slices.Index(CapabilityNames(), strings.TrimPrefix(strings.ToUpper(name), "CAP_"))
	if n < 0 {
		return 0, fmt.Errorf("there is no capability %q", name)
	}
	return n, nil
}

func checkCapabilities(names []string) error {
	for _, name := range names {
		if _, err := capability(name); err != nil {
			return err
		}
	}
	return nil
}

// capabilitySet is a set of capabilities, a bit each.
type capabilitySet uint64

func setOf(names []string) (capabilitySet, error) {
	var set capabilitySet
	for _, name := range names {
		n, err := capability(name)
		if err != nil {
			return 0, err
		}
		set |= 1 << n
	}
	return set, nil
}

// bound takes all others out of the calling thread's bounding set, for good.
func (s capabilitySet) bound() error {
	for n := range 64 {
		if s&(1<<n) != 0 {
			continue
		}
		has, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, uintptr(n), 0, 0, 0)
		if err != nil {
			return nil // beyond the kernel's last
		}
		if has == 0 {
			continue
		}
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(n), 0, 0, 0); err != nil {
			return err
		}
	}
	return nil
}

// permitted returns the calling thread's.
func permitted() (capabilitySet, error) {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	err := unix.Capget(&header, &data[0])
	return capabilitySet(data[0].Permitted) | capabilitySet(data[1].Permitted)<<32, err
}

// take makes s the calling thread's capabilities, and with ambient those that
// survive execve(2) for an ordinary user too.
func (s capabilitySet) take(ambient bool) error {
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return err
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	data := [2]unix.CapUserData{s.half(0), s.half(32)}
	if !ambient {
		data[0].Inheritable, data[1].Inheritable = 0, 0
	}
	if err := unix.Capset(&header, &data[0]); err != nil {
		return err
	}
	for n := range 64 {
		if !ambient || s&(1<<n) == 0 {
			continue
		}
		if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_RAISE, uintptr(n), 0, 0); err != nil {
			return err
		}
	}
	return nil
}

func (s capabilitySet) half(shift int) unix.CapUserData {
	bits := uint32(s >> shift)
	return unix.CapUserData{Effective: bits, Permitted: bits, Inheritable: bits}
}
