package vmtest_test

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/util/testenv/vmtest"
)

// What doc.go promises of the machine.
func TestGuest(t *testing.T) {
	vmtest.Run(t, func(t *testing.T) {
		if os.Geteuid() != 0 || !vmtest.Inside() {
			t.Errorf("uid %d, inside: %t", os.Geteuid(), vmtest.Inside())
		}
		t.Run("testdata and directory are the host's", func(t *testing.T) {
			if _, err := os.Stat("guest/start"); err != nil {
				t.Error(err)
			}
		})
		t.Run("loopback", func(t *testing.T) {
			for _, address := range []string{"127.0.0.1:0", "[::1]:0"} {
				listener, err := net.Listen("tcp", address)
				if err != nil {
					t.Error(err)
					continue
				}
				conn, err := net.DialTimeout("tcp", listener.Addr().String(), 10*time.Second)
				if err != nil {
					t.Error(err)
				} else {
					conn.Close()
				}
				listener.Close()
			}
			interfaces, err := net.Interfaces()
			if err != nil || len(interfaces) != 1 {
				t.Errorf("interfaces %v (%v), want lo alone", interfaces, err)
			}
		})
		t.Run("temporary directory", func(t *testing.T) {
			var fs unix.Statfs_t
			if err := unix.Statfs(t.TempDir(), &fs); err != nil || fs.Type != unix.TMPFS_MAGIC {
				t.Errorf("file system %#x (%v), want tmpfs", fs.Type, err)
			}
		})
		t.Run("the clock is right", func(t *testing.T) {
			// The binary was built by the host a short while ago.
			info, err := os.Stat("/proc/self/exe")
			if err != nil {
				t.Fatal(err)
			}
			if age := time.Since(info.ModTime()); age < -2*time.Second {
				t.Errorf("the test binary is %v old", age)
			}
		})
		t.Run("modules by request of the kernel", func(t *testing.T) {
			for _, kind := range []string{"ext4", "xfs", "btrfs", "fuse", "nfs", "nfs4", "nfsd"} {
				fd, err := unix.Fsopen(kind, unix.FSOPEN_CLOEXEC)
				if err != nil {
					t.Errorf("fsopen %s: %v", kind, err)
					continue
				}
				unix.Close(fd)
			}
			for _, device := range []string{"/dev/loop-control", "/dev/fuse"} {
				f, err := os.OpenFile(device, os.O_RDWR, 0)
				if err != nil {
					t.Error(err)
					continue
				}
				f.Close()
			}
		})
		t.Run("modprobe", func(t *testing.T) {
			if out, err := exec.Command("/sbin/modprobe", "isofs").CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			if _, err := os.Stat("/sys/module/isofs"); err != nil {
				t.Error(err)
			}
		})
		t.Run("the root can be written", func(t *testing.T) {
			file := filepath.Join("/etc", "vmtest-was-here")
			if err := os.WriteFile(file, nil, 0o600); err != nil {
				t.Error(err)
			}
		})
	})
	if _, err := os.Stat("/etc/vmtest-was-here"); err == nil && !vmtest.Inside() {
		t.Error("what was written in the machine is on the host")
	}
}

// Namespaces work in the machine as on the host.
func TestGuestNamespaces(t *testing.T) {
	vmtest.Run(t, func(t *testing.T) {
		nstest.Run(t, func(t *testing.T) {
			if err := unix.Mount("x", t.TempDir(), "tmpfs", 0, ""); err != nil {
				t.Error(err)
			}
		})
	})
}

// victimVar makes the victims below do their worst; the test that sets it runs
// them in a further process.
const victimVar = "VMTEST_VICTIM"

func TestVictimFails(t *testing.T) {
	if os.Getenv(victimVar) == "" {
		return
	}
	vmtest.Run(t, func(t *testing.T) { t.Run("within", func(t *testing.T) { t.Error("a failure inside") }) })
}

func TestVictimSkips(t *testing.T) {
	if os.Getenv(victimVar) == "" {
		return
	}
	vmtest.Run(t, func(t *testing.T) { t.Skip("not here") })
}

func TestVictimHidden(t *testing.T) {
	if os.Getenv(victimVar) == "" || vmtest.Inside() {
		return // in the machine this test never comes to Run
	}
	vmtest.Run(t, func(*testing.T) {})
}

func TestOutcomeIsTheMachines(t *testing.T) {
	if !needMachine(t) {
		return
	}
	tests := map[string]struct {
		victim string
		fails  bool
		says   string
	}{
		"a failure inside fails the test":     {"TestVictimFails", true, "a failure inside"},
		"a skip inside skips the test":        {"TestVictimSkips", false, "--- SKIP: TestVictimSkips/vm"},
		"a test that was not run is an error": {"TestVictimHidden", true, "did not run this test"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			out, err := victim(t, tc.victim)
			if failed := err != nil; failed != tc.fails {
				t.Errorf("err = %v, want failure: %v", err, tc.fails)
			}
			if !strings.Contains(out, tc.says) {
				t.Errorf("the output does not contain %q:\n%s", tc.says, out)
			}
		})
	}
}

func TestAskedAndUnavailable(t *testing.T) {
	if vmtest.Inside() {
		return
	}
	out, err := victim(t, "TestVictimSkips", "PODVOL_VMTEST=1", "PODVOL_VMTEST_KERNEL="+t.TempDir())
	if err == nil || !strings.Contains(out, vmtest.ErrUnavailable.Error()) {
		t.Errorf("err = %v, want a failure that says why:\n%s", err, out)
	}
}

func TestNotAsked(t *testing.T) {
	if vmtest.Inside() {
		return
	}
	out, err := victim(t, "TestVictimFails", "PODVOL_VMTEST=", "PATH=")
	if err != nil || strings.Contains(out, "SKIP") || !strings.Contains(out, "not run: set PODVOL_VMTEST=1") {
		t.Errorf("err = %v, want success without a skip:\n%s", err, out)
	}
}

func victim(t *testing.T, name string, env ...string) (string, error) {
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^"+name+"$", "-test.v=true")
	cmd.Env = append(append(os.Environ(), victimVar+"=1"), env...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}
