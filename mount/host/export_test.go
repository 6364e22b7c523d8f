package host

import "time"

// Patiently returns m, which waits for what mount(8) leaves as long as a busy
// machine takes: what ends is then seen to end.
func Patiently(m *Mounter) *Mounter {
	m.graces = graces{output: time.Minute, kill: 2 * time.Minute}
	return m
}
