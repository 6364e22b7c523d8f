package main

import (
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/testenv/terminal"
)

func TestRunAtATerminal(t *testing.T) {
	startsWithSignals(t, unix.SIGINT, unix.SIGQUIT)
	for name, user := range map[string]func(*testing.T) *runner{"own": ownProcess, "ordinary": asOrdinaryUser} {
		t.Run(name, func(t *testing.T) {
			if name == "own" && os.Geteuid() != 0 {
				user = asOrdinaryUser
			}
			r := user(t)
			file := openFile(t, withoutIDs)
			start := func(args ...string) (*exec.Cmd, *os.File) {
				typist, program := terminal.Open(t)
				c := r.command(t, append([]string{"run", "-f", file, "--"}, args...)...)
				c.Stdin, c.Stdout, c.Stderr = program, program, program
				c.SysProcAttr.Setsid, c.SysProcAttr.Setctty = true, true
				if err := c.Start(); err != nil {
					t.Fatal(err)
				}
				program.Close()
				stuck := time.AfterFunc(patience, func() { _ = c.Process.Kill() })
				t.Cleanup(func() { stuck.Stop() })
				return c, typist
			}
			// The terminal's own signal arrives once, not once more from podvol.
			c, typist := start("sh", "-c", `n=0; trap 'n=$((n+1)); echo caught $n' INT; echo ready; read line; read line; echo $n times; exit $n`)
			waitFor(t, typist, "ready\r\n")
			if _, err := typist.WriteString("\x03"); err != nil {
				t.Fatal(err)
			}
			waitFor(t, typist, "caught 1\r\n")
			if _, err := typist.WriteString("one\ntwo\n"); err != nil {
				t.Fatal(err)
			}
			waitFor(t, typist, "1 times\r\n")
			_ = c.Wait()
			if code := c.ProcessState.ExitCode(); code != 1 {
				t.Errorf("exit code %d", code)
			}
			// An interactive shell has job control. (By itself it would not exit with a
			// stopped job.)
			c, typist = start("sh", "-ic", `set -m; echo shell $$; sh -c "echo started; exec sleep 100" & fg > /dev/null; echo stopped by $?; kill -KILL %1; exec sh -c "exit 5"`)
			waitFor(t, typist, "shell ")
			shell, err := strconv.Atoi(strings.TrimSpace(waitFor(t, typist, "\n")))
			if err != nil {
				t.Fatal(err)
			}
			waitFor(t, typist, "started\r\n")
			for group := c.Process.Pid; group == c.Process.Pid || group == shell; group = inForegroundOf(t, typist) {
				time.Sleep(time.Millisecond) // a shell tells nobody when it has handed the terminal over
			}
			if _, err := typist.WriteString("\x1a"); err != nil {
				t.Fatal(err)
			}
			waitFor(t, typist, "stopped by 148\r\n")
			_ = c.Wait()
			if code := c.ProcessState.ExitCode(); code != 5 {
				t.Errorf("exit code %d", code)
			}
			r.assertNothingLeft(t)
		})
	}
}

func inForegroundOf(t *testing.T, terminal *os.File) int {
	t.Helper()
	group, err := unix.IoctlGetInt(int(terminal.Fd()), unix.TIOCGPGRP)
	if err != nil {
		t.Fatal(err)
	}
	return group
}
