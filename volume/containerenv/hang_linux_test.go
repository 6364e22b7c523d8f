package containerenv_test

import (
	"context"
	"errors"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/util/testenv/silentfuse"
	"github.com/podvol/podvol/volume/containerenv"
)

// A container that mounts a file system that hangs in its emptyDir holds nobody up beyond the
// context.
func TestAFileSystemThatHangsIsNotWaitedForBeyondTheContext(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		silentfuse.Need(t)
		p, from, dir := fileNode(t)
		hung := filepath.Join(dir, "sub")
		server, err := silentfuse.Mount("silent", hung)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			server.Close()
			_ = unix.Unmount(hung, unix.MNT_DETACH)
		})
		server.FallSilent()
		ctx, cancel := context.WithCancel(t.Context())
		c := container(t, "env: [{name: A, valueFrom: {fileKeyRef: {volumeName: v, path: sub/env, key: A}}}, {name: B, valueFrom: {fileKeyRef: {volumeName: v, path: sub/env, key: B, optional: true}}}]")
		ended := make(chan error, 1)
		go func() {
			_, err := containerenv.Resolve(ctx, p, c, from)
			ended <- err
		}()
		<-server.Asked()
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("it ended with %v", err)
		}
	})
}
