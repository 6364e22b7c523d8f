// Package containertest makes containers of the test binary for tests of agents that run in
// one: a root directory of its own, with the program at [Program] and the machine's
// libraries. Package sandbox is their runtime. In a test of mode nstest.Host they see the
// test as the host's process 1.
//
// It is for tests only.
package containertest

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/podvol/podvol/mount/sandbox"
	"github.com/podvol/podvol/util/testenv/testtool"
)

// Program is where a container has the test binary.
const Program = "/agent"

// Config returns a container of the test binary with these mounts. The caller may change
// it; environment and arguments are the program's. TestMain must call sandbox.Main first.
func Config(t testing.TB, mounts ...sandbox.Mount) sandbox.Config {
	t.Helper()
	root := testtool.MkdirAll(t, t.TempDir(), "rootfs")
	for _, dir := range []string{"proc", "sys", "dev", "tmp", "run", "var/lib"} {
		testtool.MkdirAll(t, root, dir)
	}
	program, err := os.Executable()
	testtool.Must(t, err)
	image := []sandbox.Mount{{Source: program, Destination: Program, ReadOnly: true, File: true}}
	for _, libraries := range []string{"/lib", "/lib64", "/usr", "/bin", "/sbin"} {
		if real, err := filepath.EvalSymlinks(libraries); err == nil {
			image = append(image, sandbox.Mount{Source: real, Destination: libraries, ReadOnly: true})
		}
	}
	return sandbox.Config{Root: root, Args: []string{Program}, Mounts: append(image, mounts...)}
}

// Run runs a container to its end, and returns its exit code and output.
func Run(t testing.TB, config sandbox.Config) (code int, out, errOut string) {
	t.Helper()
	var o, e bytes.Buffer
	config.Stdout, config.Stderr = &o, &e
	code, err := sandbox.Run(t.Context(), config)
	if err != nil {
		t.Fatalf("the container does not run: %v: %s", err, e.String())
	}
	return code, o.String(), e.String()
}
