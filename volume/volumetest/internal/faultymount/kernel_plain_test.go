package faultymount

import (
	"errors"
	"testing"

	"github.com/podvol/podvol/mount/fakemount"
)

var errInjected = errors.New("a fault that the test injected")

// TestPlainCallsAreCounted calls each plain method of a kernel's mounter, on
// top of a fake in the kernel's place, without a fault and under one.
func TestPlainCallsAreCounted(t *testing.T) {
	fake := fakemount.New()
	t.Cleanup(func() {
		if err := fake.Close(); err != nil {
			t.Error(err)
		}
	})
	m := &Kernel{ContextMounter: fake}
	dir := t.TempDir()
	for name, call := range map[string]func() error{
		"Mount":                        func() error { return m.Mount("tmpfs", dir, "tmpfs", nil) },
		"MountSensitive":               func() error { return m.MountSensitive("tmpfs", dir, "tmpfs", nil, nil) },
		"MountSensitiveWithoutSystemd": func() error { return m.MountSensitiveWithoutSystemd("tmpfs", dir, "tmpfs", nil, nil) },
		"MountSensitiveWithoutSystemdWithMountFlags": func() error {
			return m.MountSensitiveWithoutSystemdWithMountFlags("tmpfs", dir, "tmpfs", nil, nil, nil)
		},
	} {
		for _, call := range []func() error{call, func() error { return m.Unmount(dir) }} {
			m.ResetCalls()
			remove := m.Inject(fakemount.Fault{Err: errInjected})
			if err := call(); !errors.Is(err, errInjected) {
				t.Errorf("%s under a fault: %v", name, err)
			}
			remove()
			if err := call(); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			if got := len(m.Calls()); got != 2 {
				t.Errorf("%s: %d calls are counted, want 2: %v", name, got, m.Calls())
			}
		}
	}
}
