package rooms

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// portable are packages that build for every system, because programs that mount
// nothing use them: they read a volume's files as bytes, or check manifests.
func portable() []string {
	return []string{
		"volume", "volume/claimbinding", "volume/containerenv", "volume/fileset", "volume/internal/downward", "volume/internal/payload", "volume/objects", "volume/objects/manifest", "volume/podfiles",
		"volume/validation",
	}
}

func TestPortablePackages(t *testing.T) {
	var paths []string
	for _, path := range portable() {
		paths = append(paths, module+"/"+path)
	}
	for _, p := range goList(t, append([]string{"-deps"}, paths...)...) {
		if path, ours := inModule(p.ImportPath); ours && strings.HasPrefix(path+"/", "mount/") || slices.Contains(p.Imports, "golang.org/x/sys/unix") && ours {
			t.Errorf("%s is needed by a package for every system; it is for Linux", path)
		}
	}
	for _, system := range []string{"darwin", "freebsd", "windows"} {
		build := exec.Command("go", append([]string{"build", module + "/volume/atomicdir", module + "/volume/objects/cluster", module + "/examples/renderpod"}, paths...)...)
		build.Dir = "../.."
		build.Env = append(os.Environ(), "GOOS="+system, "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			t.Errorf("for %s: %v\n%s", system, err, strings.TrimSpace(string(out)))
		}
	}
}

// A set of files is described, and written into a directory, without anything of Kubernetes:
// programs that have none of it use these packages, too.
func TestFileSetsNeedNoKubernetes(t *testing.T) {
	for _, p := range goList(t, "-deps", module+"/volume/atomicdir", module+"/volume/fileset") {
		if _, ours := inModule(p.ImportPath); !ours && strings.Contains(p.ImportPath, ".") && !strings.HasPrefix(p.ImportPath, "golang.org/x/sys") && !p.Standard {
			t.Errorf("they are built with %s", p.ImportPath)
		}
	}
}
