package format_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount/format"
	"github.com/podvol/podvol/mount/host"
	"github.com/podvol/podvol/util/testenv/loopdev"
)

func TestAMountedFileSystemGrowsWithItsDevice(t *testing.T) {
	onHost(t, func(t *testing.T) {
		for _, fstype := range []string{"ext3", "ext4", "xfs", "btrfs"} {
			t.Run(fstype, func(t *testing.T) {
				needMkfs(t, fstype)
				d, target, f := loopdev.New(t, roomy), t.TempDir(), formatter()
				if _, err := f.FormatAndMount(t.Context(), request(d.Path, target, fstype)); err != nil {
					t.Fatal(err)
				}
				defer unmount(t, target)
				if needs, err := f.NeedsResize(t.Context(), d.Path, target); err != nil || needs {
					t.Errorf("as it was made, it needs a resize: %v, %v", needs, err)
				}
				d.Resize(t, 2*roomy)
				if needs, err := f.NeedsResize(t.Context(), d.Path, target); err != nil || !needs {
					t.Errorf("with more room, it needs a resize: %v, %v", needs, err)
				}
				grown, err := f.Resize(t.Context(), d.Path, target)
				if strings.HasPrefix(fstype, "ext") && !mayGrowExt(t) {
					e, _ := errors.AsType[*format.Error](err)
					if !errors.Is(err, format.ErrResizeFailed) || !strings.Contains(e.Advice(), "CAP_SYS_RESOURCE") {
						t.Errorf("without CAP_SYS_RESOURCE: %v", err)
					}
					return
				}
				if got := capacity(t, target); err != nil || !grown || got < 2*roomy*3/4 {
					t.Errorf("grown: %v to %d MiB, %v", grown, got/mib, err)
				}
				if needs, err := f.NeedsResize(t.Context(), d.Path, target); err != nil || needs {
					t.Errorf("afterwards, it needs a resize: %v, %v", needs, err)
				}
				if grown, err := f.Resize(t.Context(), d.Path, target); err != nil || grown {
					t.Errorf("again: %v, %v", grown, err)
				}
			})
		}
	})
}

// mayGrowExt reports whether the kernel lets this process grow a mounted ext4.
func mayGrowExt(t *testing.T) bool {
	t.Helper()
	var caps [2]unix.CapUserData
	if err := unix.Capget(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &caps[0]); err != nil {
		t.Fatal(err)
	}
	return caps[0].Effective&(1<<unix.CAP_SYS_RESOURCE) != 0
}

func TestAnUnmountedExtGrowsWithItsDevice(t *testing.T) {
	onHost(t, func(t *testing.T) {
		for _, fstype := range []string{"ext2", "ext4"} {
			d, target, f := loopdev.New(t, 64*mib), t.TempDir(), formatter()
			run(t, "mkfs."+fstype, "-F", d.Path)
			d.Resize(t, 128*mib)
			if grown, err := f.Resize(t.Context(), d.Path, target); err != nil || !grown {
				t.Errorf("%s: %v, %v", fstype, grown, err)
			}
			if grown, err := f.Resize(t.Context(), d.Path, target); err != nil || grown {
				t.Errorf("%s, again: %v, %v", fstype, grown, err)
			}
			if err := unix.Mount(d.Path, target, fstype, 0, ""); err != nil {
				t.Fatal(err)
			}
			if got := capacity(t, target); got < 96*mib {
				t.Errorf("%s has %d MiB", fstype, got/mib)
			}
			unmount(t, target)
		}
	})
}

// capacity is what statfs(2) shows, in bytes.
func capacity(t *testing.T, target string) int64 {
	t.Helper()
	var st unix.Statfs_t
	if err := unix.Statfs(target, &st); err != nil {
		t.Fatal(err)
	}
	return int64(st.Blocks) * st.Bsize
}

func TestWhatCannotGrow(t *testing.T) {
	onHost(t, func(t *testing.T) {
		f, dir := formatter(), t.TempDir()
		blank := loopdev.New(t, 8*mib)
		if needs, err := f.NeedsResize(t.Context(), blank.Path, dir); needs || err != nil {
			t.Errorf("blank: %v, %v", needs, err)
		}
		if grown, err := f.Resize(t.Context(), blank.Path, dir); grown || err != nil {
			t.Errorf("blank: %v, %v", grown, err)
		}
		swap := loopdev.New(t, 8*mib)
		run(t, "mkswap", swap.Path)
		if _, err := f.Resize(t.Context(), swap.Path, dir); !errors.Is(err, format.ErrNotSupported) {
			t.Errorf("swap: %v", err)
		}
		if _, err := f.NeedsResize(t.Context(), dir, dir); !errors.Is(err, format.ErrNotBlockDevice) {
			t.Errorf("a directory: %v", err)
		}
		ext4 := loopdev.New(t, 64*mib)
		run(t, "mkfs.ext4", "-F", ext4.Path)
		protected := loopdev.Of(t, ext4.Backing, unix.LO_FLAGS_READ_ONLY)
		ext4.Resize(t, 128*mib)
		if needs, err := f.NeedsResize(t.Context(), protected.Path, dir); needs || err != nil {
			t.Errorf("write-protected: %v, %v", needs, err)
		}
		none := format.New(format.Config{Mounter: host.New(host.Config{}), ToolDirs: []string{dir}})
		if _, err := none.Resize(t.Context(), ext4.Path, dir); !errors.Is(err, format.ErrToolMissing) {
			t.Errorf("without resize2fs: %v", err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := f.Resize(ctx, ext4.Path, dir); !errors.Is(err, format.ErrCanceled) {
			t.Errorf("with a context that has ended: %v", err)
		}
		// Another's size is never taken for that of what is mounted, and no other is grown.
		one, other := loopdev.New(t, roomy), loopdev.New(t, roomy)
		for _, fstype := range []string{"xfs", "btrfs", "ext4"} {
			for _, d := range []*loopdev.Device{one, other} {
				run(t, "wipefs", "-a", d.Path)
				run(t, "mkfs."+fstype, d.Path)
			}
			if err := unix.Mount(other.Path, dir, fstype, 0, ""); err != nil {
				t.Fatal(err)
			}
			if _, err := f.NeedsResize(t.Context(), one.Path, dir); !errors.Is(err, format.ErrUnreadable) {
				t.Errorf("%s, mounted elsewhere: %v", fstype, err)
			}
			unmount(t, dir)
		}
	})
}
