package volumetest

import (
	"os"

	"golang.org/x/sys/unix"
)

// memoryDir is in memory on most machines.
const memoryDir = "/dev/shm"

// TempDir is that of testing.TB, in memory where there is such a directory,
// unless TMPDIR says where to be or mounts are real: a run makes and removes
// thousands of files, which takes a disk seconds.
func (k *kit) TempDir() string {
	k.Helper()
	if k.on == onKernel || os.Getenv("TMPDIR") != "" || !isMemory(memoryDir) {
		return k.reporter.TempDir()
	}
	dir, err := os.MkdirTemp(memoryDir, "volumetest-")
	if err != nil { // it may be closed to this user
		return k.reporter.TempDir()
	}
	k.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			k.Errorf("removing the check's directory: %v", err)
		}
	})
	return dir
}

func isMemory(dir string) bool {
	var st unix.Statfs_t
	return unix.Statfs(dir, &st) == nil && st.Type == unix.TMPFS_MAGIC
}
