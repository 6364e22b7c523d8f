package volumemanager_test

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/mount/host"
	"github.com/podvol/podvol/util/testenv/nfsserver"
	"github.com/podvol/podvol/util/testenv/vmtest"
)

const (
	// powersOffVar is set in the machine that is shut down.
	powersOffVar = "PODVOL_TEST_POWERS_OFF"
	shutsDown    = "the machine is shut down now"
	// powerOffLimit is for systemd-shutdown's five seconds for processes after each
	// of two signals, ten for sync(2), and ninety for an unmount that hangs.
	powerOffLimit = 3 * time.Minute
)

// TestNodeOfADeadServerPowersOff shuts a whole machine down, as systemd does,
// whose agent has mounts of a dead server, where one pod has unwritten data and
// another one's volume is being torn down.
func TestNodeOfADeadServerPowersOff(t *testing.T) {
	packages := nfsserver.Unpack(t)
	if os.Getenv(powersOffVar) != "" {
		shutDownWithADeadServer(t, packages)
		return
	}
	if os.Getenv("PODVOL_VMTEST") == "" || vmtest.Inside() {
		t.Log("not run: machines are not asked for, or this is one, which others need")
		return
	}
	binary, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var said, console bytes.Buffer
	var began time.Time
	out := io.MultiWriter(&said, writerFunc(func([]byte) {
		if began.IsZero() && bytes.Contains(said.Bytes(), []byte(shutsDown)) {
			began = time.Now()
		}
	}))
	_, err = vmtest.Machine{Console: &console}.Run(t.Context(), vmtest.Command{
		Path: binary, Args: []string{"-test.run", "^" + t.Name() + "$", "-test.v"}, Env: append(os.Environ(), powersOffVar+"=1"),
		Stdout: out, Stderr: out,
	})
	took := time.Since(began)
	t.Logf("in the machine:\n%s", &said)
	if !errors.Is(err, vmtest.ErrPoweredOff) || began.IsZero() || strings.Contains(said.String(), "--- FAIL") {
		t.Fatalf("it was not shut down: %v\n%s", err, &console)
	}
	_, end, _ := strings.Cut(console.String(), "Sending SIGTERM")
	t.Logf("the console: %s", end)
	t.Logf("| %-45s | %5.2f s |", "power-off with mounts of a dead server", took.Seconds())
	if took > powerOffLimit {
		t.Errorf("it took %v:\n%s", took, &console)
	}
	if !strings.Contains(console.String(), "Unmounting file systems") {
		t.Errorf("nothing was unmounted:\n%s", &console)
	}
}

type writerFunc func(written []byte)

func (f writerFunc) Write(b []byte) (int, error) {
	f(b)
	return len(b), nil
}

// shutDownWithADeadServer ends with the machine.
func shutDownWithADeadServer(t *testing.T, packages nfsserver.Packages) {
	dead := nfsserver.Start(t, packages, nfsserver.Config{Name: "dead"})
	w := newNFSNode(t, host.Config{})
	w.setUpTimeout = time.Minute
	manager, stop := w.start()
	idle, writing, leaving := newPod("idle", exportVolume("v", dead.Address(), "/data")), newPod("writing", exportVolume("v", dead.Address(), "/data")), newPod("leaving", exportVolume("v", dead.Address(), "/data"))
	wanted := map[string]string{}
	for _, pod := range []*v1.Pod{idle, writing, leaving} {
		if _, err := manager.SetUpPod(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
		wanted[w.volumePath(pod)] = dead.Address() + ":/data"
	}
	dead.Outlive()
	writer := exec.Command("sh", "-c", "echo started; cd "+w.volumePath(writing)+" && exec 3>big && read go && head -c 20000000 /dev/zero >&3; sync")
	in, inErr := writer.StdinPipe()
	out, outErr := writer.StdoutPipe()
	if err := errors.Join(inErr, outErr, writer.Start()); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(out, make([]byte, len("started\n"))); err != nil {
		t.Fatal(err)
	}
	for { // until it has the file open
		if _, err := os.Stat(w.volumePath(idle) + "/big"); err == nil {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	dead.Drop()
	if _, err := in.Write([]byte("go\n")); err != nil {
		t.Fatal(err)
	}
	manager.DeletePod(leaving.UID)
	bounded(t, "end of the agent", nodeSlack, func() error { stop(); return nil })
	found := w.nfsMounts(t)
	for _, mounts := range []map[string]string{wanted, found} {
		delete(mounts, w.volumePath(leaving)) // gone or not
	}
	if diff := cmpDiff(wanted, found); diff != "" {
		t.Errorf("mount table (-want +got):\n%s", diff)
	}
	if t.Failed() {
		return
	}
	os.Stdout.WriteString(shutsDown + "\n")
	if err := unix.Kill(1, unix.SIGUSR2); err != nil {
		t.Fatal(err)
	}
	time.Sleep(2 * powerOffLimit)
	t.Error("the machine is still there")
}
