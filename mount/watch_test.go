package mount_test

import (
	"context"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/util/testenv/noleak"
	"github.com/podvol/podvol/util/testenv/nstest"
)

func TestSubscribe(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		table, err := mount.KernelTable()
		if err != nil {
			t.Fatal(err)
		}
		before := goleak.IgnoreCurrent()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		changes := table.Subscribe(ctx)
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
		doMount(t, tmpfsAt(dir))
		wait("a mount")
		doMount(t, mount.Request{Target: dir, FSType: "tmpfs", Options: []string{"remount", "ro"}})
		wait("a remount")
		if err := unmountNow(t, dir); err != nil {
			t.Fatal(err)
		}
		wait("an unmount")
		for range 50 { // coalesced: nobody receives, nothing blocks
			doMount(t, tmpfsAt(dir))
			if err := unmountNow(t, dir); err != nil {
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
	table, err := mount.KernelTable()
	if err != nil {
		t.Fatal(err)
	}
	openFiles := func() int {
		dir, err := os.Open("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		defer dir.Close()
		names, err := dir.Readdirnames(-1) // with Go's poller's own, which ReadDir may be too early for
		if err != nil {
			t.Fatal(err)
		}
		return len(names)
	}
	before, goroutines := openFiles(), goleak.IgnoreCurrent()
	for range 20 {
		ctx, cancel := context.WithCancel(t.Context())
		changes := table.Subscribe(ctx)
		cancel()
		for range changes {
		}
	}
	noneLeaks(t, goroutines)
	if after := openFiles(); after > before {
		t.Errorf("%d files were left open", after-before)
	}
}
