package kubeletroot

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Kubelet finds a process called kubelet, in a directory like /proc.
func Kubelet(proc string) (pid int, runs bool) {
	entries, err := os.ReadDir(proc)
	if err != nil {
		return 0, false
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if name, err := os.ReadFile(filepath.Join(proc, e.Name(), "comm")); err == nil && strings.TrimSuffix(string(name), "\n") == "kubelet" {
			return pid, true
		}
	}
	return 0, false
}
