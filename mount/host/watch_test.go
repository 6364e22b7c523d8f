package host_test

import (
	"context"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/util/testenv/mounttest"
	"github.com/podvol/podvol/util/testenv/noleak"
	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/util/testenv/testtool"
)

func TestSubscribe(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		shown := table.Kernel()
		before := goleak.IgnoreCurrent()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		changes := shown.Subscribe(ctx)
		dir := t.TempDir()
		wait := func(what string) {
			t.Helper()
			select {
			case _, open := <-changes:
				if !open {
					t.Fatalf("%s: the channel is closed", what)
				}
			case <-time.After(time.Minute):
				t.Fatalf("%s went unnoticed", what)
			}
		}
		mounttest.Mount(t, mounttest.Tmpfs(dir))
		wait("a mount")
		mounttest.Mount(t, mount.Request{Target: dir, FSType: "tmpfs", Options: []string{"remount", "ro"}})
		wait("a remount")
		if err := mounttest.Unmount(t, dir); err != nil {
			t.Fatal(err)
		}
		wait("an unmount")
		for range 50 { // coalesced: without a receiver nothing blocks
			mounttest.Mount(t, mounttest.Tmpfs(dir))
			if err := mounttest.Unmount(t, dir); err != nil {
				t.Fatal(err)
			}
		}
		wait("many mounts")
		cancel()
		for range changes { // ends when the channel is closed
		}
		noneLeaks(t, before)
	})
}

// noneLeaks fails the test if goroutines stay.
func noneLeaks(t *testing.T, options ...goleak.Option) {
	t.Helper()
	if err := noleak.Find(options...); err != nil {
		t.Error(err)
	}
}

func TestSubscribeLeavesNothing(t *testing.T) {
	mounts := table.Kernel()
	before, goroutines := testtool.OpenFiles(t), goleak.IgnoreCurrent()
	for range 20 {
		ctx, cancel := context.WithCancel(t.Context())
		changes := mounts.Subscribe(ctx)
		cancel()
		for range changes {
		}
	}
	noneLeaks(t, goroutines)
	if after := testtool.OpenFiles(t); after > before {
		t.Errorf("%d files were left open", after-before)
	}
}
