package rootdir

import (
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
