package host_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/host"
	"github.com/podvol/podvol/util/testenv/mounttest"
	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/util/testenv/testtool"
)

// spy is the script of a command or helper that writes down, below dir, its
// arguments, its environment and what it gets by descriptor.
func spy(dir string) string {
	return `cd ` + dir + ` || exit 1
tr '\0' '\n' </proc/$$/cmdline >cmdline
tr '\0' '\n' </proc/$$/environ >environ
[ -z "$PASSWD_FD" ] || cat <&$PASSWD_FD >descriptor
file=$(sed -n 's/.*secretfile=\([^,]*\).*/\1/p' cmdline)
[ -z "$file" ] || cat "$file" >file
`
}

// spied returns what a spy wrote down; nothing if it wrote nothing.
func spied(t *testing.T, dir, name string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return string(content)
}

func TestSecretsStayOffTheArgumentList(t *testing.T) {
	long := strings.Repeat("x", 5000)
	tests := map[string]struct {
		fstype    string
		sensitive []string
		helpers   []string
		// descriptor and file are what gets there; args and env must be in the
		// argument list and the environment.
		descriptor, file string
		args, env        []string
		shown            []string // secrets that are in the argument list
	}{
		"a password for CIFS":      {fstype: "cifs", sensitive: []string{"password=hunter2"}, descriptor: "hunter2", env: []string{"PASSWD_FD=3"}},
		"by its short name":        {fstype: "smb3", sensitive: []string{"pass=hunter2"}, descriptor: "hunter2"},
		"with a user, in one list": {fstype: "cifs", sensitive: []string{"username=bob,password=hunter2,domain=x"}, descriptor: "hunter2", env: []string{"USER=bob"}, args: []string{"domain=x"}},
		"an equals sign in it":     {fstype: "cifs", sensitive: []string{"password=hunter2=="}, descriptor: "hunter2=="},
		"a percent sign in a user": {fstype: "cifs", sensitive: []string{"user=bob%hunter2"}, shown: []string{"bob%hunter2"}},
		"too long for a pipe":      {fstype: "cifs", sensitive: []string{"password=" + long}, shown: []string{long}},
		"of two the last":          {fstype: "cifs", sensitive: []string{"password=first", "password=hunter2"}, descriptor: "hunter2"},
		"a key for Ceph":           {fstype: "ceph", sensitive: []string{"secret=QUJD=="}, file: "QUJD==", args: []string{"secretfile=/proc/self/fd/3"}},
		"without its helper":       {fstype: "cifs", sensitive: []string{"password=hunter2"}, helpers: []string{"nfs"}, shown: []string{"password=hunter2"}},
		"other types":              {fstype: "fuse.sshfs", sensitive: []string{"password_stdin=hunter2"}, shown: []string{"password_stdin=hunter2"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			seen, target := t.TempDir(), t.TempDir()
			helpers := tc.helpers
			if helpers == nil {
				helpers = []string{"cifs", "smb3", "ceph", "fuse"}
			}
			m := host.New(node(t, fakeCommand(t, spy(seen)), helpers, nil))
			request := mount.Request{Source: "//srv/share", Target: target, FSType: tc.fstype, Options: []string{"ro"}, Sensitive: tc.sensitive}
			if err := m.MountContext(t.Context(), request); err != nil {
				t.Fatal(err)
			}
			args, env := spied(t, seen, "cmdline"), spied(t, seen, "environ")
			if got := spied(t, seen, "descriptor"); got != tc.descriptor {
				t.Errorf("by descriptor %q, want %q", got, tc.descriptor)
			}
			if got := spied(t, seen, "file"); got != tc.file {
				t.Errorf("as a file %q, want %q", got, tc.file)
			}
			for _, want := range append(tc.args, tc.shown...) {
				if !strings.Contains(args, want) {
					t.Errorf("%q is missing in the arguments:\n%s", want, args)
				}
			}
			for _, want := range tc.env {
				if !strings.Contains("\n"+env, "\n"+want+"\n") {
					t.Errorf("%q is missing in the environment:\n%s", want, env)
				}
			}
			for _, secret := range []string{"hunter2", "bob", "first", "QUJD"} {
				if len(tc.shown) == 0 && strings.Contains(args, secret) {
					t.Errorf("%q is in the arguments:\n%s", secret, args)
				}
				if secret != "bob" && strings.Contains(env, secret) {
					t.Errorf("%q is in the environment", secret)
				}
			}
			if len(tc.shown) == 0 && !strings.Contains(args, "ro") {
				t.Errorf("the other options are missing:\n%s", args)
			}
		})
	}
}

// TestMountCommandHandsSecretsOn runs this system's mount(8), which must let
// its helper inherit the descriptor.
func TestMountCommandHandsSecretsOn(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		testtool.Need(t, "mount")
		seen, target, scratch := t.TempDir(), t.TempDir(), t.TempDir()
		mounttest.Mount(t, mounttest.Tmpfs(scratch))
		upper, work := testtool.MkdirAll(t, scratch, "upper"), testtool.MkdirAll(t, scratch, "work")
		testtool.WriteFile(t, "#!/bin/sh\n"+spy(seen), upper, "mount.cifs")
		if err := os.Chmod(filepath.Join(upper, "mount.cifs"), 0o755); err != nil {
			t.Fatal(err)
		}
		sbin, err := filepath.EvalSymlinks("/sbin")
		if err != nil {
			t.Fatal(err)
		}
		if err := unix.Mount("overlay", sbin, "overlay", 0, "userxattr,lowerdir="+sbin+",upperdir="+upper+",workdir="+work); err != nil {
			t.Fatal(err)
		}
		defer unix.Unmount(sbin, unix.MNT_DETACH)
		m := host.New(host.Config{})
		err = m.MountContext(t.Context(), mount.Request{Source: "//srv/share", Target: target, FSType: "cifs", Sensitive: []string{"username=bob", "password=hunter2"}})
		if err != nil {
			t.Fatal(err)
		}
		if got := spied(t, seen, "descriptor"); got != "hunter2" {
			t.Errorf("the helper got %q", got)
		}
		if env := spied(t, seen, "environ"); !strings.Contains(env, "USER=bob\n") {
			t.Errorf("the helper's environment:\n%s", env)
		}
		if args := spied(t, seen, "cmdline"); strings.Contains(args, "hunter2") || !strings.Contains(args, "//srv/share") {
			t.Errorf("the helper's arguments:\n%s", args)
		}
	})
}
