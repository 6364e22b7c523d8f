package sandbox_test

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/podvol/podvol/mount/host"
	"github.com/podvol/podvol/mount/sandbox"
	"github.com/podvol/podvol/util/testenv/nstest"
)

// inRoot gives a configuration a root, with the libraries that the program may
// need there.
func inRoot(t *testing.T, c sandbox.Config, root string) sandbox.Config {
	t.Helper()
	c.Root = root
	for _, dir := range []string{"/lib", "/lib64"} {
		if _, err := os.Stat(dir); err == nil {
			c.Mounts = append(c.Mounts, sandbox.Mount{Volume: "libraries", Source: dir, Destination: dir, ReadOnly: true})
		}
	}
	return c
}

func ownIDs() []host.IDMapping { return []host.IDMapping{{ContainerID: 0, HostID: 0, Size: 1}} }

func TestARootOfItsOwn(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		dir := t.TempDir()
		root := dir + "/root"
		write(t, root+"/etc/name", "of the root")
		write(t, root+"/dev/of-the-root", "")
		write(t, dir+"/volume/key", "value")
		before := snapshot(t, root)
		c := inRoot(t, program(t, "read:/etc/name", "read:/volume/key", "read:/etc/a/b/key", "list:/etc", "write:/dev/null", "write:/etc/name/..",
			"write:/sys/podvol", "read:"+dir+"/root/etc/name", "list:/"), root)
		c.Mounts = append(c.Mounts,
			sandbox.Mount{Source: dir + "/volume", Destination: "/volume"},
			sandbox.Mount{Source: dir + "/volume", Destination: "/etc/a/b"},
		)
		s, _ := run(t, c)
		all := []string{"bin-of-the-test", "dev", "etc", "proc", "sys", "volume"}
		for _, m := range c.Mounts {
			if m.Volume == "libraries" {
				all = append(all, m.Destination[1:])
			}
		}
		slices.Sort(all)
		want := []string{"of the root", "value", "value", "a name", "written", "ENOTDIR", "EROFS", "ENOENT", strings.Join(all, " ")}
		if !slices.Equal(s.Results, want) {
			t.Errorf("results %q, want %q", s.Results, want)
		}
		if s.Dir != "/" || s.at("/proc") == nil || s.at("/sys") == nil || s.at("/dev") == nil {
			t.Errorf("the program is in %s and sees %v", s.Dir, s.Mounts)
		}
		for _, m := range s.Mounts {
			if strings.HasPrefix(m.Mountpoint, "/sys") && !slices.Contains(strings.Split(m.Options, ","), "ro") {
				t.Errorf("%s is writable", m.Mountpoint)
			}
		}
		if after := snapshot(t, root); !slices.Equal(before, after) {
			t.Errorf("the root was\n%q and is now\n%q", before, after)
		}
	})
}

func TestMountsInPlaceOfTheRootsOwn(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		dir := t.TempDir()
		write(t, dir+"/dev/podvol", "another dev")
		c := inRoot(t, program(t, "list:/dev"), mkdir(t, dir+"/root"))
		c.Mounts = append(c.Mounts, sandbox.Mount{Source: dir + "/dev", Destination: "/dev"})
		mountTmpfs(t, dir+"/root/sys")
		write(t, dir+"/root/sys/mine", "")
		c.Args = append(c.Args, "list:/sys", "write:/sys/mine")
		s, _ := run(t, c)
		if want := []string{"podvol", "mine", "written"}; !slices.Equal(s.Results, want) {
			t.Errorf("results %q, want %q", s.Results, want)
		}
	})
}

func mkdir(t *testing.T, path string) string {
	t.Helper()
	if err := os.MkdirAll(path, 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// fails runs what must fail and returns the error.
func fails(t *testing.T, c sandbox.Config) *sandbox.Error {
	t.Helper()
	before := look(t)
	code, err := sandbox.Run(t.Context(), c)
	e, ok := errors.AsType[*sandbox.Error](err)
	if !ok {
		t.Fatalf("Run: %d, %v; want a *sandbox.Error", code, err)
	}
	if code != e.ExitCode() {
		t.Errorf("the exit code is %d, that of the error %d", code, e.ExitCode())
	}
	if after := look(t); !slices.Equal(before, after) {
		t.Errorf("the mount table was\n%s\nand is now\n%s", strings.Join(before, "\n"), strings.Join(after, "\n"))
	}
	return e
}
