package image_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/fakehost"
	"github.com/podvol/podvol/volume/plugins/image"
)

// run has the plugin work beside its volumes, until stop is called.
func (n *node) run(t *testing.T) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- volume.RunPlugin(ctx, n.plugin, nil) }()
	synctest.Wait()
	return func() {
		t.Helper()
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

// The last image goes, too, when it has been unused for long enough: without another volume,
// and also when the process has been another one meanwhile.
func TestUnusedImagesGoInTime(t *testing.T) {
	for name, restarts := range map[string]bool{"one process": false, "two processes": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNode(t, image.Config{Transport: silent{}, UnusedBytes: -1, UnusedFor: time.Hour, Layouts: []string{layoutOf(t, file("f", "1"))}})
				stop := n.run(t)
				pod := fakehost.Pod("p")
				n.mustSetUp(t, pod, "v", "r.test/web:1", v1.PullNever)
				time.Sleep(2 * time.Hour)
				n.tearDown(t, pod, "v")
				if restarts {
					stop()
					n.restart(t)
					stop = n.run(t)
				}
				time.Sleep(time.Hour - time.Second)
				if got := n.kept(t, "images"); len(got) != 2 {
					t.Errorf("soon after their use the images are %q", got)
				}
				time.Sleep(time.Second)
				synctest.Wait()
				if _, err := os.Stat(n.GetPluginDir(image.PluginName)); err == nil {
					t.Errorf("images %q, layers %q are left", n.kept(t, "images"), n.kept(t, "layers"))
				}
				stop()
			})
		})
	}
}

// What a process that was killed amid a pull has left goes when the next one starts.
func TestLeftoversGoAtStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, image.Config{Transport: silent{}})
		half := filepath.Join(n.GetPluginDir(image.PluginName), "tmp", "layers-1", "half")
		if err := os.MkdirAll(half, 0o700); err != nil {
			t.Fatal(err)
		}
		stop := n.run(t)
		if _, err := os.Stat(half); err == nil {
			t.Error("half a layer is left")
		}
		stop()
	})
}
