package nodeserver

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"github.com/podvol/podvol/examples/nodehttp"
)

// listen serves a socket in a directory; dead: as a killed process leaves it.
func listen(t *testing.T, path string, dead bool) {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(!dead)
	if dead {
		err = l.Close()
	} else {
		t.Cleanup(func() { _ = l.Close() })
	}
	if err != nil {
		t.Fatal(err)
	}
}

// Of the sockets of other roots those go that a killed process has left.
func TestSocketsOfKilledProcessesGo(t *testing.T) {
	dir, err := os.MkdirTemp("", "s") // a socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	listen(t, filepath.Join(dir, "dead.sock"), true)
	listen(t, filepath.Join(dir, "live.sock"), false)
	if err := os.WriteFile(filepath.Join(dir, "file.sock"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	unlock, err := sweep(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	left, err := filepath.Glob(filepath.Join(dir, "*"))
	if want := []string{filepath.Join(dir, "file.sock"), filepath.Join(dir, "live.sock")}; !slices.Equal(left, want) || err != nil {
		t.Errorf("left are %q, %v", left, err)
	}
	// A node of the same path, in another mount namespace.
	if server, err := nodehttp.ListenSocket(t.Context(), filepath.Join(dir, "live.sock")); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("%v, %v", server, err)
	}
	listen(t, filepath.Join(dir, "own.sock"), true)
	server, err := nodehttp.ListenSocket(t.Context(), filepath.Join(dir, "own.sock"))
	if err != nil {
		t.Fatal(err)
	}
	server.Close()
}
