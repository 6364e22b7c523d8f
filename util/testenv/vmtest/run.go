package vmtest

import (
	"os"
	"testing"

	"github.com/podvol/podvol/util/testenv/rerun"
)

const (
	// askVar makes tests run in machines: "1" by emulation, "kvm" with KVM.
	askVar = "PODVOL_VMTEST"
	// guestVar is set in a machine, to the file for its reports.
	guestVar    = "PODVOL_VMTEST_GUEST"
	guestReport = "/run/vmtest/report"

	reportRan     = "ran"
	reportSkipped = "skipped"
)

// Inside reports whether this process runs in a machine of this package.
func Inside() bool { return os.Getenv(guestVar) != "" }

// Run runs f in a virtual machine, as the sub-test "vm", if PODVOL_VMTEST asks
// for it, and else does nothing. The machine is the zero [Machine].
//
// f runs in another process, on another kernel: it sees neither variables that
// the calling test has set nor its goroutines, nor what it has mounted. What the
// test does before Run is done in the machine again; keep it cheap. f may call
// t.Run, t.Skip, t.TempDir and nstest.Run as usual. In a process that runs in a machine
// already, f is called there. Output and result are those of the sub-test; it
// fails if no machine can be started.
func Run(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	RunOn(t, Machine{}, f)
}

// RunOn is like [Run], on a machine of the caller's. The machine is that of the
// process if it runs in one already.
func RunOn(t *testing.T, m Machine, f func(t *testing.T)) {
	t.Helper()
	if Inside() {
		t.Run("vm", func(t *testing.T) { runInside(t, f) })
		return
	}
	switch os.Getenv(askVar) {
	case "", "0":
		t.Logf("not run: set %s=1 to run this in a virtual machine", askVar)
		return
	case "kvm":
		m.KVM = true
	}
	t.Run("vm", func(t *testing.T) { startMachine(t, m) })
}

// runInside is what happens in the machine.
func runInside(t *testing.T, f func(t *testing.T)) {
	report(t, reportRan)
	t.Cleanup(func() {
		if t.Skipped() {
			report(t, reportSkipped)
		}
	})
	f(t)
}

func report(t *testing.T, what string) {
	f, err := os.OpenFile(os.Getenv(guestVar), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatalf("report to the host: %v", err)
	}
	defer f.Close()
	if _, err := f.WriteString(what + "\n"); err != nil {
		t.Errorf("report to the host: %v", err)
	}
}

// startMachine runs the calling sub-test in a machine.
func startMachine(t *testing.T, m Machine) {
	ctx, cancel := rerun.Context(t)
	defer cancel()
	binary, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	out := t.Output()
	result, err := m.run(ctx, Command{Path: binary, Args: rerun.Args(t), Stdout: out, Stderr: out})
	if err != nil {
		t.Fatalf("run the test in a virtual machine: %v", err)
	}
	if result.code != 0 {
		t.Fatalf("the test failed in the virtual machine: exit code %d", result.code)
	}
	// Processes that the test has started, as nstest does, report too.
	switch n := len(result.reports); {
	case n > 0 && result.reports[n-1] == reportRan:
	case n > 0 && result.reports[n-1] == reportSkipped:
		t.Skip("skipped in the virtual machine, see above")
	default:
		t.Fatalf("the virtual machine did not run this test (it reported %q)", result.reports)
	}
}
