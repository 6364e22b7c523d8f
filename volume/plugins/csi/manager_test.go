package csi_test

import (
	"context"
	"sync"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/mount/host"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/plugins/csi"
	"github.com/podvol/podvol/volume/selinux"
	"github.com/podvol/podvol/volume/volumemanager"
	"github.com/podvol/podvol/volume/volumetest/csitest"
)

// caller is podvol's manager, as the suite wants it.
type caller struct {
	manager *volumemanager.Manager
	plugin  *csi.Plugin
	stopped context.Context
	stop    context.CancelFunc
	done    chan error
}

// SetUp asks again after each failed attempt, of which the manager tells.
func (c *caller) SetUp(ctx context.Context, pod *v1.Pod) (map[string]string, error) {
	for {
		volumes, err := c.manager.SetUpPod(ctx, pod)
		paths := make(map[string]string)
		for _, s := range volumes.Volumes {
			paths[s.Volume] = s.Path
		}
		if err == nil || ctx.Err() != nil || c.stopped.Err() != nil {
			return paths, err
		}
	}
}

func (c *caller) TearDown(ctx context.Context, uid types.UID) error {
	for {
		err := c.manager.TearDownPod(ctx, uid)
		if err == nil || ctx.Err() != nil || c.stopped.Err() != nil {
			return err
		}
	}
}

// VolumeStats asks again as well.
func (c *caller) VolumeStats(ctx context.Context, uid types.UID, name string) error {
	for {
		_, err := c.manager.Metrics(ctx, uid, name)
		if err == nil || ctx.Err() != nil || c.stopped.Err() != nil {
			return err
		}
	}
}

func (c *caller) Kill() { c.stop() }

// The suite for callers of drivers, for the manager with the plugin.
func TestManagerCallsDriversWell(t *testing.T) {
	var mu sync.Mutex
	last := make(map[string]*caller) // by root directory
	csitest.Run(t, func(t *testing.T, n csitest.Node) csitest.Caller {
		mu.Lock()
		defer mu.Unlock()
		if before := last[n.RootDir]; before != nil {
			<-before.done
			before.plugin.Close()
		}
		plugin, err := csi.New(csi.Config{Drivers: n.Drivers, RegistryDir: n.RegistryDir, Republish: n.Republish})
		if err != nil {
			t.Fatal(err)
		}
		store := objects.NewStore()
		if err := store.Load(t.Context(), 0, n.Objects...); err != nil {
			t.Fatal(err)
		}
		manager, err := volumemanager.New(volumemanager.Config{RootDir: n.RootDir, NodeName: "node1", Objects: store, Tokens: n.Tokens, SELinux: selinux.Policy{Labels: n.Labels},
			Plugins: []volume.VolumePlugin{plugin}, Mounter: host.New(host.Config{})})
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(context.Background())
		c := &caller{manager: manager, plugin: plugin, stopped: ctx, stop: stop, done: make(chan error, 1)}
		go func() {
			c.done <- manager.Run(ctx)
			close(c.done)
		}()
		t.Cleanup(func() {
			stop()
			if err := <-c.done; err != nil {
				t.Error(err)
			}
			plugin.Close()
		})
		last[n.RootDir] = c
		return c
	})
}
