package host_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/host"
	"github.com/podvol/podvol/util/testenv/mounttest"
	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/util/testenv/testtool"
)

// holderVar makes the test binary a process that holds a mount in the way that
// the variable says, until its input ends.
const holderVar = "PODVOL_TEST_HOLD"

func TestMain(m *testing.M) {
	if how := os.Getenv(holderVar); how != "" {
		if err := hold(how); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// hold holds "<way> <path>" and says so on its output.
func hold(how string) error {
	way, path, _ := strings.Cut(how, " ")
	switch way {
	case "agent":
		return runAgent(path)
	case "daemon":
		return serveFUSE(path)
	case "cwd":
		if err := os.Chdir(path); err != nil {
			return err
		}
	case "root":
		if err := unix.Chroot(path); err != nil {
			return err
		}
	case "file", "map":
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			return err
		}
		if way == "file" {
			defer f.Close()
			break
		}
		if _, err := unix.Mmap(int(f.Fd()), 0, 1, unix.PROT_READ, unix.MAP_SHARED); err != nil {
			return err
		}
		f.Close()
	case "stat": // may never return
		fmt.Println("holding")
		if _, err := os.Lstat(path); err != nil {
			fmt.Println("stat:", err)
		}
	case "mount":
		tryToMount(path)
		return nil
	case "exe", "nothing":
	default:
		return fmt.Errorf("no way %q to hold", way)
	}
	fmt.Println("holding")
	_, err := io.Copy(io.Discard, os.Stdin)
	return err
}

// startHolder starts a process that holds a mount and returns its pid.
func startHolder(t *testing.T, program, how string, attr *syscall.SysProcAttr) int {
	t.Helper()
	cmd := exec.Command(program)
	cmd.Env = append(os.Environ(), holderVar+"="+how, "GORACE=atexit_sleep_ms=0")
	cmd.SysProcAttr = attr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	})
	if line, _ := bufio.NewReader(out).ReadString('\n'); line != "holding\n" {
		t.Fatalf("the holder of %q says %q", how, line)
	}
	return cmd.Process.Pid
}

// busyError unmounts target, which must be busy, and asks for its holders.
func busyError(t *testing.T, target string) *mount.Error {
	t.Helper()
	rung, err := host.New(host.Config{}).UnmountContext(t.Context(), target, mount.UnmountOptions{Holders: true})
	e, ok := errors.AsType[*mount.Error](err)
	if !ok || !errors.Is(err, mount.ErrBusy) || rung != mount.RungNormal {
		t.Fatalf("rung %v, err = %v", rung, err)
	}
	return e
}

// copyBinary puts a copy of the test binary at path.
func copyBinary(t *testing.T, path string) {
	t.Helper()
	content, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, content, 0o755); err != nil {
		t.Fatal(err)
	}
}

func TestHoldersOfABusyMount(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		for _, tc := range []struct{ name, how, says string }{
			{"working directory", "cwd %s/dir", "working directory %s/dir"},
			{"root directory", "root %s/dir", "root directory %s/dir"},
			{"open file", "file %s/file", "open file %s/file"},
			{"mapped file", "map %s/file", "mapped file %s/file"},
			{"program", "exe", "program %s/program"},
		} {
			t.Run(tc.name, func(t *testing.T) {
				target := t.TempDir()
				mounttest.Mount(t, mounttest.Tmpfs(target))
				t.Cleanup(func() { // the context has ended by then
					// Whoever reads a process's maps, as searches of others do, keeps what is
					// mapped for a moment after the process has ended.
					if err := unix.Unmount(target, unix.MNT_DETACH); err != nil {
						t.Error(err)
					}
				})
				testtool.MkdirAll(t, target, "dir")
				testtool.WriteFile(t, "x", target, "file")
				program, how, wantCommand := "/proc/self/exe", tc.how, "exe"
				if strings.Contains(how, "%s") {
					how = fmt.Sprintf(how, target)
				}
				if tc.how == "exe" {
					program, wantCommand = filepath.Join(target, "program"), "program"
					copyBinary(t, program)
				}
				startHolder(t, "/proc/self/exe", "nothing", nil)
				pid := startHolder(t, program, how, nil)
				e := busyError(t, target)
				want := mount.Holder{PID: pid, Command: wantCommand, How: fmt.Sprintf(tc.says, target)}
				if len(e.Holders) != 1 || e.Holders[0] != want {
					t.Errorf("holders %q, want %q", e.Holders, want)
				}
				text := fmt.Sprintf("held by %s (%d): %s", want.Command, pid, want.How)
				if !strings.Contains(e.Error(), text) || !strings.Contains(e.Advice(), "End what holds it") {
					t.Errorf("%q is missing in %v", text, e)
				}
			})
		}
	})
}

func TestHoldersInTheKernelAndElsewhere(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		target := t.TempDir()
		mounttest.Mount(t, mounttest.Tmpfs(target))
		below := testtool.MkdirAll(t, target, "below")
		mounttest.Mount(t, mounttest.Tmpfs(below))
		// A process below holds what is mounted there and not the mount itself.
		startHolder(t, "/proc/self/exe", "cwd "+below, nil)
		want := mount.Holder{PID: 0, Command: "kernel", How: "mount below at " + below}
		if e := busyError(t, target); len(e.Holders) != 1 || e.Holders[0] != want {
			t.Errorf("holders %q, want %q", e.Holders, want)
		}
		if e := busyError(t, target); !strings.Contains(e.Error(), "held by kernel (0): mount below") {
			t.Errorf("err = %v", e)
		}
	})
}

func TestHolderInAnotherMountNamespace(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		// Shared, so that unmounting it here unmounts it there.
		top := t.TempDir()
		mounttest.Mount(t, mounttest.Tmpfs(top))
		mounttest.Mount(t, mount.Request{Target: top, Options: []string{"shared"}})
		target := testtool.MkdirAll(t, top, "target")
		mounttest.Mount(t, mounttest.Tmpfs(target))
		testtool.WriteFile(t, "x", target, "file")
		apart := &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS}
		inFile := startHolder(t, "/proc/self/exe", "file "+target+"/file", apart)
		inDir := startHolder(t, "/proc/self/exe", "cwd "+target, apart)
		e := busyError(t, target)
		says := map[int]string{}
		for _, h := range e.Holders {
			says[h.PID] = h.How
		}
		if len(says) != 2 || says[inFile] != "open file "+target+"/file" || says[inDir] != "working directory "+target {
			t.Errorf("holders %q; want %d and %d", e.Holders, inFile, inDir)
		}
		// One of a private copy holds nothing here.
		private := t.TempDir()
		mounttest.Mount(t, mounttest.Tmpfs(private))
		startHolder(t, "/proc/self/exe", "cwd "+private, apart)
		held, err := os.Open(private)
		if err != nil {
			t.Fatal(err)
		}
		defer held.Close()
		if e := busyError(t, private); len(e.Holders) != 1 || e.Holders[0].PID != os.Getpid() {
			t.Errorf("holders %q; want this process, %d, alone", e.Holders, os.Getpid())
		}
	})
}

func TestAtMostTenHolders(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		target := t.TempDir()
		mounttest.Mount(t, mounttest.Tmpfs(target))
		for range 12 {
			startHolder(t, "/proc/self/exe", "cwd "+target, nil)
		}
		if e := busyError(t, target); len(e.Holders) != 10 {
			t.Errorf("%d holders: %q", len(e.Holders), e.Holders)
		}
		_, err := host.New(host.Config{}).UnmountContext(t.Context(), target, mount.UnmountOptions{})
		if e, ok := errors.AsType[*mount.Error](err); !ok || len(e.Holders) != 0 || !strings.Contains(e.Advice(), "fuser") {
			t.Errorf("holders that nobody asked for: %v", err)
		}
	})
}
