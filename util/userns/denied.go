package userns

import (
	"fmt"
	"io/fs"
	"strings"
)

// DeniedError says that the machine gives this user no user namespace, or none
// in which it may mount.
type DeniedError struct {
	// Sysctl is the setting that denies it, as in "user.max_user_namespaces",
	// and Value what it is set to; empty where no known setting does.
	Sysctl, Value string
	// Wanted is the value that would allow it.
	Wanted string
	// Err is what the kernel said.
	Err error
}

func (e *DeniedError) Error() string {
	if e.Sysctl == "" {
		return fmt.Sprintf("this machine denies a user namespace: %v; a container's or service's filter of system calls may be why: run as root, or outside of it", e.Err)
	}
	return fmt.Sprintf("this machine denies a user namespace: %s is %s (%v); run as root, or have root allow it: sysctl -w %s=%s",
		e.Sysctl, e.Value, e.Err, e.Sysctl, e.Wanted)
}

// Unwrap returns what the kernel said.
func (e *DeniedError) Unwrap() error { return e.Err }

// Explain finds out which setting made the kernel deny a user namespace with
// err. sysctls is /proc/sys, os.DirFS("/proc/sys"). Settings that a kernel does
// not have deny nothing.
func Explain(sysctls fs.FS, err error) *DeniedError {
	for _, s := range []struct{ name, denies, wanted string }{
		{"user.max_user_namespaces", "0", "15000"},
		{"user.max_mnt_namespaces", "0", "15000"},
		{"kernel.unprivileged_userns_clone", "0", "1"},             // Debian's kernels
		{"kernel.apparmor_restrict_unprivileged_userns", "1", "0"}, // Ubuntu from 23.10 on
	} {
		text, readErr := fs.ReadFile(sysctls, strings.ReplaceAll(s.name, ".", "/"))
		if value := strings.TrimSpace(string(text)); readErr == nil && value == s.denies {
			return &DeniedError{Sysctl: s.name, Value: value, Wanted: s.wanted, Err: err}
		}
	}
	return &DeniedError{Err: err}
}
