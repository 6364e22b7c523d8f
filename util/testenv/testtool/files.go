package testtool

import (
	"os"
	"path/filepath"
	"testing"
)

// Must ends a test for an error.
func Must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// MkdirAll makes a directory, and its parents, and returns its path.
func MkdirAll(t testing.TB, elem ...string) string {
	t.Helper()
	dir := filepath.Join(elem...)
	Must(t, os.MkdirAll(dir, 0o755))
	return dir
}

// WriteFile writes a file and returns its path.
func WriteFile(t testing.TB, content string, elem ...string) string {
	t.Helper()
	path := filepath.Join(elem...)
	Must(t, os.WriteFile(path, []byte(content), 0o644))
	return path
}

// OpenFiles counts the open descriptors of this process.
func OpenFiles(t testing.TB) int {
	t.Helper()
	dir, err := os.Open("/proc/self/fd") // unlike ReadDir this also has Go's poller open its own, which stay
	Must(t, err)
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	Must(t, err)
	return len(names)
}
