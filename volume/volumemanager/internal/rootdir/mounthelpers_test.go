package rootdir

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// A helper is waited for also where the caller's context has no deadline.
func TestAHelperIsWaitedForWithoutADeadline(t *testing.T) {
	sleep, err := exec.LookPath("sleep")
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(t.TempDir(), "mount.nfs")
	if err := os.Symlink(sleep, program); err != nil {
		t.Fatal(err)
	}
	helper := exec.Command(program, "1000")
	helper.Args[0] = "sleep"
	if err := helper.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- helper.Wait() }()
	h := Helper{PID: helper.Process.Pid, Command: "mount.nfs"}
	if err := h.End(context.Background()); err != nil {
		t.Errorf("End: %v", err)
		_ = helper.Process.Kill()
	}
	<-ended
}
