package rootdir

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// ProcDir is where processes are looked up.
const ProcDir = "/proc"

// Processes lists the ids of all processes that can be seen.
func Processes(proc string) (pids []int) {
	entries, err := os.ReadDir(proc)
	if err != nil {
		return nil
	}
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// CommandOf is the name of a process's program, empty if it is gone.
func CommandOf(proc string, pid int) string {
	text, err := os.ReadFile(filepath.Join(proc, strconv.Itoa(pid), "comm"))
	if err != nil {
		return ""
	}
	return strings.TrimSuffix(string(text), "\n")
}

// ErrKubeletRuns says that a kubelet runs on this machine.
var ErrKubeletRuns = errors.New("a kubelet runs on this machine; stop it before its volumes are adopted")

// RefuseKubelet fails with [ErrKubeletRuns] while a process called kubelet runs.
func RefuseKubelet(proc string) error {
	for _, pid := range Processes(proc) {
		if CommandOf(proc, pid) == "kubelet" {
			return fmt.Errorf("%w (process %d)", ErrKubeletRuns, pid)
		}
	}
	return nil
}
