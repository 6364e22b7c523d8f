package mount

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// nfsServerTools returns a directory with Debian's NFS server and what it is
// linked with, unpacked there once and not installed: this node shall neither
// serve NFS nor have the helpers.
func nfsServerTools(t *testing.T) string {
	t.Helper()
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	cache = filepath.Join(cache, "podvol")
	dir := filepath.Join(cache, "nfsserver")
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		return dir
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		t.Fatal(err)
	}
	work, err := os.MkdirTemp(cache, "nfsserver-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(work) })
	tree := filepath.Join(work, "tree")
	aptOutput(t, work, "apt-get", append([]string{"download", "-q"}, nfsServerPackages(t)...)...)
	files, err := filepath.Glob(filepath.Join(work, "*.deb"))
	if err != nil || len(files) == 0 {
		t.Fatalf("nothing was fetched: %v", err)
	}
	for _, file := range files {
		aptOutput(t, work, "dpkg", "-x", file, tree)
	}
	if err := os.Rename(tree, dir); err != nil && !errors.Is(err, fs.ErrExist) {
		t.Fatal(err)
	}
	return dir
}

// nfsServerPackages are the server's and every library below them.
func nfsServerPackages(t *testing.T) []string {
	t.Helper()
	packages := []string{"nfs-kernel-server", "nfs-common", "rpcbind"}
	args := []string{"depends", "--recurse", "--no-recommends", "--no-suggests", "--no-conflicts", "--no-breaks", "--no-replaces", "--no-enhances", "--no-pre-depends"}
	for line := range strings.Lines(aptOutput(t, ".", "apt-cache", append(args, packages...)...)) {
		name := strings.TrimSpace(line)
		if strings.HasPrefix(line, "lib") && !strings.Contains(name, ":") && !strings.Contains(name, "perl") {
			packages = append(packages, name)
		}
	}
	return packages
}

func aptOutput(t *testing.T, dir, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	cmd.Stderr = t.Output()
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %s: %v (apt-get update fetches the lists)", name, strings.Join(args, " "), err)
	}
	return string(out)
}
