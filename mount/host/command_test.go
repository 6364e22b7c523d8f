package host_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/host"
	"github.com/podvol/podvol/util/testenv/mounttest"
	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/util/testenv/testtool"
)

// fakeCommand writes a program that takes the place of mount(8).
func fakeCommand(t *testing.T, script string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "mount")
	// A process that another test forks meanwhile would have it open for
	// writing until its exec, and the kernel then refuses to run it.
	syscall.ForkLock.RLock()
	err := os.WriteFile(path, []byte("#!/bin/sh\n"+script), 0o755)
	syscall.ForkLock.RUnlock()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// node is a Config of a node with just these helpers and file systems.
func node(t *testing.T, command string, helpers, filesystems []string) host.Config {
	t.Helper()
	dir := t.TempDir()
	for _, name := range helpers {
		if err := os.WriteFile(filepath.Join(dir, "mount."+name), nil, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	list := filepath.Join(dir, "filesystems")
	if err := os.WriteFile(list, []byte("nodev\ttmpfs\n\text4\nnodev\t"+strings.Join(filesystems, "\nnodev\t")+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	return host.Config{Via: host.ViaCommand, MountCommand: command, HelperDirs: []string{dir}, FilesystemsFile: list, ModulesDir: dir, OSReleaseFile: dir + "/os-release"}
}

func TestCommandIsHandedTheRequest(t *testing.T) {
	dir := t.TempDir()
	seen := filepath.Join(dir, "seen")
	m := host.New(host.Config{Via: host.ViaCommand, MountCommand: fakeCommand(t, `printf '%s\n' "$LC_ALL" "$@" >`+seen+"\n")})
	request := mount.Request{Source: "10.20.172.211:/nfs", Target: dir, FSType: "nfs", Options: []string{"ro", "nfsvers=4.1"}, Sensitive: []string{"password=hunter2"}}
	if err := m.MountContext(t.Context(), request); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(seen)
	if err != nil {
		t.Fatal(err)
	}
	want := "C\n-t\nnfs\n-o\nro,nfsvers=4.1,password=hunter2\n10.20.172.211:/nfs\n" + dir + "\n"
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Error(diff)
	}
	if err := m.MountSensitiveWithoutSystemdWithMountFlags("s", dir, "tmpfs", []string{"size=1k"}, nil, []string{"--flag"}); err != nil {
		t.Fatal(err)
	}
	got, err = os.ReadFile(seen)
	if err != nil {
		t.Fatal(err)
	}
	if want := "C\n--flag\n-t\ntmpfs\n-o\nsize=1k\ns\n" + dir + "\n"; string(got) != want {
		t.Errorf("with mount flags: %q, want %q", got, want)
	}
}

func TestCommandsErrorKeepsEverythingButSecrets(t *testing.T) {
	dir := t.TempDir()
	command := fakeCommand(t, "echo \"mount error: option username=bob,password=hunter2 and again hunter2\"; exit 32\n")
	m := host.New(host.Config{MountCommand: command})
	err := m.MountContext(t.Context(), mount.Request{
		Source: "//srv/share", Target: dir, FSType: "cifs", Options: []string{"ro"}, Sensitive: []string{"username=bob,password=hunter2"},
	})
	e, ok := errors.AsType[*mount.Error](err)
	if !ok {
		t.Fatalf("err = %v", err)
	}
	text := err.Error()
	if strings.Contains(text, "hunter2") || strings.Contains(text, "bob") {
		t.Errorf("a secret shows:\n%s", text)
	}
	for _, want := range []string{
		"Mounting command: " + command + "\n", "Mounting arguments: -t cifs -o ro,<masked> //srv/share " + dir + "\n", "Output: mount error: option",
		"exit status 32",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is missing in:\n%s", want, text)
		}
	}
	if e.Uncertain {
		t.Error("exit status 32 says that nothing was mounted")
	}
	if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != 32 {
		t.Errorf("the exit status is lost: %#v", e.Err)
	}
}

func TestHungCommandIsKilledWithItsGroup(t *testing.T) {
	dir := t.TempDir()
	fifo := filepath.Join(dir, "alive")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	// The command and its child hold the pipe open as long as they live.
	command := fakeCommand(t, "exec 3>"+fifo+"; echo started >&3; sleep 1000 & sleep 1000\n")
	alive, err := os.OpenFile(fifo, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	reader, err := os.Open(fifo)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	ctx, cancel := context.WithCancelCause(t.Context())
	errGone := errors.New("the pod is gone")
	m := host.Patiently(host.New(host.Config{Via: host.ViaCommand, MountCommand: command}))
	failed := make(chan error, 1)
	go func() {
		failed <- m.MountContext(ctx, mount.Request{Source: "10.0.0.1:/e", Target: dir, FSType: "nfs"})
	}()
	started := make([]byte, len("started\n"))
	if _, err := io.ReadFull(reader, started); err != nil {
		t.Fatal(err)
	}
	alive.Close()
	canceled := time.Now()
	cancel(errGone)
	err = <-failed
	if took := time.Since(canceled); took > 30*time.Second {
		t.Errorf("returned %v after its context ended", took)
	}
	e, ok := errors.AsType[*mount.Error](err)
	if !ok || e.Uncertain || !errors.Is(err, mount.ErrCanceled) || !errors.Is(err, errGone) || e.Command == "" {
		t.Errorf("err = %#v", err)
	}
	if rest, err := io.ReadAll(reader); err != nil || len(rest) != 0 { // ends when both are dead
		t.Errorf("read %q, %v", rest, err)
	}
}

// TestKilledCommand: what cannot be seen to have ended may yet mount.
func TestKilledCommand(t *testing.T) {
	for name, tc := range map[string]struct {
		fstype, script string
		options        []string
		uncertain      bool
	}{
		"all of it has ended":              {fstype: "nfs", script: "sleep 1000 & echo started; sleep 1000"},
		"a child has left the group":       {fstype: "nfs", script: "setsid sh -c 'echo started; read end <lives' & sleep 1000", uncertain: true},
		"it may go on in the background":   {fstype: "nfs", options: []string{"bg"}, script: "echo started; sleep 1000", uncertain: true},
		"a daemon may have been left":      {fstype: "fuse.sshfs", script: "echo started; sleep 1000", uncertain: true},
		"of the exit statuses, interrupt":  {fstype: "nfs", script: "echo started; exit 8"},
		"a remount shows no new mount":     {fstype: "nfs", options: []string{"remount", "ro"}, script: "echo started; sleep 1000", uncertain: true},
		"nor does propagation":             {fstype: "nfs", options: []string{"rshared"}, script: "echo started; sleep 1000", uncertain: true},
		"a move shows it elsewhere":        {fstype: "nfs", options: []string{"move"}, script: "echo started; sleep 1000", uncertain: true},
		"with a child that may still work": {fstype: "nfs", script: "setsid sh -c 'read end <lives' & echo started; exit 8", uncertain: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			fifo, lives := filepath.Join(dir, "started"), filepath.Join(dir, "lives")
			if err := errors.Join(unix.Mkfifo(fifo, 0o600), unix.Mkfifo(lives, 0o600)); err != nil {
				t.Fatal(err)
			}
			living, err := os.OpenFile(lives, os.O_RDWR, 0) // what reads it lives until it is closed
			if err != nil {
				t.Fatal(err)
			}
			defer living.Close()
			script := strings.NewReplacer("echo started", "echo started >"+fifo, "<lives", "<"+lives).Replace(tc.script)
			command := fakeCommand(t, script+"\n")
			m := host.New(host.Config{Via: host.ViaCommand, MountCommand: command})
			if !tc.uncertain {
				m = host.Patiently(m)
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			failed := make(chan error, 1)
			go func() {
				failed <- m.MountContext(ctx, mount.Request{Source: "10.0.0.1:/e", Target: dir, FSType: tc.fstype, Options: tc.options})
			}()
			if _, err := os.ReadFile(fifo); err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(tc.script, "exit") {
				cancel()
			}
			err = <-failed
			if e, ok := errors.AsType[*mount.Error](err); !ok || e.Uncertain != tc.uncertain {
				t.Errorf("err = %v", err)
			}
		})
	}
}

func TestKilledCommandThatHasMounted(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		testtool.Need(t, "mount")
		dir := t.TempDir()
		fifo := filepath.Join(t.TempDir(), "started")
		if err := unix.Mkfifo(fifo, 0o600); err != nil {
			t.Fatal(err)
		}
		m := host.New(host.Config{Via: host.ViaCommand, MountCommand: fakeCommand(t, "mount -t tmpfs x "+dir+"; echo >"+fifo+"; sleep 1000\n")})
		ctx, cancel := context.WithCancel(t.Context())
		failed := make(chan error, 1)
		go func() {
			failed <- m.MountContext(ctx, mount.Request{Source: "10.0.0.1:/e", Target: dir, FSType: "nfs"})
		}()
		if _, err := os.ReadFile(fifo); err != nil {
			t.Fatal(err)
		}
		cancel()
		err := <-failed
		if e, ok := errors.AsType[*mount.Error](err); !ok || !e.Uncertain {
			t.Errorf("err = %v", err)
		}
	})
}

// A killed remount may have been made: it leaves no new mount to tell by.
func TestKilledCommandThatHasRemounted(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		testtool.Need(t, "mount")
		target, fifo := t.TempDir(), filepath.Join(t.TempDir(), "done")
		mounttest.Mount(t, mounttest.Tmpfs(target, "size=4k"))
		if err := unix.Mkfifo(fifo, 0o600); err != nil {
			t.Fatal(err)
		}
		m := host.New(host.Config{Via: host.ViaCommand, MountCommand: fakeCommand(t, "mount -o remount,bind,ro "+target+"; echo >"+fifo+"; sleep 1000\n")})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		failed := make(chan error, 1)
		go func() { failed <- m.MountContext(ctx, mounttest.Tmpfs(target, "remount", "bind", "ro")) }()
		if _, err := os.ReadFile(fifo); err != nil {
			t.Fatal(err)
		}
		cancel()
		err := <-failed
		if now, ok := mounttest.EntryAt(t, target); !ok || !now.ReadOnly() {
			t.Fatalf("it was not remounted: %+v", now)
		}
		if e, ok := errors.AsType[*mount.Error](err); !ok || !e.Uncertain {
			t.Errorf("err = %v", err)
		}
	})
}

// With flags of the caller's own, mount(8) may do anything.
func TestFailedCommandWithFlagsIsUncertain(t *testing.T) {
	m := host.New(host.Config{MountCommand: fakeCommand(t, "exit 8\n")})
	err := m.MountSensitiveWithoutSystemdWithMountFlags("x", t.TempDir(), "tmpfs", nil, nil, []string{"--move"})
	if e, ok := errors.AsType[*mount.Error](err); !ok || !e.Uncertain {
		t.Errorf("err = %v", err)
	}
}

// Mounts that end while mount(8) runs leave their ids to the one that it makes,
// which is new all the same.
func TestCommandWhoseMountGetsAnOldID(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		testtool.Need(t, "mount")
		top := t.TempDir()
		mounttest.Mount(t, mounttest.Tmpfs(top, "size=1m"))
		evil, target := testtool.MkdirAll(t, top, "evil", "volume"), testtool.MkdirAll(t, top, "good", "volume")
		link := filepath.Join(top, "link")
		for name, tc := range map[string]struct {
			script    string
			left      bool
			uncertain bool
			want      error
		}{
			"failed after it mounted": {script: "mount -t tmpfs x " + target + "; exit 64", left: true, uncertain: true},
			"led elsewhere":           {script: "ln -sfn " + filepath.Dir(evil) + " " + link + "; mount -t tmpfs x " + link + "/volume", want: mount.ErrTargetReplaced},
		} {
			if err := os.Symlink(filepath.Dir(target), link); err != nil {
				t.Fatal(err)
			}
			script := "umount"
			for i := range 20 {
				other := testtool.MkdirAll(t, top, fmt.Sprint("other-", i))
				mounttest.Mount(t, mounttest.Tmpfs(other, "size=4k"))
				script += " " + other
			}
			m := host.New(host.Config{Via: host.ViaCommand, MountCommand: fakeCommand(t, script+"\n"+tc.script+"\n")})
			err := m.MountContext(t.Context(), mounttest.Tmpfs(link+"/volume"))
			e, ok := errors.AsType[*mount.Error](err)
			if !ok || e.Uncertain != tc.uncertain || tc.want != nil && !errors.Is(err, tc.want) {
				t.Errorf("%s: err = %v", name, err)
			}
			if at, left := mountsBelow(t, top); len(left) > 0 != tc.left {
				t.Errorf("%s: left at %v", name, at)
			}
			if tc.left {
				if err := mounttest.Unmount(t, target); err != nil {
					t.Error(err)
				}
			}
			if err := os.Remove(link); err != nil {
				t.Fatal(err)
			}
		}
	})
}

func TestCommandLedElsewhere(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		testtool.Need(t, "mount")
		top := t.TempDir()
		good, evil := testtool.MkdirAll(t, top, "good", "volume"), testtool.MkdirAll(t, top, "evil", "volume")
		mounttest.Mount(t, mounttest.Tmpfs(evil)) // stays
		link := filepath.Join(top, "link")
		if err := os.Symlink(filepath.Dir(good), link); err != nil {
			t.Fatal(err)
		}
		target := link + "/volume"
		request := mount.Request{Source: "x", Target: target, FSType: "tmpfs"}

		straight := host.New(host.Config{Via: host.ViaCommand})
		if err := straight.MountContext(t.Context(), request); err != nil {
			t.Fatalf("through a link that stays: %v", err)
		}
		if _, ok := mounttest.EntryAt(t, good); !ok {
			t.Error("nothing is mounted")
		}
		if err := mounttest.Unmount(t, target); err != nil {
			t.Fatal(err)
		}

		swap := fakeCommand(t, "ln -sfn "+filepath.Dir(evil)+" "+link+"; exec mount \"$@\"\n")
		err := host.New(host.Config{Via: host.ViaCommand, MountCommand: swap}).MountContext(t.Context(), request)
		if e, ok := errors.AsType[*mount.Error](err); !ok || !errors.Is(err, mount.ErrTargetReplaced) || e.Uncertain {
			t.Errorf("err = %v", err)
		}
		if _, ok := mounttest.EntryAt(t, good); ok {
			t.Error("it is mounted where it should be after all")
		}
		if err := mounttest.Unmount(t, evil); err != nil {
			t.Error(err)
		}
		if e, ok := mounttest.EntryAt(t, evil); ok {
			t.Errorf("what was led astray is left: %+v", e)
		}
	})
}

func TestOneCommandForEachTarget(t *testing.T) {
	dir := t.TempDir()
	log := filepath.Join(dir, "log")
	m := host.New(host.Config{Via: host.ViaCommand, MountCommand: fakeCommand(t, "echo begin >>"+log+"; sleep 0.02; echo end >>"+log+"\n")})
	const n = 5
	failed := make(chan error, n)
	for range n {
		go func() {
			failed <- m.MountContext(t.Context(), mount.Request{Source: "10.0.0.1:/e", Target: dir, FSType: "nfs"})
		}()
	}
	for range n {
		if err := <-failed; err != nil {
			t.Error(err)
		}
	}
	got, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != strings.Repeat("begin\nend\n", n) {
		t.Errorf("commands overlapped:\n%s", got)
	}
}

func TestMissingCommand(t *testing.T) {
	m := host.New(host.Config{Via: host.ViaCommand, MountCommand: "no-such-mount-command"})
	err := m.MountContext(t.Context(), mount.Request{Source: "10.0.0.1:/e", Target: t.TempDir(), FSType: "nfs"})
	e, ok := errors.AsType[*mount.Error](err)
	if !ok || e.Uncertain || !errors.Is(err, mount.ErrHelperMissing) || !strings.Contains(e.Advice(), "util-linux") {
		t.Errorf("err = %v", err)
	}
}

func TestDaemonLeftBehindDoesNotHoldUpTheMount(t *testing.T) {
	lives := filepath.Join(t.TempDir(), "lives")
	if err := unix.Mkfifo(lives, 0o600); err != nil {
		t.Fatal(err)
	}
	living, err := os.OpenFile(lives, os.O_RDWR, 0) // the daemon lives until it is closed
	if err != nil {
		t.Fatal(err)
	}
	defer living.Close()
	m := host.New(host.Config{MountCommand: fakeCommand(t, "sh -c 'read end <"+lives+"' &\n")})
	if err := m.MountContext(t.Context(), mount.Request{Source: "x", Target: t.TempDir(), FSType: "fuse.sshfs"}); err != nil {
		t.Error(err)
	}
}
