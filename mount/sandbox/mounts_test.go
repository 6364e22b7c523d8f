package sandbox_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount/sandbox"
	"github.com/podvol/podvol/util/testenv/nstest"
)

func TestReadOnlyAndItsRecursion(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		source := t.TempDir() + "/source"
		mountTmpfs(t, source)
		mountTmpfs(t, source+"/below")
		for name, tc := range map[string]struct {
			mount      sandbox.Mount
			top, below string
		}{
			"writable":             {sandbox.Mount{}, "written", "written"},
			"read-only":            {sandbox.Mount{ReadOnly: true}, "EROFS", "written"},
			"recursively":          {sandbox.Mount{ReadOnly: true, RecursiveReadOnly: true}, "EROFS", "EROFS"},
			"recursively, by that": {sandbox.Mount{RecursiveReadOnly: true}, "EROFS", "EROFS"},
		} {
			t.Run(name, func(t *testing.T) {
				c := program(t, "write:/podvol/file", "write:/podvol/below/file")
				m := tc.mount
				m.Source, m.Destination = source, "/podvol"
				c.Mounts = append(c.Mounts, m)
				s, _ := run(t, c)
				if want := []string{tc.top, tc.below}; !slices.Equal(s.Results, want) {
					t.Errorf("results %q, want %q", s.Results, want)
				}
				for path, result := range map[string]string{"/podvol": tc.top, "/podvol/below": tc.below} {
					m := s.at(path)
					if m == nil {
						t.Fatalf("%s is not in the program's mount table", path)
					}
					if readOnly := slices.Contains(strings.Split(m.Options, ","), "ro"); readOnly != (result == "EROFS") {
						t.Errorf("%s has the options %s", path, m.Options)
					}
				}
			})
		}
	})
}

func TestFlagsOfAMountOnly(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		source := t.TempDir() + "/source"
		mountTmpfs(t, source)
		mountTmpfs(t, source+"/below")
		c := program(t)
		c.Mounts = append(c.Mounts, sandbox.Mount{Source: source, Destination: "/podvol", NoExec: true, NoSUID: true, NoDev: true, ReadOnly: true})
		s, _ := run(t, c)
		top, below := s.at("/podvol"), s.at("/podvol/below")
		if top == nil || below == nil {
			t.Fatal("a mount is not there")
		}
		for _, flag := range []string{"ro", "nosuid", "nodev", "noexec"} {
			if !slices.Contains(strings.Split(top.Options, ","), flag) {
				t.Errorf("the options are %s, without %s", top.Options, flag)
			}
		}
		if slices.Contains(strings.Split(below.Options, ","), "noexec") {
			t.Errorf("the mount inside has %s", below.Options)
		}
	})
}

func TestFlagsOfTheSourceAreKept(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		source := t.TempDir()
		if err := unix.Mount("of-the-test", source, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "size=64k"); err != nil {
			t.Fatal(err)
		}
		c := program(t)
		c.Mounts = append(c.Mounts, sandbox.Mount{Source: source, Destination: "/podvol", ReadOnly: true})
		c.UserNamespace = sameIDs(t)
		s, _ := run(t, c)
		m := s.at("/podvol")
		if m == nil {
			t.Fatal("the mount is not there")
		}
		for _, flag := range []string{"ro", "nosuid", "nodev", "noexec"} {
			if !slices.Contains(strings.Split(m.Options, ","), flag) {
				t.Errorf("the options are %s, without %s", m.Options, flag)
			}
		}
	})
}

// The destinations of all kinds that do not exist, and what must not change
// around them.
func TestMissingDestinationsAreMadeOutOfTheHostsSight(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		dir := t.TempDir()
		host := dir + "/host"
		write(t, host+"/sub/file", "host file")
		write(t, host+"/sub/more/deep", "deep")
		if err := os.Symlink("file", host+"/sub/link"); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mkfifo(host+"/sub/fifo", 0o600); err != nil {
			t.Fatal(err)
		}
		if err := unix.Chmod(host+"/sub", 0o2751); err != nil {
			t.Fatal(err)
		}
		write(t, dir+"/volume/key", "value")
		before, top := snapshot(t, host), names(t, "/")
		sub := host + "/sub"
		c := program(t, "read:/podvol-a/key", "read:/podvol-b/c/d/key", "read:/podvol-b/file", "read:"+sub+"/new/key", "read:"+sub+"/other/x/key",
			"list:"+sub, "stat:"+sub, "read:"+sub+"/file", "read:"+sub+"/link", "link:"+sub+"/link", "read:"+sub+"/more/deep", "stat:"+sub+"/fifo",
			"write:"+sub+"/scratch", "read:/dev/podvol-log", "write:/dev/null", "list:"+dir)
		volume := dir + "/volume"
		c.Mounts = append(c.Mounts,
			sandbox.Mount{Source: volume, Destination: sub + "/new"},
			sandbox.Mount{Source: volume, Destination: sub + "/other/x"},
			sandbox.Mount{Source: volume, Destination: "/podvol-a"},
			sandbox.Mount{Source: volume, Destination: "/podvol-b/c/d"},
			sandbox.Mount{Source: volume + "/key", Destination: "/podvol-b/file", File: true},
			sandbox.Mount{Source: volume + "/key", Destination: "/dev/podvol-log", File: true},
		)
		s, _ := run(t, c)
		own := fmt.Sprintf("%d:%d", os.Getuid(), os.Getgid())
		want := []string{"value", "value", "value", "value", "value",
			"fifo file link more new other", "42751 " + own, "host file", "host file", "file", "deep", "10600 " + own,
			"written", "value", "written", "host volume"}
		if !slices.Equal(s.Results, want) {
			t.Errorf("results\n%q, want\n%q", s.Results, want)
		}
		if after := snapshot(t, host); !slices.Equal(before, after) {
			t.Errorf("the host's directory was\n%q and is now\n%q", before, after)
		}
		if after := names(t, "/"); !slices.Equal(top, after) {
			t.Errorf("the host's root was %q and is now %q", top, after)
		}
		if _, err := os.Lstat("/dev/podvol-log"); err == nil {
			t.Error("the mount point was made in the host's /dev")
		}
	})
}

func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return all
}

func TestADirectoryThatIsReadOnlyStaysSo(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		dir := t.TempDir()
		mountTmpfs(t, dir+"/host")
		write(t, dir+"/host/sub/file", "host file")
		if err := unix.Mount("", dir+"/host", "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
			t.Fatal(err)
		}
		write(t, dir+"/volume/key", "value")
		c := program(t, "write:"+dir+"/host/sub/scratch", "write:"+dir+"/host/sub/new/key", "read:"+dir+"/host/sub/file")
		c.Mounts = append(c.Mounts, sandbox.Mount{Source: dir + "/volume", Destination: dir + "/host/sub/new"})
		s, _ := run(t, c)
		if want := []string{"EROFS", "written", "host file"}; !slices.Equal(s.Results, want) {
			t.Errorf("results %q, want %q", s.Results, want)
		}
	})
}

// sameIDs is a user namespace with the ids that the caller has.
func sameIDs(t *testing.T) *sandbox.UserNamespace {
	t.Helper()
	return &sandbox.UserNamespace{UIDMappings: ownIDs(), GIDMappings: ownIDs()}
}
