package host_test

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/host"
)

// fakeSystemd puts a systemd-run first in PATH that writes its arguments down
// and then runs the command, and returns a configuration of a node with it.
func fakeSystemd(t *testing.T, config host.Config, installed bool) (_ host.Config, arguments func() string) {
	t.Helper()
	bin, log := t.TempDir(), filepath.Join(t.TempDir(), "log")
	path := bin
	for _, tool := range []string{"sh", "cat", "tr", "sed"} {
		if err := os.Symlink("/bin/"+tool, filepath.Join(bin, tool)); err != nil {
			t.Fatal(err)
		}
	}
	if installed {
		script := "#!/bin/sh\nfor a; do echo \"$a\"; done >>" + log + "\nwhile [ \"$1\" != -- ]; do shift; done\nshift\nexec \"$@\"\n"
		if err := os.WriteFile(filepath.Join(bin, "systemd-run"), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", path)
	config.SystemdDir = t.TempDir()
	return config, func() string {
		content, err := os.ReadFile(log)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		return string(content)
	}
}

func TestScope(t *testing.T) {
	for name, tc := range map[string]struct {
		fstype                string
		helpers, filesystems  []string
		notBooted, uninvolved bool
		plainly               bool // by MountSensitiveWithoutSystemd
	}{
		"a FUSE daemon":                         {fstype: "fuse.sshfs"},
		"glusterfs":                             {fstype: "glusterfs", helpers: []string{"glusterfs"}},
		"a helper for what the kernel has not":  {fstype: "ntfs", helpers: []string{"ntfs"}},
		"a helper for what the kernel has":      {fstype: "nilfs2", helpers: []string{"nilfs2"}, filesystems: []string{"nilfs2"}, uninvolved: true},
		"NFS":                                   {fstype: "nfs", uninvolved: true},
		"CIFS":                                  {fstype: "cifs", uninvolved: true},
		"a host that systemd does not run":      {fstype: "fuse.sshfs", notBooted: true, uninvolved: true},
		"a mount that wants nothing of systemd": {fstype: "fuse.sshfs", plainly: true, uninvolved: true},
	} {
		t.Run(name, func(t *testing.T) {
			seen, target := t.TempDir(), t.TempDir()
			command := fakeCommand(t, spy(seen))
			config, arguments := fakeSystemd(t, node(t, command, append(tc.helpers, "fuse"), tc.filesystems), true)
			if tc.notBooted {
				config.SystemdDir += "/missing"
			}
			m := host.New(config)
			var err error
			if tc.plainly {
				err = m.MountSensitiveWithoutSystemd("src", target, tc.fstype, []string{"ro"}, nil)
			} else {
				err = m.MountSensitive("src", target, tc.fstype, []string{"ro"}, nil)
			}
			if err != nil {
				t.Fatal(err)
			}
			want := strings.Join([]string{"--description=Kubernetes transient mount for " + target, "--scope", "--", command, "-t", tc.fstype, "-o", "ro", "src", target, ""}, "\n")
			if tc.uninvolved {
				want = ""
			}
			if diff := cmp.Diff(want, arguments()); diff != "" {
				t.Errorf("systemd-run (-want +got):\n%s", diff)
			}
			if ran := spied(t, seen, "cmdline"); !strings.Contains(ran, target) {
				t.Errorf("the command did not run: %q", ran)
			}
		})
	}
}

func TestScopeWithoutSystemdRun(t *testing.T) {
	seen, target := t.TempDir(), t.TempDir()
	config, _ := fakeSystemd(t, node(t, fakeCommand(t, spy(seen)), []string{"fuse"}, nil), false)
	var log bytes.Buffer
	config.Logger = slog.New(slog.NewTextHandler(&log, nil))
	err := host.New(config).MountContext(t.Context(), mount.Request{Source: "src", Target: target, FSType: "fuse.sshfs", Sensitive: []string{"key=hunter2"}})
	if err != nil {
		t.Fatal(err)
	}
	if ran := spied(t, seen, "cmdline"); !strings.Contains(ran, target) {
		t.Errorf("the command did not run: %q", ran)
	}
	if text := log.String(); !strings.Contains(text, "without a systemd scope") || !strings.Contains(text, target) || strings.Contains(text, "hunter2") {
		t.Errorf("log: %s", text)
	}
}

func TestScopeInTheErrorsCommand(t *testing.T) {
	target := t.TempDir()
	command := fakeCommand(t, "echo broken; exit 1\n")
	config, _ := fakeSystemd(t, node(t, command, []string{"fuse"}, nil), true)
	err := host.New(config).MountContext(t.Context(), mount.Request{Source: "src", Target: target, FSType: "fuse.sshfs", Sensitive: []string{"key=hunter2"}})
	want := "Mounting command: systemd-run\nMounting arguments: --description=Kubernetes transient mount for " + target + " --scope -- " + command + " -t fuse.sshfs -o <masked> src " + target + "\nOutput: broken"
	if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("err = %v\nwant %s", err, want)
	}
}
