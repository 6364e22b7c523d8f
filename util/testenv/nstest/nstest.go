// Package nstest runs tests that mount in a mount namespace of their own, so
// that they act on the real kernel and leave nothing behind.
//
// [Run] starts the test binary again, for the calling test alone, in a new
// mount namespace and, where it is not root, in a new user namespace. Like
// every package below util, it carries no promise of compatibility.
package nstest

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/eintr"
	"github.com/podvol/podvol/util/testenv/rerun"
)

const (
	// modeVar is set in the child to the mode it runs in. Whoever finds it set
	// starts no further child, so a test cannot multiply without end.
	modeVar = "PODVOL_NSTEST"
	// requireVar turns skips into failures, for machines that are known to be
	// able.
	requireVar = "PODVOL_NSTEST_REQUIRE"

	// nobody is the host's user and group behind the child of mode "user" when
	// the tests themselves run as root.
	nobody = 65534

	// reportFD is the pipe by which the child says what it did.
	reportFD = 3
)

// Mode is as whom a test runs, and its sub-test's name.
type Mode string

const (
	// Root is real root, if the tests run as root.
	Root Mode = "root"
	// User is root of a user namespace and an ordinary user outside of it.
	User Mode = "user"
	// Host is Root, and process 1 of a PID namespace of its own with a /proc that shows
	// it: containers that f starts see the test as the host's process 1. Processes that
	// f leaves behind end with it. It is not among the modes of [Run].
	Host Mode = "host"
	// HostUser is to User what Host is to Root.
	HostUser Mode = "host-user"
)

// rootless says that the mode has a user namespace.
func (m Mode) rootless() bool { return m == User || m == HostUser }

// alone says that the mode has a PID namespace.
func (m Mode) alone() bool { return m == Host || m == HostUser }

// What the child reports.
const (
	reportRan     = "ran"
	reportSkipped = "skipped"
	reportDenied  = "denied: "
)

// Run runs f in a new mount namespace whose mounts propagate nowhere. As root
// it runs f twice, as the sub-tests "root" and "user"; as an ordinary user
// only as "user". In "user", f is root of a user namespace and an ordinary
// user (65534 if the tests run as root) outside of it, as rootless agents are.
//
// f runs in another process: it sees neither variables that the calling test
// has set nor its goroutines. What the test does before Run is done in the
// child again; keep it cheap. f may call t.Run, t.Skip and t.TempDir as usual,
// but not Run, and the caller must not use t.Chdir or t.Setenv. What is still
// mounted below f's t.TempDir when f returns is unmounted; a sub-test of f sees
// to that itself. Output and result are those of the sub-test. Run skips only
// where the kernel denies namespaces, and not even then if
// PODVOL_NSTEST_REQUIRE is set.
func Run(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	RunAs(t, []Mode{Root, User}, f)
}

// RunAs is [Run] in some modes only, for what can be seen in no other: starting
// the binary is most of what a short test costs.
func RunAs(t *testing.T, modes []Mode, f func(t *testing.T)) {
	t.Helper()
	if mode := Mode(os.Getenv(modeVar)); mode != "" {
		t.Run(string(mode), func(t *testing.T) { runInside(t, mode, f) })
		return
	}
	for _, mode := range modes {
		if !mode.rootless() && os.Geteuid() != 0 {
			continue
		}
		t.Run(string(mode), func(t *testing.T) { startChild(t, mode) })
	}
}

// RunAlone is [Run] in the modes Host and HostUser, for what looks at all processes of the
// machine: f sees only its own, whatever else runs.
func RunAlone(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	RunAs(t, []Mode{Host, HostUser}, f)
}

// Parallel lets the calling test run beside others, as t.Parallel does, but not in
// the child of [Run], where it is alone and f may still use t.Setenv and t.Chdir.
// It is for tests that do nothing outside of Run, and in it nothing that the whole
// machine would notice.
func Parallel(t *testing.T) {
	t.Helper()
	if os.Getenv(modeVar) == "" {
		t.Parallel()
	}
}

// runInside is what the child does.
func runInside(t *testing.T, mode Mode, f func(t *testing.T)) {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		// Some distributions let the clone pass and then deny every capability
		// in the new namespace.
		skipIfDenied(t, mode, err)
		t.Fatalf("make / private: %v", err)
	}
	if mode.alone() {
		if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
			skipIfDenied(t, mode, err) // as where a container has something mounted over a part of /proc
			t.Fatalf("mount the /proc of the new PID namespace: %v", err)
		}
	}
	report(t, reportRan)
	t.Cleanup(func() {
		if t.Skipped() {
			report(t, reportSkipped)
		}
	})
	// Cleanups run last in, first out: the mounts go before t.TempDir removes
	// what it finds, which would else be what the mounts show.
	dir := filepath.Dir(t.TempDir())
	t.Cleanup(func() { detachBelow(t, dir) })
	f(t)
}

// skipIfDenied ends the child where a user namespace has no right to mount.
func skipIfDenied(t *testing.T, mode Mode, err error) {
	if mode.rootless() && (errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES)) {
		report(t, reportDenied+err.Error())
		t.SkipNow()
	}
}

// detachBelow lazily unmounts everything below dir, newest first. In a user
// namespace what came along with a recursive bind is locked to the mount it is
// on (mount_namespaces(7)), and goes with that.
func detachBelow(t *testing.T, dir string) {
	var failed []error
	for _, m := range slices.Backward(mountsBelow(t, dir)) {
		if err := unix.Unmount(m.Mountpoint, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			failed = append(failed, fmt.Errorf("unmount %s: %w", m.Mountpoint, err))
		}
	}
	if left := mountsBelow(t, dir); len(left) > 0 {
		t.Errorf("%d mounts are left below %s: %v", len(left), dir, errors.Join(failed...))
	}
}

func mountsBelow(t *testing.T, dir string) []*mountinfo.Info {
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
	if err != nil {
		t.Error(err)
	}
	return mounts
}

func report(t *testing.T, what string) {
	if _, err := eintr.Get(func() (int, error) { return unix.Write(reportFD, []byte(what+"\n")) }); err != nil {
		t.Errorf("report to the parent: %v", err)
	}
}

// startChild runs the calling sub-test in a child process.
func startChild(t *testing.T, mode Mode) {
	ctx, cancel := rerun.Context(t)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/proc/self/exe", rerun.Args(t)...)
	cmd.WaitDelay = 30 * time.Second
	// The race detector makes each process wait for a second at its end. What is
	// set already comes later and wins.
	cmd.Env = append([]string{"GORACE=atexit_sleep_ms=20"}, os.Environ()...)
	cmd.Env = append(cmd.Env, modeVar+"="+string(mode))
	cmd.SysProcAttr = namespaces(mode)
	prepare := func() error { return nil }
	if mode.rootless() && os.Geteuid() == 0 {
		dir := userTempDir(t)
		cmd.Env = append(cmd.Env, "TMPDIR="+dir, "HOME="+dir)
		prepare = func() error { return openToUsers(fuseDevice, dir) }
	}
	cmd.Stdout, cmd.Stderr = t.Output(), t.Output()
	reports, err := reportPipe(cmd)
	if err != nil {
		t.Fatal(err)
	}
	defer reports.Close()
	var said []byte
	var notStarted, failed, unread error
	inThreadOfItsOwn(func() {
		if notStarted = prepare(); notStarted == nil {
			notStarted = cmd.Start()
		}
		for _, f := range cmd.ExtraFiles {
			f.Close()
		}
		if notStarted == nil {
			said, unread = io.ReadAll(reports)
			failed = cmd.Wait()
		}
	})
	if kernelCannot(notStarted) {
		skip(t, fmt.Sprintf("the kernel denies a new namespace here: %v", notStarted))
	}
	if notStarted != nil {
		t.Fatalf("start the test in a namespace: %v", notStarted)
	}
	if failed != nil {
		t.Fatalf("the test failed in its namespace (%s): %v", mode, failed)
	}
	if unread != nil {
		t.Fatal(unread)
	}
	judge(t, string(said))
}

// inThreadOfItsOwn runs f in a thread that ends with it: the parent-death signal is
// sent when the thread that forked ends, and namespaces are a thread's. It is not the
// main one, whose namespaces are what /proc/self shows.
func inThreadOfItsOwn(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			inThreadOfItsOwn(f) // another one, as this one is taken
			runtime.UnlockOSThread()
			return
		}
		f()
	}()
	<-done
}

// fuseDevice is open to all users where there is udev. Where there is none, as on
// many small virtual machines, it is root's alone.
const fuseDevice = "/dev/fuse"

// openToUsers gives the calling thread a mount namespace in which a device is open to
// all users, where it is not anyway. It mounts at dir meanwhile.
func openToUsers(device, dir string) error {
	var found unix.Stat_t
	if err := unix.Stat(device, &found); err != nil || found.Mode&0o006 == 0o006 {
		return nil // without the device, who needs it says so
	}
	node := filepath.Join(dir, filepath.Base(device))
	for _, step := range []func() error{
		func() error { return unix.Unshare(unix.CLONE_NEWNS) },
		func() error { return unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "") },
		func() error { return unix.Mount("nstest", dir, "tmpfs", 0, "") },
		func() error { return unix.Mknod(node, unix.S_IFCHR, int(found.Rdev)) },
		func() error { return unix.Chmod(node, 0o666) }, // whatever the umask is
		func() error { return unix.Mount(node, device, "", unix.MS_BIND, "") },
		func() error { return unix.Unmount(dir, unix.MNT_DETACH) },
	} {
		if err := step(); err != nil {
			return fmt.Errorf("open %s to all users: %w", device, err)
		}
	}
	return nil
}

// judge turns the reports of a child that exited with success into the
// sub-test's result.
func judge(t *testing.T, said string) {
	lines := strings.Split(strings.TrimSpace(said), "\n")
	switch last := lines[len(lines)-1]; {
	case last == reportRan:
	case last == reportSkipped:
		t.Skip("skipped in its namespace, see above")
	case strings.HasPrefix(last, reportDenied):
		skip(t, "the kernel denies mounts in a new user namespace: "+strings.TrimPrefix(last, reportDenied))
	default:
		t.Fatalf("the child process did not run this test (it reported %q)", said)
	}
}

func skip(t *testing.T, reason string) {
	if os.Getenv(requireVar) != "" {
		t.Fatal(reason)
	}
	t.Skip(reason)
}

// kernelCannot tells an error of clone(2) that says that namespaces are not to
// be had (no privilege, not built in, limit 0) from any other.
func kernelCannot(err error) bool {
	for _, errno := range []syscall.Errno{unix.EPERM, unix.ENOSYS, unix.ENOSPC, unix.EINVAL} {
		if errors.Is(err, errno) {
			return true
		}
	}
	return false
}

func namespaces(mode Mode) *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS, Pdeathsig: unix.SIGKILL}
	if mode.alone() {
		attr.Cloneflags |= unix.CLONE_NEWPID
	}
	if !mode.rootless() {
		return attr
	}
	attr.Cloneflags |= unix.CLONE_NEWUSER
	uid, gid := os.Geteuid(), os.Getegid()
	if uid == 0 {
		uid, gid = nobody, nobody
		attr.GidMappingsEnableSetgroups = true
	}
	attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: uid, Size: 1}}
	attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: gid, Size: 1}}
	// Ids within the namespace; an ordinary user may not drop its groups.
	attr.Credential = &syscall.Credential{Uid: 0, Gid: 0, NoSetGroups: !attr.GidMappingsEnableSetgroups}
	return attr
}

func reportPipe(cmd *exec.Cmd) (*os.File, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	cmd.ExtraFiles = []*os.File{w} // the first becomes reportFD
	return r, nil
}

// userTempDir returns a directory that belongs to nobody and that nobody can
// reach. The test's own temporary directory is closed to other users.
func userTempDir(t *testing.T) string {
	for _, base := range []string{os.TempDir(), "/tmp", "/var/tmp", "/dev/shm"} {
		if !openToAll(base) {
			continue
		}
		dir, err := os.MkdirTemp(base, "nstest-")
		if err != nil {
			continue
		}
		t.Cleanup(func() {
			// Mounts of the child are not visible here: what is removed is
			// what the child left in the directory itself.
			if err := os.RemoveAll(dir); err != nil {
				t.Errorf("remove the child's temporary directory: %v", err)
			}
		})
		if err := os.Chown(dir, nobody, nobody); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	t.Fatal("no temporary directory is open to other users; set TMPDIR to one")
	return ""
}

// openToAll reports whether every user may search dir and its parents.
func openToAll(dir string) bool {
	for {
		info, err := os.Stat(dir)
		if err != nil || info.Mode().Perm()&0o001 == 0 {
			return false
		}
		if dir == "/" || dir == "." {
			return dir == "/"
		}
		dir = filepath.Dir(dir)
	}
}
