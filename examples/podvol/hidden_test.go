package main

import (
	"strings"
	"testing"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/sandbox"
	"github.com/podvol/podvol/util/testenv/containertest"
	"github.com/podvol/podvol/util/testenv/mounttest"
	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/util/testenv/testtool"
)

// In a container without mount propagation each command that shows a root directory says so,
// with what to write into the manifest; with it, and on the host, none does.
func TestHiddenMounts(t *testing.T) {
	nstest.Parallel(t)
	nstest.RunAs(t, []nstest.Mode{nstest.Host}, func(t *testing.T) {
		disk := testtool.MkdirAll(t, t.TempDir(), "disk")
		mounttest.MountTmpfs(t, disk)
		mounttest.Mount(t, mount.Request{Target: disk, Options: []string{"rshared"}})
		root := testtool.MkdirAll(t, disk, "root")
		for _, command := range []string{"status", "fsck"} {
			for mode, hidden := range map[mount.Propagation]bool{mount.PropagationPrivate: true, mount.PropagationSlave: true, mount.PropagationShared: false} {
				config := containertest.Config(t, sandbox.Mount{Source: root, Destination: root, Propagation: mode})
				config.Args, config.Env = append(config.Args, command, "--root-dir", root), []string{mainVar + "=1"}
				code, _, errOut := containertest.Run(t, config)
				if warned := strings.Contains(errOut, "mountPropagation: Bidirectional"); code != exitOK || warned != hidden {
					t.Errorf("%s, %s: exit code %d, warned %v: %s", command, mode, code, warned, errOut)
				}
			}
			if _, errOut := mustPodvol(t, exitOK, command, "--root-dir", root); strings.Contains(errOut, "warning") {
				t.Errorf("%s on the host: %s", command, errOut)
			}
		}
	})
}
