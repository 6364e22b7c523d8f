package main

import (
	"bytes"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/testenv/nstest"
)

// slowDriver is a FlexVolume driver whose mounts last until they are released.
type slowDriver struct {
	dir             string
	called, release *os.File
}

const slowPod = `
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: shop}
spec:
  containers: [{name: c, image: i, volumeMounts: [{name: good, mountPath: /good}, {name: slow, mountPath: /slow}]}]
  volumes: [{name: good, emptyDir: {}}, {name: slow, flexVolume: {driver: example.com/slow}}]
`

func newSlowDriver(t *testing.T) *slowDriver {
	t.Helper()
	d := &slowDriver{dir: t.TempDir()}
	program := filepath.Join(d.dir, "example.com~slow", "slow")
	must(t, os.Mkdir(filepath.Dir(program), 0o755))
	fifo := func(name string) (string, *os.File) {
		path := filepath.Join(t.TempDir(), name)
		must(t, unix.Mkfifo(path, 0o600))
		file, err := os.OpenFile(path, os.O_RDWR, 0)
		must(t, err)
		t.Cleanup(func() { file.Close() })
		return path, file
	}
	calledPath, called := fifo("called")
	releasePath, release := fifo("release")
	d.called, d.release = called, release
	script := "#!/bin/sh\ncase $1 in\n" +
		"init) echo '{\"status\":\"Success\",\"capabilities\":{\"attach\":false}}' ;;\n" +
		"mount) echo > " + calledPath + "; read line < " + releasePath + "; echo '{\"status\":\"Failure\",\"message\":\"released\"}' ;;\n" +
		"*) echo '{\"status\":\"Not supported\"}' ;;\nesac\n"
	must(t, os.WriteFile(program, []byte(script), 0o755))
	return d
}

// interrupt starts podvol, sends it one SIGINT while the driver mounts, and returns what it said.
func (d *slowDriver) interrupt(t *testing.T, c *exec.Cmd) (out, errOut string) {
	t.Helper()
	var o, e bytes.Buffer
	c.Stdout, c.Stderr = &o, &e
	must(t, c.Start())
	stuck := time.AfterFunc(patience, func() { _ = c.Process.Kill() })
	defer stuck.Stop()
	must(t, d.called.SetReadDeadline(time.Now().Add(patience)))
	if _, err := d.called.Read(make([]byte, 1)); err != nil {
		t.Errorf("the driver was not called: %v", err)
	}
	must(t, c.Process.Signal(unix.SIGINT))
	_ = c.Wait()
	_, err := d.release.WriteString("\n")
	must(t, err)
	return o.String(), e.String()
}

func TestAnInterruptIsSummedUpOnce(t *testing.T) {
	startsWithSignals(t, unix.SIGINT)
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		driver, r := newSlowDriver(t), ownProcess(t)
		file := openFile(t, slowPod)
		c := r.command(t, "mount", "-f", file, "--flexvolume-dir", driver.dir)
		out, errOut := driver.interrupt(t, c)
		if code := c.ProcessState.ExitCode(); code != exitFailed || !strings.Contains(out, "good        mounted") || !strings.Contains(out, "slow        pending") {
			t.Errorf("exit code %d\n%s", code, out)
		}
		if !strings.HasPrefix(errOut, "podvol: interrupted; 1 of 2 volumes are mounted, not: shop/web slow. The same command goes on with the rest. To unmount what is there: ") ||
			!strings.Contains(errOut, " unmount -f "+file) || strings.Count(errOut, "\n") != 1 {
			t.Errorf("stderr: %s", errOut)
		}
	})
}

// The signal that ends the set-up does not end the tear-down, too. The driver of the volume
// takes connections and never answers.
func TestAnInterruptedRunLeavesNothing(t *testing.T) {
	startsWithSignals(t, unix.SIGINT)
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		silent, err := net.Listen("unix", filepath.Join(t.TempDir(), "csi.sock"))
		must(t, err)
		defer silent.Close()
		notes, err := os.ReadFile("../../testdata/csi/notes.yaml")
		must(t, err)
		r := ownProcess(t)
		c := r.command(t, "run", "-f", openFile(t, string(notes)), "--csi-driver", "csitest.podvol.io="+silent.Addr().String(), "--", "echo", "it ran")
		var said bytes.Buffer
		c.Stdout, c.Stderr = &said, &said
		must(t, c.Start())
		stuck := time.AfterFunc(patience, func() { _ = c.Process.Kill(); silent.Close() })
		defer stuck.Stop()
		if connection, err := silent.Accept(); err != nil {
			t.Errorf("the driver was not called: %v", err)
		} else {
			defer connection.Close()
		}
		must(t, c.Process.Signal(unix.SIGINT))
		_ = c.Wait()
		if code := c.ProcessState.ExitCode(); code != exitRunFailed || !strings.HasSuffix(said.String(), "before the command was run\n") || strings.Count(said.String(), "\n") != 1 {
			t.Errorf("exit code %d: %s", code, &said)
		}
		assertNothingMountedBelow(t, r.base())
		if left, err := os.ReadDir(filepath.Join(r.base(), "podvol", "runs")); err == nil && len(left) > 0 {
			t.Errorf("the run has left %v", left)
		}
	})
}
