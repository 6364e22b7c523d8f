package mount_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	k8smount "k8s.io/mount-utils"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/mount/host"
	"github.com/podvol/podvol/mount/table"
)

// Mounting, asking and unmounting are the same on the host, where the mounter
// comes from host.New, and on the fake.
func Example() {
	dir, err := os.MkdirTemp("", "podvol-example-")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.Remove(dir)
	target := filepath.Join(dir, "cache")
	if err := os.Mkdir(target, 0o755); err != nil {
		fmt.Println(err)
		return
	}
	defer os.Remove(target)

	// README: begin
	fake := fakemount.New() // host.New(host.Config{}) mounts for real
	defer fake.Close()
	var mounter mount.Interface = fake

	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	err = mount.Mount(ctx, mounter, mount.Request{
		Source: "scratch", Target: target, FSType: "tmpfs", Options: []string{"size=1m", "nosuid"},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	entry, mounted, err := table.Of(mounter).At(target)
	fmt.Println(entry.FSType, "from", entry.Source, "is mounted:", mounted, err)

	rung, err := mount.Unmount(ctx, mounter, target, mount.UnmountOptions{ForceAfter: 30 * time.Second, LazyAfter: time.Minute})
	// README: end
	fmt.Println("unmounted by the", rung, "rung:", err)
	// Output:
	// tmpfs from scratch is mounted: true <nil>
	// unmounted by the normal rung: <nil>
}

// The host's mounter takes the place of mount-utils' in code that knows nothing
// of podvol.
func ExampleNew_dropIn() {
	var mounter k8smount.Interface = host.New(host.Config{})
	mounted, err := mounter.IsMountPoint("/proc")
	fmt.Println(mounted, err)
	// Output: true <nil>
}

// An error says what failed and why, and what to do about it.
func ExampleError() {
	mounter := host.New(host.Config{Via: host.ViaSystemCalls})
	err := mount.Mount(context.Background(), mounter, mount.Request{
		Source: "scratch", Target: "/does/not/exist", FSType: "tmpfs",
	})
	if e, ok := errors.AsType[*mount.Error](err); ok && errors.Is(err, mount.ErrNoTarget) {
		fmt.Println(e.Cause)
		fmt.Println(e.Advice())
		fmt.Println("may still happen:", e.Uncertain)
	}
	// Output:
	// the mount point does not exist
	// Create /does/not/exist first.
	// may still happen: false
}

// A mounter that was written for mount-utils is wrapped once.
func ExampleMount_wrapped() {
	var mounter mount.Interface = host.Wrap(k8smount.New(""), nil)
	err := mount.Mount(context.Background(), mounter, mount.Request{
		Source: "scratch", Target: "relative", FSType: "tmpfs",
	})
	fmt.Println(errors.Is(err, mount.ErrNoTarget))
	entry, mounted, err := table.Of(mounter).At("/proc")
	fmt.Println(entry.FSType, mounted, err)
	// Output:
	// true
	// proc true <nil>
}
