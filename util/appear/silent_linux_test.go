package appear

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/util/testenv/silentfuse"
)

// silentServer mounts a file server that does not answer, until the test ends.
func silentServer(t *testing.T) (server *silentfuse.Server, dir string) {
	t.Helper()
	dir = t.TempDir()
	server, err := silentfuse.Mount("of-the-test", dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		server.Close()
		_ = unix.Unmount(dir, unix.MNT_DETACH)
	})
	server.FallSilent()
	return server, dir
}

// A file server that does not answer does not keep the kernel open, and so no Run from its end.
func TestRunEndsBesideASilentServer(t *testing.T) {
	silentfuse.Need(t)
	nstest.Run(t, func(t *testing.T) {
		server, dir := silentServer(t)
		k, err := newKernel(func(string) {}, func() {})
		if err != nil {
			t.Fatal(err)
		}
		added, closed := make(chan struct{}), make(chan struct{})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		go func() {
			defer close(added)
			k.watch("path", dir+"/sub", "missing")
		}()
		select {
		case <-server.Asked():
		case <-ctx.Done():
			t.Fatal("the server is not asked")
		}
		go func() {
			defer close(closed)
			k.close()
		}()
		select {
		case <-closed:
		case <-ctx.Done():
			t.Error("closing waits for a server that does not answer")
		}
		server.Close()
		<-added
		<-closed
	})
}

// What is not awaited any more is not watched any more, also while a server does not answer.
func TestWatchesEndBesideASilentServer(t *testing.T) {
	silentfuse.Need(t)
	nstest.Run(t, func(t *testing.T) {
		server, dir := silentServer(t)
		changed := make(chan string, 1)
		k, err := newKernel(func(path string) { changed <- path }, func() {})
		if err != nil {
			t.Fatal(err)
		}
		defer k.close()
		added := make(chan struct{})
		defer func() { server.Close(); <-added }()
		go func() {
			defer close(added)
			k.watch("silent", dir+"/sub", "missing")
		}()
		select {
		case <-server.Asked():
		case <-time.After(time.Minute):
			t.Fatal("the server is not asked")
		}
		parent := t.TempDir()
		for i := range 50 {
			path := filepath.Join(parent, strconv.Itoa(i))
			if err := os.Mkdir(path, 0o700); err != nil || !k.watch(path, path, "x") {
				t.Fatal(err)
			}
			if i > 0 {
				k.forget(path)
			}
		}
		if n := watchesOfProcess(t); n != 1 {
			t.Errorf("%d watches are left, want 1", n)
		}
		left := filepath.Join(parent, "0")
		if err := os.WriteFile(filepath.Join(left, "x"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if path := <-changed; path != left {
			t.Errorf("told of %s, want %s", path, left)
		}
	})
}

func watchesOfProcess(t *testing.T) (n int) {
	t.Helper()
	files, err := filepath.Glob("/proc/self/fdinfo/*")
	if err != nil || len(files) == 0 {
		t.Fatal(err)
	}
	seen := make(map[string]bool)
	for _, file := range files {
		info, err := os.ReadFile(file)
		if err != nil {
			continue // the one of the glob
		}
		for line := range strings.Lines(string(info)) {
			if strings.HasPrefix(line, "inotify wd:") {
				seen[line] = true // a hanging call has a descriptor of its own for the same instance
			}
		}
	}
	return len(seen)
}
