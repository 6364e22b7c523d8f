package sandbox_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount/sandbox"
	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/util/testenv/testtool"
)

func symlink(t *testing.T, target, path string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(target, path); err != nil {
		t.Fatal(err)
	}
}

// A root's links lead nowhere but into the root.
func TestLinksOfARootLeadNowhereElse(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		dir := t.TempDir()
		victim, root := mkdir(t, dir+"/victim"), mkdir(t, dir+"/root")
		write(t, victim+"/file", "of the host")
		write(t, dir+"/volume/key", "value")
		symlink(t, victim, root+"/absolute")
		symlink(t, "../../../../../../../../../.."+victim, root+"/relative")
		symlink(t, "run", root+"/var")
		mkdir(t, root+"/run")
		mkdir(t, root+victim) // what the links lead to in the root
		before := snapshot(t, victim)
		for _, destination := range []string{"/absolute/a/b", "/relative/c", "/var/secrets", "/absolute"} {
			t.Run(destination, func(t *testing.T) {
				c := inRoot(t, program(t, "read:"+destination+"/key"), root)
				c.Mounts = append(c.Mounts, sandbox.Mount{Source: dir + "/volume", Destination: destination})
				s, _ := run(t, c)
				if want := []string{"value"}; !slices.Equal(s.Results, want) {
					t.Errorf("results %q, want %q", s.Results, want)
				}
				if after := snapshot(t, victim); !slices.Equal(before, after) {
					t.Errorf("the victim was\n%q and is now\n%q", before, after)
				}
			})
		}
	})
}

// A volume's content is a stranger's too: a link in it, on the way to a nested
// mount.
func TestLinksInAVolumeLeadNowhereElse(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		dir := t.TempDir()
		victim, root := mkdir(t, dir+"/victim"), mkdir(t, dir+"/root")
		write(t, victim+"/file", "of the host")
		write(t, dir+"/nested/key", "value")
		symlink(t, "../../../../../../../../.."+victim, dir+"/volume/link")
		before := [][]string{snapshot(t, victim), snapshot(t, dir+"/volume"), snapshot(t, root)}
		c := inRoot(t, program(t, "read:/data/link/x/key", "read:"+victim+"/x/key"), root)
		c.Mounts = append(c.Mounts,
			sandbox.Mount{Source: dir + "/volume", Destination: "/data"},
			sandbox.Mount{Source: dir + "/nested", Destination: "/data/link/x"},
		)
		s, _ := run(t, c)
		if want := []string{"value", "value"}; !slices.Equal(s.Results, want) {
			t.Errorf("results %q, want %q", s.Results, want)
		}
		for i, path := range []string{victim, dir + "/volume", root} {
			if after := snapshot(t, path); !slices.Equal(before[i], after) {
				t.Errorf("%s was\n%q and is now\n%q", path, before[i], after)
			}
		}
	})
}

// As the /var/run of many images.
func TestALinkThatLeadsNowhereYet(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		for name, target := range map[string]string{"relative": "../run/x", "absolute": "/run/x", "out of the root": "../../../../../run/x"} {
			t.Run(name, func(t *testing.T) {
				dir := t.TempDir()
				write(t, dir+"/volume/key", "value")
				symlink(t, target, dir+"/root/var/run")
				before := snapshot(t, dir+"/root")
				c := inRoot(t, program(t, "read:/var/run/secrets/key", "read:/run/x/secrets/key"), dir+"/root")
				c.Mounts = append(c.Mounts, sandbox.Mount{Volume: "v", Source: dir + "/volume", Destination: "/var/run/secrets"})
				s, _ := run(t, c)
				if want := []string{"value", "value"}; !slices.Equal(s.Results, want) {
					t.Errorf("results %q, want %q", s.Results, want)
				}
				if after := snapshot(t, dir+"/root"); !slices.Equal(before, after) {
					t.Errorf("the root was\n%q and is now\n%q", before, after)
				}
			})
		}
		dir := t.TempDir()
		symlink(t, "b", dir+"/root/a")
		symlink(t, "a", dir+"/root/b")
		c := inRoot(t, program(t), dir+"/root")
		c.Mounts = append(c.Mounts, sandbox.Mount{Volume: "v", Source: dir, Destination: "/a/b"})
		if e := fails(t, c); !errors.Is(e, sandbox.ErrLink) || e.Volume != "v" || e.Destination != "/a/b" {
			t.Errorf("links in a circle: %v", e)
		}
	})
}

// What ".." means behind a link is where the link leads, not the name before it.
func TestALinkThatLeadsUpBehindAnother(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		dir := t.TempDir()
		write(t, dir+"/volume/key", "value")
		mkdir(t, dir+"/root/deep/dir")
		symlink(t, "/deep/dir", dir+"/root/l")
		symlink(t, "l/../x", dir+"/root/dst")
		symlink(t, "/none/../x", dir+"/root/nowhere")
		c := inRoot(t, program(t, "read:/dst/key", "read:/deep/x/key", "read:/dst/a/key", "list:/deep"), dir+"/root")
		volume := sandbox.Mount{Volume: "v", Source: dir + "/volume", Destination: "/dst"}
		c.Mounts = append(c.Mounts, volume)
		s, _ := run(t, c)
		if want := []string{"value", "value", "ENOENT", "dir x"}; !slices.Equal(s.Results, want) {
			t.Errorf("results %q, want %q", s.Results, want)
		}
		volume.Destination = "/nowhere"
		c.Mounts[len(c.Mounts)-1] = volume
		if e := fails(t, c); !errors.Is(e, sandbox.ErrLink) || e.Destination != "/nowhere" {
			t.Errorf("a link that no file made can lead anywhere: %v", e)
		}
	})
}

// CVE-2019-19921: /proc of the image is a link (into a volume), so that the
// runtime's own mounts land elsewhere.
func TestCVE201919921(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		for _, own := range []string{"/proc", "/sys", "/dev"} {
			t.Run(own[1:], func(t *testing.T) {
				dir := t.TempDir()
				mkdir(t, dir+"/root/evil")
				symlink(t, "evil", dir+"/root"+own)
				e := fails(t, inRoot(t, program(t), dir+"/root"))
				if !errors.Is(e, sandbox.ErrLink) || e.Destination != own {
					t.Errorf("%v", e)
				}
			})
		}
	})
}

// CVE-2021-30465: a directory on the way to a destination is exchanged for a
// link out of the root while the mounts are made.
func TestCVE202130465(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		dir := t.TempDir()
		root, victim := dir+"/root", dir+"/victim"
		write(t, victim+"/d/file", "of the host")
		write(t, dir+"/volume/key", "value")
		mkdir(t, root+"/a/d")
		symlink(t, victim, root+"/b")
		before := snapshot(t, victim)

		swapping, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			for swapping.Err() == nil {
				_ = unix.Renameat2(unix.AT_FDCWD, root+"/a", unix.AT_FDCWD, root+"/b", unix.RENAME_EXCHANGE)
			}
		}()
		c := inRoot(t, program(t, "list:/v"), root)
		c.Mounts = append(c.Mounts,
			sandbox.Mount{Source: dir + "/volume", Destination: "/a/d"},
			sandbox.Mount{Source: victim + "/d", Destination: "/v"},
		)
		rounds := 15
		if testtool.Shortened() {
			rounds = 5
		}
		for range rounds {
			var out lines
			c.Stdout = &out
			_, err := sandbox.Run(t.Context(), c)
			if e, ok := errors.AsType[*sandbox.Error](err); err != nil && !ok {
				t.Error(err)
			} else if ok && !errors.Is(e, sandbox.ErrLink) && !errors.Is(e, unix.EEXIST) {
				t.Error(e)
			}
			// What the host's directory shows is never the volume.
			if err == nil && !slices.Contains(out.results(t), "file") {
				t.Errorf("the program sees %q in the host's directory", out.results(t))
			}
		}
		stop()
		<-ended
		if after := snapshot(t, victim); !slices.Equal(before, after) {
			t.Errorf("the victim was\n%q and is now\n%q", before, after)
		}
	})
}
