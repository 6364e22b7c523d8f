package sandbox_test

import (
	"errors"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount/sandbox"
	"github.com/podvol/podvol/util/testenv/nstest"
)

// Each error says which mount it is about, why, and what to do.
func TestMountsThatCannotBe(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		dir := t.TempDir()
		write(t, dir+"/volume/key", "value")
		write(t, dir+"/file", "")
		volume := func(destination string) sandbox.Mount {
			return sandbox.Mount{Volume: "data", Source: dir + "/volume", Destination: destination}
		}
		for name, tc := range map[string]struct {
			mounts []sandbox.Mount
			cause  sandbox.Cause
			says   string
		}{
			"no source":             {[]sandbox.Mount{{Volume: "data", Source: dir + "/none", Destination: "/podvol"}}, sandbox.ErrNoSource, dir + "/none"},
			"missing in a volume":   {[]sandbox.Mount{volume("/podvol"), volume("/podvol/a/b")}, sandbox.ErrNoMountPoint, "make it in the volume (" + dir + "/volume)"},
			"missing in the kernel": {[]sandbox.Mount{volume("/proc/podvol")}, sandbox.ErrNoMountPoint, "proc"},
			"below a file":          {[]sandbox.Mount{volume(dir + "/file/a")}, sandbox.ErrNoMountPoint, "no directory"},
			"a directory on a file": {[]sandbox.Mount{volume(dir + "/file")}, sandbox.ErrKindMismatch, ""},
			"a file on a directory": {[]sandbox.Mount{{Volume: "data", Source: dir + "/file", Destination: dir, File: true}}, sandbox.ErrKindMismatch, ""},
			"a file that is none":   {[]sandbox.Mount{{Volume: "data", Source: dir, Destination: "/podvol", File: true}}, sandbox.ErrKindMismatch, ""},
			"a relative place":      {[]sandbox.Mount{volume("podvol")}, sandbox.ErrConfig, "absolute"},
			"a way out":             {[]sandbox.Mount{volume("/podvol/../../etc")}, sandbox.ErrConfig, "clean"},
			"the root":              {[]sandbox.Mount{volume("/")}, sandbox.ErrConfig, "Root"},
			"no propagation": {
				[]sandbox.Mount{{Volume: "data", Source: dir, Destination: "/podvol", Propagation: "Bidirectional"}}, sandbox.ErrConfig, "Bidirectional",
			},
		} {
			t.Run(name, func(t *testing.T) {
				c := program(t)
				c.Mounts = append(c.Mounts, tc.mounts...)
				e := fails(t, c)
				destination := tc.mounts[len(tc.mounts)-1].Destination
				if !errors.Is(e, tc.cause) || e.Volume != "data" || e.Destination != destination || !strings.Contains(e.Error(), tc.says) || e.ExitCode() != 125 {
					t.Errorf("%v (%q at %q); want %v and %q", e, e.Volume, e.Destination, tc.cause, tc.says)
				}
			})
		}
		c := program(t)
		c.Root = dir + "/none"
		if e := fails(t, c); !errors.Is(e, sandbox.ErrNoSource) || !errors.Is(e, unix.ENOENT) || e.Path != c.Root {
			t.Error(e)
		}
		if _, err := os.Lstat(dir + "/volume/a"); err == nil {
			t.Error("a directory was made in the volume")
		}
	})
}
