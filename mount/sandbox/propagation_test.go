package sandbox_test

import (
	"bufio"
	"errors"
	"io"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/sandbox"
	"github.com/podvol/podvol/util/testenv/nstest"
)

// mountShared mounts a tmpfs that has peers, and one below it.
func mountShared(t *testing.T, path string) {
	t.Helper()
	mountTmpfs(t, path)
	if err := unix.Mount("", path, "", unix.MS_SHARED, ""); err != nil {
		t.Fatal(err)
	}
	mountTmpfs(t, path+"/below")
	write(t, path+"/below/file", "below")
}

func isMounted(t *testing.T, path string) bool {
	t.Helper()
	return slices.ContainsFunc(look(t), func(line string) bool { return strings.Fields(line)[4] == path })
}

func TestPropagationIsShownByTheMountTable(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		source := t.TempDir() + "/source"
		mountShared(t, source)
		for propagation, want := range map[mount.Propagation]string{"": "", "rprivate": "", "rslave": "master:", "rshared": "shared:"} {
			for _, withRoot := range []bool{false, true} {
				c := program(t)
				if withRoot {
					c = inRoot(t, c, t.TempDir())
				}
				c.Mounts = append(c.Mounts, sandbox.Mount{Source: source, Destination: "/podvol", Propagation: propagation})
				s, _ := run(t, c)
				for _, path := range []string{"/podvol", "/podvol/below"} {
					m := s.at(path)
					if m == nil {
						t.Fatalf("%s is not in the program's mount table", path)
					}
					if field, _, _ := strings.Cut(m.Optional, ":"); field != strings.TrimSuffix(want, ":") {
						t.Errorf("%q, root %v: %s has the propagation %q, want %q", propagation, withRoot, path, m.Optional, want)
					}
				}
			}
		}
	})
}

// What a Bidirectional mount shows is the host's: that the sandbox goes must
// take nothing of it away there.
func TestBidirectional(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		for _, withRoot := range []bool{false, true} {
			source := t.TempDir() + "/source"
			mountShared(t, source)
			mkdir(t, source+"/point")
			// An existing destination: what it is mounted in is the old root, which
			// goes when a missing one needs a new root.
			existing := mkdir(t, t.TempDir()+"/existing")
			c := program(t, "mount:"+existing+"/point", "write:"+existing+"/point/file")
			if withRoot {
				c = inRoot(t, c, t.TempDir())
			}
			bidirectional := sandbox.Mount{Source: source, Destination: existing, Propagation: "rshared"}
			c.Mounts = append([]sandbox.Mount{bidirectional}, c.Mounts...)
			var out lines
			c.Stdout = &out
			if code, err := sandbox.Run(t.Context(), c); code != 0 || err != nil {
				t.Fatal(code, err)
			}
			if want := []string{"mounted", "written"}; !slices.Equal(out.results(t), want) {
				t.Errorf("results %q, want %q", out.results(t), want)
			}
			if content, err := os.ReadFile(source + "/point/file"); err != nil || string(content) != "by the program" {
				t.Errorf("the program's mount is not on the host: %q, %v", content, err)
			}
			if content, err := os.ReadFile(source + "/below/file"); err != nil || string(content) != "below" {
				t.Errorf("the host lost a mount below its own: %q, %v", content, err)
			}
		}
	})
}

func TestHostToContainer(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		source := t.TempDir() + "/source"
		mountShared(t, source)
		c := program(t, "wait", "read:/podvol-slave/later/file", "read:/podvol-private/later/file", "mount:/podvol-slave/point", "write:/podvol-slave/point/file")
		mkdir(t, source+"/point")
		mkdir(t, source+"/later")
		c.Mounts = append(c.Mounts,
			sandbox.Mount{Source: source, Destination: "/podvol-slave", Propagation: "rslave"},
			sandbox.Mount{Source: source, Destination: "/podvol-private"},
		)
		input, told := io.Pipe()
		output, says := io.Pipe()
		c.Stdin, c.Stdout = input, says
		ended := make(chan error, 1)
		go func() {
			_, err := sandbox.Run(t.Context(), c)
			says.Close()
			ended <- err
		}()
		out := bufio.NewReader(output)
		if line, err := out.ReadString('\n'); line != "ready\n" {
			t.Fatal(line, err)
		}
		mountTmpfs(t, source+"/later")
		write(t, source+"/later/file", "later")
		told.Close()
		var rest lines
		if _, err := rest.ReadFrom(out); err != nil {
			t.Fatal(err)
		}
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
		if want := []string{"later", "ENOENT", "mounted", "written"}; !slices.Equal(rest.results(t), want) {
			t.Errorf("results %q, want %q", rest.results(t), want)
		}
		if isMounted(t, source+"/point") {
			t.Error("the program's mount came to the host")
		}
	})
}

func TestPropagationThatCannotBe(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		dir := t.TempDir()
		mountTmpfs(t, dir+"/private")
		mountShared(t, dir+"/shared")
		bidirectional := sandbox.Mount{Volume: "both", Source: dir + "/shared", Destination: "/podvol", Propagation: "rshared"}
		for name, tc := range map[string]struct {
			mounts []sandbox.Mount
			users  *sandbox.UserNamespace
			cause  sandbox.Cause
			volume string
		}{
			"not shared on the host": {
				[]sandbox.Mount{{Volume: "v", Source: dir + "/private", Destination: "/podvol", Propagation: "rshared"}}, nil, sandbox.ErrNotShared, "v",
			},
			"from a user namespace": {[]sandbox.Mount{bidirectional}, sameIDs(t), sandbox.ErrNotShared, "both"},
			"another mount inside": {
				[]sandbox.Mount{bidirectional, {Volume: "in", Source: dir, Destination: "/podvol/below"}}, nil, sandbox.ErrPropagates, "in",
			},
		} {
			t.Run(name, func(t *testing.T) {
				c := program(t)
				c.Mounts, c.UserNamespace = append(c.Mounts, tc.mounts...), tc.users
				if e := fails(t, c); !errors.Is(e, tc.cause) || e.Volume != tc.volume || e.Advice == "" {
					t.Errorf("%v; want %v of %q", e, tc.cause, tc.volume)
				}
			})
		}
	})
}

// A mount that covers an earlier, deeper one decides what lies in it.
func TestNothingLandsInABidirectionalMountThatCoversAnother(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		for name, last := range map[string]string{"an existing destination": "/a/b/c", "a missing one": "/a/b/missing"} {
			dir := t.TempDir()
			mountShared(t, dir+"/shared")
			mkdir(t, dir+"/shared/b/c")
			mkdir(t, dir+"/private/c")
			mkdir(t, dir+"/root/a/b")
			c := inRoot(t, program(t), dir+"/root")
			c.Mounts = append(c.Mounts,
				sandbox.Mount{Volume: "deep", Source: dir + "/private", Destination: "/a/b"},
				sandbox.Mount{Volume: "both", Source: dir + "/shared", Destination: "/a", Propagation: "rshared"},
				sandbox.Mount{Volume: "last", Source: dir + "/private", Destination: last},
			)
			if e := fails(t, c); e.Volume != "last" || !errors.Is(e, sandbox.ErrPropagates) || !strings.Contains(e.Advice, "mount at /a:") {
				t.Errorf("%s: %v", name, e)
			}
		}
	})
}
