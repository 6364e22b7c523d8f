package host_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/host"
	"github.com/podvol/podvol/util/testenv/mounttest"
	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/util/testenv/testtool"
)

// shownOptions is what /proc/self/mountinfo shows of one mount: the options of
// the mount, a bar, and those of its file system that are not tmpfs's own.
func shownOptions(t *testing.T, target string) string {
	t.Helper()
	e, ok := mounttest.EntryAt(t, target)
	if !ok {
		t.Fatalf("nothing is mounted on %s", target)
	}
	ofSuper := slices.DeleteFunc(slices.Clone(e.SuperOptions), func(o string) bool {
		name, _, _ := strings.Cut(o, "=")
		return slices.Contains([]string{"size", "inode64", "uid", "gid", "mode", "nr_inodes"}, name)
	})
	propagation := ""
	for _, p := range e.Propagation {
		word, _, _ := strings.Cut(p, ":")
		propagation += " " + word
	}
	return strings.Join(e.Options, ",") + " | " + strings.Join(ofSuper, ",") + propagation
}

// optionCases are mount(8)'s file-system-independent options and what
// mountinfo shows for a new tmpfs and for a bind of a plain one ("" is refused).
var optionCases = []struct {
	options, tmpfs, bind string
	// alone: the mount(8) of this system does otherwise, or does not know it.
	alone bool
	// boundAlone: so it does for a bind.
	boundAlone bool
}{
	{options: "defaults", tmpfs: "rw,relatime | rw", bind: "rw,relatime | rw"},
	{options: "ro", tmpfs: "ro,relatime | ro", bind: "ro,relatime | rw"},
	{options: "rw", tmpfs: "rw,relatime | rw", bind: "rw,relatime | rw"},
	{options: "ro,rw", tmpfs: "rw,relatime | rw", bind: "rw,relatime | rw"},
	{options: "rw,ro", tmpfs: "ro,relatime | ro", bind: "ro,relatime | rw"},
	{options: "nosuid", tmpfs: "rw,nosuid,relatime | rw", bind: "rw,nosuid,relatime | rw"},
	{options: "suid", tmpfs: "rw,relatime | rw", bind: "rw,relatime | rw"},
	{options: "nosuid,suid", tmpfs: "rw,relatime | rw", bind: "rw,relatime | rw"},
	{options: "nodev", tmpfs: "rw,nodev,relatime | rw", bind: "rw,nodev,relatime | rw"},
	{options: "nodev,dev", tmpfs: "rw,relatime | rw", bind: "rw,relatime | rw"},
	{options: "noexec", tmpfs: "rw,noexec,relatime | rw", bind: "rw,noexec,relatime | rw"},
	{options: "exec,noexec", tmpfs: "rw,noexec,relatime | rw", bind: "rw,noexec,relatime | rw"},
	{options: "nosymfollow", tmpfs: "rw,relatime,nosymfollow | rw", bind: "rw,relatime,nosymfollow | rw"},
	{options: "nosymfollow,symfollow", tmpfs: "rw,relatime | rw", bind: "rw,relatime | rw"},
	{options: "ro,nosuid,nodev,noexec,noatime", tmpfs: "ro,nosuid,nodev,noexec,noatime | ro", bind: "ro,nosuid,nodev,noexec,noatime | rw"},
	{options: "noatime", tmpfs: "rw,noatime | rw", bind: "rw,noatime | rw"},
	{options: "atime", tmpfs: "rw,relatime | rw", bind: "rw,relatime | rw"},
	{options: "noatime,atime", tmpfs: "rw,relatime | rw", bind: "rw,relatime | rw"},
	{options: "relatime", tmpfs: "rw,relatime | rw", bind: "rw,relatime | rw"},
	{options: "norelatime", tmpfs: "rw,relatime | rw", bind: "rw,relatime | rw"},
	{options: "strictatime", tmpfs: "rw | rw", bind: "rw | rw", boundAlone: true}, // mount(8) 2.38 loses it
	{options: "strictatime,nostrictatime", tmpfs: "rw,relatime | rw", bind: "rw,relatime | rw"},
	{options: "noatime,strictatime", tmpfs: "rw | rw", bind: "rw | rw", boundAlone: true},
	{options: "strictatime,noatime", tmpfs: "rw,noatime | rw", bind: "rw,noatime | rw", alone: true}, // kernels take strictatime where mount(2) is told both
	{options: "relatime,noatime", tmpfs: "rw,noatime | rw", bind: "rw,noatime | rw"},
	{options: "strictatime,relatime", tmpfs: "rw,relatime | rw", bind: "rw,relatime | rw", alone: true},
	{options: "nodiratime", tmpfs: "rw,nodiratime,relatime | rw", bind: "rw,nodiratime,relatime | rw"},
	{options: "noatime,nodiratime", tmpfs: "rw,noatime,nodiratime | rw", bind: "rw,noatime,nodiratime | rw"},
	{options: "nodiratime,diratime", tmpfs: "rw,relatime | rw", bind: "rw,relatime | rw"},
	{options: "sync", tmpfs: "rw,relatime | rw,sync"},
	{options: "async", tmpfs: "rw,relatime | rw", bind: "rw,relatime | rw"},
	{options: "sync,async", tmpfs: "rw,relatime | rw", bind: "rw,relatime | rw"},
	{options: "dirsync", tmpfs: "rw,relatime | rw,dirsync"},
	{options: "lazytime", tmpfs: "rw,relatime | rw,lazytime"},
	{options: "lazytime,nolazytime", tmpfs: "rw,relatime | rw", bind: "rw,relatime | rw"},
	{options: "mand,nomand", tmpfs: "rw,relatime | rw", bind: "rw,relatime | rw"},
	{options: "iversion", tmpfs: "rw,relatime | rw"},
	{options: "noiversion", tmpfs: "rw,relatime | rw", bind: "rw,relatime | rw"},
	{options: "silent", tmpfs: "rw,relatime | rw", bind: "rw,relatime | rw"},
	{options: "loud", tmpfs: "rw,relatime | rw", bind: "rw,relatime | rw"},
	{options: "auto,noauto,nouser,nofail,_netdev", tmpfs: "rw,relatime | rw", bind: "rw,relatime | rw"},
	{options: "x-systemd.automount,comment=x,x-anything=1", tmpfs: "rw,relatime | rw", bind: "rw,relatime | rw"},
	{options: "shared", tmpfs: "rw,relatime | rw shared", bind: "rw,relatime | rw shared"},
	{options: "rshared,nosuid", tmpfs: "rw,nosuid,relatime | rw shared", bind: "rw,nosuid,relatime | rw shared"},
	{options: "shared,private", tmpfs: "rw,relatime | rw", bind: "rw,relatime | rw", alone: true}, // mount(8) joins the flags and is refused
	{options: "private", tmpfs: "rw,relatime | rw", bind: "rw,relatime | rw"},
	{options: "rprivate", tmpfs: "rw,relatime | rw", bind: "rw,relatime | rw"},
	{options: "slave", tmpfs: "rw,relatime | rw", bind: "rw,relatime | rw"},
	{options: "unbindable", tmpfs: "rw,relatime | rw unbindable", bind: "rw,relatime | rw unbindable"},
	{options: "runbindable", tmpfs: "rw,relatime | rw unbindable", bind: "rw,relatime | rw unbindable"},
	{options: "ro=recursive", tmpfs: "ro,relatime | ro", bind: "ro,relatime | rw", alone: true},
	{options: "ro=vfs", tmpfs: "ro,relatime | rw", bind: "ro,relatime | rw", alone: true},
	{options: "ro=fs", tmpfs: "rw,relatime | ro", alone: true},
	{options: "ro=vfs,rw", tmpfs: "rw,relatime | rw", bind: "rw,relatime | rw", alone: true},
	{options: "nosuid=recursive,noexec=vfs", tmpfs: "rw,nosuid,noexec,relatime | rw", bind: "rw,nosuid,noexec,relatime | rw", alone: true},
	{options: "noatime=recursive", tmpfs: "rw,noatime | rw", bind: "rw,noatime | rw", alone: true},
	{options: "ro=nonsense", alone: true},
}

// TestGenericOptions checks every word against what the kernel then shows, and
// against what mount(8) makes of it where that mounts as root.
func TestGenericOptions(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		plain := t.TempDir()
		mounttest.Mount(t, mounttest.Tmpfs(plain, "size=64k"))
		var compared []mount.Request
		for _, tc := range optionCases {
			for _, kind := range []struct {
				name, want string
				request    mount.Request
			}{
				{"tmpfs", tc.tmpfs, mount.Request{Source: "tmpfs", FSType: "tmpfs", Options: []string{"size=64k", tc.options}}},
				{"bind", tc.bind, mount.Request{Source: plain, Options: []string{"bind", tc.options}}},
			} {
				kind.request.Target = t.TempDir()
				err := host.New(host.Config{Via: host.ViaSystemCalls}).MountContext(t.Context(), kind.request)
				if kind.want == "" {
					if err == nil {
						t.Errorf("%s %s is not refused", kind.name, tc.options)
					}
					continue
				}
				if err != nil {
					t.Errorf("%s %s: %v", kind.name, tc.options, err)
					continue
				}
				if diff := cmp.Diff(kind.want, shownOptions(t, kind.request.Target)); diff != "" {
					t.Errorf("%s %s (-want +shown):\n%s", kind.name, tc.options, diff)
				}
				if !tc.alone && !(tc.boundAlone && kind.name == "bind") && !inUserNamespace(t) {
					compared = append(compared, kind.request)
				}
			}
		}
		if inUserNamespace(t) {
			return
		}
		t.Run("as the command", func(t *testing.T) {
			testtool.Need(t, "mount")
			for _, r := range compared {
				compareWithCommand(t, r)
			}
		})
	})
}

// compareWithCommand mounts by mount(8) what is mounted already, and compares.
func compareWithCommand(t *testing.T, r mount.Request) {
	t.Helper()
	name := r.FSType + " " + strings.Join(r.Options, ",")
	ours := shownOptions(t, r.Target)
	r.Target = t.TempDir()
	if err := host.New(host.Config{Via: host.ViaCommand}).MountContext(t.Context(), r); err != nil {
		t.Errorf("%s by mount(8): %v", name, err)
		return
	}
	t.Cleanup(func() { _ = unix.Unmount(r.Target, unix.MNT_DETACH) })
	if diff := cmp.Diff(shownOptions(t, r.Target), ours); diff != "" {
		t.Errorf("%s (-mount(8) +system calls):\n%s", name, diff)
	}
}

// TestRemountKeepsWhatIsNotMentioned goes through remounts one after the other.
func TestRemountKeepsWhatIsNotMentioned(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		dir := t.TempDir()
		mounttest.Mount(t, mounttest.Tmpfs(dir, "size=64k", "nosuid", "noatime", "sync"))
		other := t.TempDir()
		mounttest.Mount(t, bindOn(dir, other))
		m := host.New(host.Config{Via: host.ViaSystemCalls})
		for _, step := range []struct{ options, want, bound string }{
			{"remount,ro", "ro,nosuid,noatime | ro,sync", "rw,nosuid,noatime | ro,sync"},
			{"remount,rw,noexec", "rw,nosuid,noexec,noatime | rw,sync", "rw,nosuid,noatime | rw,sync"},
			{"remount,bind,ro", "ro,nosuid,noexec,noatime | rw,sync", "rw,nosuid,noatime | rw,sync"},
			{"remount,async,lazytime", "ro,nosuid,noexec,noatime | rw,lazytime", "rw,nosuid,noatime | rw,lazytime"},
			{"remount,suid,relatime,rw=vfs", "rw,noexec,relatime | rw,lazytime", "rw,nosuid,noatime | rw,lazytime"},
			{"remount,ro=fs", "rw,noexec,relatime | ro,lazytime", "rw,nosuid,noatime | ro,lazytime"},
			{"remount,rw,atime,nodiratime", "rw,noexec,nodiratime,relatime | rw,lazytime", "rw,nosuid,noatime | rw,lazytime"},
			{"remount,strictatime", "rw,noexec,nodiratime | rw,lazytime", "rw,nosuid,noatime | rw,lazytime"},
			{"remount,norelatime", "rw,noexec,nodiratime | rw,lazytime", "rw,nosuid,noatime | rw,lazytime"},
			{"remount,shared", "rw,noexec,nodiratime | rw,lazytime shared", "rw,nosuid,noatime | rw,lazytime"},
			{"remount,size=128k", "rw,noexec,nodiratime | rw,lazytime shared", "rw,nosuid,noatime | rw,lazytime"},
		} {
			if err := m.Mount("", dir, "", []string{step.options}); err != nil {
				t.Errorf("%s: %v", step.options, err)
			}
			if got := shownOptions(t, dir); got != step.want {
				t.Errorf("%s: %s, want %s", step.options, got, step.want)
			}
			if got := shownOptions(t, other); got != step.bound {
				t.Errorf("%s: the bind mount has %s, want %s", step.options, got, step.bound)
			}
		}
		if e, _ := mounttest.EntryAt(t, dir); !slices.Contains(e.SuperOptions, "size=128k") {
			t.Errorf("the size is not changed: %v", e.SuperOptions)
		}
	})
}

// A remount that the file system refuses changes nothing of the mount either.
func TestRefusedRemountChangesNothing(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		dir := t.TempDir()
		mounttest.Mount(t, mounttest.Tmpfs(dir, "size=64k", "nosuid", "noatime"))
		other := t.TempDir()
		mounttest.Mount(t, bindOn(dir, other))
		open, err := os.Create(filepath.Join(other, "written"))
		if err != nil {
			t.Fatal(err)
		}
		defer open.Close()
		before := shownOptions(t, dir)
		m := host.New(host.Config{Via: host.ViaSystemCalls})
		for _, options := range []string{"remount,ro,noexec,strictatime", "remount,noexec,sise=3", "remount,noexec,size=nonsense"} {
			if err := m.Mount("", dir, "", []string{options}); err == nil {
				t.Errorf("%s is not refused", options)
			}
			if after := shownOptions(t, dir); after != before {
				t.Errorf("%s: %s has become %s", options, before, after)
			}
		}
	})
}

// Every propagation word, on a mount that is shared, against mount(8).
func TestPropagationWords(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		testtool.Need(t, "mount")
		for _, word := range []string{"shared", "slave", "private", "unbindable", "rshared", "rslave", "rprivate", "runbindable"} {
			var shown []string
			for _, ours := range []bool{true, false} {
				top := t.TempDir()
				mounttest.Mount(t, mounttest.Tmpfs(top, "size=64k", "shared"))
				below := testtool.MkdirAll(t, top, "below")
				mounttest.Mount(t, mounttest.Tmpfs(below, "size=64k"))
				peer := t.TempDir()
				mounttest.Mount(t, mount.Request{Source: top, Target: peer, Options: []string{"rbind"}})
				if ours {
					if err := host.New(host.Config{Via: host.ViaSystemCalls}).Mount("", top, "", []string{word}); err != nil {
						t.Errorf("%s: %v", word, err)
					}
				} else if out, err := exec.CommandContext(t.Context(), "mount", "--make-"+word, top).CombinedOutput(); err != nil {
					t.Fatalf("mount --make-%s: %v: %s", word, err, out)
				}
				shown = append(shown, shownOptions(t, top)+"; "+shownOptions(t, below)+"; "+shownOptions(t, peer))
				for _, dir := range []string{top, peer} {
					if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
						t.Error(err)
					}
				}
			}
			if shown[0] != shown[1] {
				t.Errorf("%s: %s, with mount(8) %s", word, shown[0], shown[1])
			}
		}
	})
}

// What is asked for recursively holds for all mounts below, and nothing else
// does.
func TestRecursiveOptions(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		top := t.TempDir()
		mounttest.Mount(t, mounttest.Tmpfs(top, "size=64k"))
		mounttest.Mount(t, mounttest.Tmpfs(testtool.MkdirAll(t, top, "x"), "size=64k", "nodev"))
		mounttest.Mount(t, mounttest.Tmpfs(testtool.MkdirAll(t, top, "x", "y"), "size=64k", "noatime"))
		m := host.New(host.Config{Via: host.ViaSystemCalls})
		for _, tc := range []struct{ options, top, x, y string }{
			{"rbind,ro", "ro,relatime | rw", "rw,nodev,relatime | rw", "rw,noatime | rw"},
			{"rbind,ro=recursive", "ro,relatime | rw", "ro,nodev,relatime | rw", "ro,noatime | rw"},
			{"rbind,ro=recursive,rw", "rw,relatime | rw", "rw,nodev,relatime | rw", "rw,noatime | rw"},
			{"rbind,ro=recursive,noexec=recursive,nosuid", "ro,nosuid,noexec,relatime | rw", "ro,nodev,noexec,relatime | rw", "ro,noexec,noatime | rw"},
			{"rbind,strictatime=recursive,dev=recursive", "rw | rw", "rw | rw", "rw | rw"},
			{"rbind,noatime=recursive,relatime", "rw,relatime | rw", "rw,nodev,relatime | rw", "rw,noatime | rw"},
		} {
			target := t.TempDir()
			if err := m.Mount(top, target, "", []string{tc.options}); err != nil {
				// In a user namespace nodev of what it mounted itself is not locked.
				t.Errorf("%s: %v", tc.options, err)
				continue
			}
			for path, want := range map[string]string{"": tc.top, "x": tc.x, "x/y": tc.y} {
				if got := shownOptions(t, filepath.Join(target, path)); got != want {
					t.Errorf("%s: %q shows %s, want %s", tc.options, path, got, want)
				}
			}
			if tc.options != "rbind,ro=recursive" {
				continue
			}
			if err := os.WriteFile(filepath.Join(target, "x/y/file"), nil, 0o600); err == nil {
				t.Error("a mount below a recursively read-only one can be written")
			}
			if err := m.Mount("", target, "", []string{"remount,bind,rw=recursive"}); err != nil {
				t.Error(err)
			}
			if err := os.WriteFile(filepath.Join(target, "x/y/file"), nil, 0o600); err != nil {
				t.Errorf("recursively writable again: %v", err)
			}
		}
		if err := unix.Unmount(top, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
}
