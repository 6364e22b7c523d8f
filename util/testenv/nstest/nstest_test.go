package nstest_test

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/testenv/nstest"
)

func TestRunMountsOutOfSight(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		if os.Geteuid() != 0 {
			t.Fatalf("uid is %d inside, want 0", os.Geteuid())
		}
		dir := t.TempDir()
		if err := unix.Mount("nstest-probe", dir, "tmpfs", 0, "size=64k"); err != nil {
			t.Fatal(err)
		}
		here, err := os.ReadFile("/proc/self/mountinfo")
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(here), "nstest-probe") {
			t.Fatal("the mount is not in this namespace's table")
		}
		if strings.Contains(string(here), "shared:") || strings.Contains(string(here), "master:") {
			t.Fatal("a mount of this namespace still propagates")
		}
		if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		t.Run("sub-tests are run", func(t *testing.T) { t.TempDir() })
	})
	after, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	if os.Getenv("PODVOL_NSTEST") == "" && strings.Contains(string(after), "nstest-probe") {
		t.Fatal("the child's mount is visible to the parent")
	}
}

// A process that runs beside the test, here the test's own parent, is not in its /proc.
func TestRunAloneSeesNoOtherProcess(t *testing.T) {
	nstest.RunAlone(t, func(t *testing.T) {
		if os.Geteuid() != 0 || os.Getpid() != 1 {
			t.Errorf("uid %d, process %d", os.Geteuid(), os.Getpid())
		}
		entries, err := os.ReadDir("/proc")
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if pid, err := strconv.Atoi(e.Name()); err == nil && pid != 1 {
				t.Errorf("there is a process %d", pid)
			}
		}
	})
}

// victimVar makes the victims below do their worst; the tests that set it run
// them in a further process and look at the result from outside.
const victimVar = "NSTEST_VICTIM"

func TestVictimFails(t *testing.T) {
	if os.Getenv(victimVar) == "" {
		return
	}
	nstest.Run(t, func(t *testing.T) { t.Run("within", func(t *testing.T) { t.Error("a failure inside") }) })
}

func TestVictimSkips(t *testing.T) {
	if os.Getenv(victimVar) == "" {
		return
	}
	nstest.Run(t, func(t *testing.T) { t.Skip("not here") })
}

func TestVictimHidden(t *testing.T) {
	if os.Getenv(victimVar) == "" || os.Getenv("PODVOL_NSTEST") != "" {
		return // in the child this test never comes to Run
	}
	nstest.Run(t, func(*testing.T) {})
}

func TestOutcomeIsTheChilds(t *testing.T) {
	tests := map[string]struct {
		victim string
		fails  bool
		says   string
	}{
		"a failure inside fails the test":     {"TestVictimFails", true, "a failure inside"},
		"a skip inside skips the test":        {"TestVictimSkips", false, "--- SKIP: TestVictimSkips/user"},
		"a test that was not run is an error": {"TestVictimHidden", true, "did not run this test"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^"+tc.victim+"$", "-test.v=true")
			cmd.Env = append(os.Environ(), victimVar+"=1")
			out, err := cmd.CombinedOutput()
			if failed := err != nil; failed != tc.fails {
				t.Errorf("err = %v, want failure: %v", err, tc.fails)
			}
			if !strings.Contains(string(out), tc.says) {
				t.Errorf("the output does not contain %q:\n%s", tc.says, out)
			}
		})
	}
}

// In a user namespace the kernel gives none of these up alone.
func TestRecursiveBindsOfOthersMountsAreDetached(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		if err := unix.Mount("/", t.TempDir(), "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
			t.Fatal(err)
		}
	})
}

// As where udev has opened it; outside it is as it was.
func TestUsersHaveFUSE(t *testing.T) {
	const device = "/dev/fuse"
	before, err := os.Stat(device)
	if err != nil {
		t.Fatal(err)
	}
	if f, err := os.OpenFile(device, os.O_RDWR, 0); errors.Is(err, fs.ErrPermission) {
		t.Skipf("%v: only root can open it to users", err)
	} else if err == nil {
		f.Close()
	}
	nstest.Run(t, func(t *testing.T) {
		f, err := os.OpenFile(device, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
	})
	if after, err := os.Stat(device); err != nil || after.Mode() != before.Mode() {
		t.Errorf("%v, %v; it was %v", after, err, before)
	}
}
