package appear

import (
	"context"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/util/testenv/silentfuse"
)

// A file server that does not answer does not keep the kernel open, and so no Run from its end.
func TestRunEndsBesideASilentServer(t *testing.T) {
	silentfuse.Need(t)
	nstest.Run(t, func(t *testing.T) {
		dir := t.TempDir()
		server, err := silentfuse.Mount("of-the-test", dir)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Unmount(dir, unix.MNT_DETACH)
		defer server.Close()
		server.FallSilent()
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
