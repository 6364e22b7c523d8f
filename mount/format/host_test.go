package format_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/format"
	"github.com/podvol/podvol/mount/host"
	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/util/eintr"
	"github.com/podvol/podvol/util/testenv/loopdev"
	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/util/testenv/testtool"
)

const (
	mib = 1 << 20
	// roomy is enough for every file system here: mkfs.xfs wants 300 MiB.
	roomy = 400 * mib
)

// onHost runs f as root, with mounts of its own. In a user namespace no device
// can be opened, so that there only the refusal can be asserted.
func onHost(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		if strings.HasSuffix(t.Name(), "/user") {
			assertDenied(t)
			return
		}
		f(t)
	})
}

func assertDenied(t *testing.T) {
	t.Helper()
	_, err := formatter().FormatAndMount(t.Context(), request("/dev/loop0", t.TempDir(), "ext4"))
	if _, ok := errors.AsType[*format.Error](err); !ok || errors.Is(err, format.ErrFormatFailed) {
		t.Errorf("without access to the device: %v", err)
	}
}

func formatter() *format.Formatter {
	return format.New(format.Config{Mounter: host.New(host.Config{})})
}

func request(device, target, fstype string, options ...string) format.Request {
	return format.Request{Request: mount.Request{Source: device, Target: target, FSType: fstype, Options: options}}
}

func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	needTool(t, name)
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
	return string(out)
}

// needTool skips the test without a program that not every machine has.
func needTool(t *testing.T, name string) {
	t.Helper()
	if testtool.Package(name) != "" {
		testtool.Need(t, name)
	}
}

// needMkfs skips the test where a file system cannot be made; mke2fs makes those
// without a name and before ext4 too.
func needMkfs(t *testing.T, fstype string) {
	t.Helper()
	if fstype == "" || strings.HasPrefix(fstype, "ext") {
		fstype = "ext4"
	}
	testtool.Need(t, "mkfs."+fstype)
}

// at returns what is mounted at target.
func at(t *testing.T, target string) (mount.Entry, bool) {
	t.Helper()
	mounts := table.Kernel()
	e, ok, err := mounts.At(target)
	if err != nil {
		t.Fatal(err)
	}
	return e, ok
}

func unmount(t *testing.T, target string) {
	t.Helper()
	if err := unix.Unmount(target, 0); err != nil {
		t.Fatal(err)
	}
}

// flush writes a device's buffers down, as blockdev(8) does.
func flush(t *testing.T, path string) {
	t.Helper()
	device, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer device.Close()
	if err := unix.IoctlSetInt(int(device.Fd()), unix.BLKFLSBUF, 0); err != nil {
		t.Fatal(err)
	}
}

// content is a digest of the whole device, to show that nothing was written.
func content(t *testing.T, d *loopdev.Device) string {
	t.Helper()
	flush(t, d.Path)
	file, err := os.Open(d.Backing)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	sum, part, zeroes := sha256.New(), make([]byte, 64<<10), make([]byte, 64<<10)
	for offset := int64(0); ; offset += int64(len(part)) {
		data, err := file.Seek(offset, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return fmt.Sprintf("%x", sum.Sum(nil))
		}
		if err != nil {
			t.Fatal(err)
		}
		offset = data - data%int64(len(part))
		n, err := file.ReadAt(part, offset)
		if err != nil && !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
		if !bytes.Equal(part[:n], zeroes[:n]) {
			fmt.Fprintln(sum, offset)
			sum.Write(part[:n])
		}
	}
}

func TestABlankDeviceIsFormattedOnceAndKeepsItsFiles(t *testing.T) {
	onHost(t, func(t *testing.T) {
		for _, fstype := range []string{"ext2", "ext3", "ext4", "xfs", "btrfs", ""} {
			t.Run("type "+fstype, func(t *testing.T) {
				needMkfs(t, fstype)
				d, target, f := loopdev.New(t, roomy), t.TempDir(), formatter()
				got, err := f.FormatAndMount(t.Context(), request(d.Path, target, fstype))
				if err != nil || !got.Formatted || got.Found != "" {
					t.Fatalf("the first time: %+v, %v", got, err)
				}
				want := fstype
				if want == "" {
					want = "ext4"
				}
				if e, _ := at(t, target); e.FSType != want || e.Source != d.Path {
					t.Errorf("mounted is %s from %s", e.FSType, e.Source)
				}
				file := filepath.Join(target, "file")
				if err := os.WriteFile(file, []byte("kept"), 0o600); err != nil {
					t.Fatal(err)
				}
				unmount(t, target)
				got, err = f.FormatAndMount(t.Context(), request(d.Path, target, fstype))
				if err != nil || got.Formatted || got.Found != want || got.Unchecked != "" || got.Corrected {
					t.Fatalf("the second time: %+v, %v", got, err)
				}
				if b, err := os.ReadFile(file); err != nil || string(b) != "kept" {
					t.Errorf("the file is %q, %v", b, err)
				}
				// While it is mounted it is mounted once more, and left alone.
				second := t.TempDir()
				got, err = f.FormatAndMount(t.Context(), request(d.Path, second, fstype))
				if err != nil || got.Formatted || got.Unchecked != string(format.ErrInUse) {
					t.Fatalf("beside itself: %+v, %v", got, err)
				}
				if b, err := os.ReadFile(filepath.Join(second, "file")); err != nil || string(b) != "kept" {
					t.Errorf("the file is %q, %v", b, err)
				}
				unmount(t, second)
				unmount(t, target)
			})
		}
	})
}

func TestMkfsGetsTheDefaultsAndTheCallersArguments(t *testing.T) {
	onHost(t, func(t *testing.T) {
		testtool.Need(t, "mkfs.ext4")
		d, target := loopdev.New(t, 64*mib), t.TempDir()
		r := request(d.Path, target, "ext4")
		r.FormatOptions = []string{"-L", "given"}
		if _, err := formatter().FormatAndMount(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		defer unmount(t, target)
		super := run(t, "dumpe2fs", "-h", d.Path)
		for _, want := range []string{"Filesystem volume name:   given\n", "Reserved block count:     0\n"} {
			if !strings.Contains(super, want) {
				t.Errorf("dumpe2fs does not show %q:\n%s", want, super)
			}
		}
	})
}

func TestWhatIsNotBlankIsLeftAsItIs(t *testing.T) {
	write := func(offset int64, text string) func(*testing.T, *loopdev.Device) {
		return func(t *testing.T, d *loopdev.Device) { writeAt(t, d.Path, offset, text) }
	}
	tool := func(name string, args ...string) func(*testing.T, *loopdev.Device) {
		return func(t *testing.T, d *loopdev.Device) { run(t, name, append(slices.Clone(args), d.Path)...) }
	}
	for _, c := range []struct {
		name    string
		prepare func(*testing.T, *loopdev.Device)
		found   string
	}{
		{"one byte at the end of the first 4 MiB", write(4*mib-1, "x"), "at byte 4194303"},
		{"one byte at the start of the last 1 MiB", write(63*mib, "x"), "at byte 66060288"},
		{"the last byte", write(64*mib-1, "x"), "at byte 67108863"},
		{"data after a wiped superblock", func(t *testing.T, d *loopdev.Device) {
			run(t, "mkfs.ext4", "-F", "-b", "4096", d.Path) // one group, so no copy
			run(t, "wipefs", "-a", d.Path)
		}, "data of an unknown kind"},
		{"nothing but the copy of a superblock", func(t *testing.T, d *loopdev.Device) {
			run(t, "mkfs.ext4", "-F", "-b", "1024", d.Path)
			writeAt(t, d.Path, 0, strings.Repeat("\x00", 8*mib))
		}, "ext4 (remains"},
		{"a partition table at the end only", func(t *testing.T, d *loopdev.Device) {
			runInput(t, "label: gpt\n,10M\n", "sfdisk", "-q", "--no-reread", "--no-tell-kernel", d.Path)
			writeAt(t, d.Path, 0, strings.Repeat("\x00", mib))
		}, "gpt (partition table"},
		{"a partition table", func(t *testing.T, d *loopdev.Device) {
			runInput(t, "label: dos\n,10M\n", "sfdisk", "-q", "--no-reread", "--no-tell-kernel", d.Path)
		}, "dos (partition table"},
		{"swap", tool("mkswap"), "swap (member"},
		{"half an xfs", write(0, "XFSB"+strings.Repeat("\x00", 122)+"\x01"), "xfs (remains"},
		{"half a btrfs", write(0x10040, "!BHRfS_M"), "btrfs (remains"},
	} {
		t.Run(c.name, func(t *testing.T) {
			onHost(t, func(t *testing.T) {
				d, target := loopdev.New(t, 64*mib), t.TempDir()
				c.prepare(t, d)
				before := content(t, d)
				got, err := formatter().FormatAndMount(t.Context(), request(d.Path, target, "ext4"))
				if !errors.Is(err, format.ErrNotBlank) || !strings.Contains(err.Error(), c.found) || got.Formatted {
					t.Errorf("%+v, %v; it should name %q", got, err, c.found)
				}
				if content(t, d) != before {
					t.Error("the device was changed")
				}
				if _, mounted := at(t, target); mounted {
					t.Error("it is mounted")
				}
			})
		})
	}
}

func writeAt(t *testing.T, path string, offset int64, text string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt([]byte(text), offset); err != nil {
		t.Fatal(err)
	}
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
}

func runInput(t *testing.T, input, name string, args ...string) {
	t.Helper()
	needTool(t, name)
	cmd := exec.Command(name, args...)
	cmd.Stdin = strings.NewReader(input)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", cmd, err, out)
	}
}

func TestARestOfADeviceThatCannotBeReadIsNotBlank(t *testing.T) {
	onHost(t, func(t *testing.T) {
		for _, left := range []int64{0, 2 * mib, 63*mib + 4096} {
			d := loopdev.New(t, 64*mib)
			_, err := formatter().FormatAndMount(t.Context(), request(d.Cut(t, left).Path, t.TempDir(), "ext4"))
			read, ok := errors.AsType[*format.ReadError](err)
			if !errors.Is(err, format.ErrUnreadable) || !errors.Is(err, unix.EIO) || !ok || read.Offset < left-mib/8 {
				t.Errorf("%d bytes can be read: %v", left, err)
			}
			if info, _ := os.Stat(d.Backing); info.Size() != left {
				t.Errorf("%d bytes could be read, now the file has %d", left, info.Size())
			}
		}
	})
}

func TestADeviceThatIsClaimedIsNotFormatted(t *testing.T) {
	onHost(t, func(t *testing.T) {
		d := loopdev.New(t, 64*mib)
		claim, err := os.OpenFile(d.Path, os.O_RDONLY|unix.O_EXCL, 0)
		if err != nil {
			t.Fatal(err)
		}
		before := content(t, d)
		_, err = formatter().FormatAndMount(t.Context(), request(d.Path, t.TempDir(), "ext4"))
		if !errors.Is(err, format.ErrInUse) || !errors.Is(err, unix.EBUSY) {
			t.Errorf("claimed: %v", err)
		}
		claim.Close()

		lock, err := os.OpenFile(d.Path, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		if err := eintr.Do(func() error { return unix.FcntlFlock(lock.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK}) }); err != nil {
			t.Fatal(err)
		}
		_, err = formatter().FormatAndMount(t.Context(), request(d.Path, t.TempDir(), "ext4"))
		if !errors.Is(err, format.ErrInUse) {
			t.Errorf("locked: %v", err)
		}
		lock.Close()
		if content(t, d) != before {
			t.Error("the device was changed")
		}
	})
}

func TestNothingIsFormattedForReadingOnly(t *testing.T) {
	onHost(t, func(t *testing.T) {
		d, target := loopdev.New(t, 64*mib), t.TempDir()
		before := content(t, d)
		r := request(d.Path, target, "ext4")
		r.Sensitive = []string{"ro"}
		for _, r := range []format.Request{request(d.Path, target, "ext4", "noatime", "ro"), r} {
			if _, err := formatter().FormatAndMount(t.Context(), r); !errors.Is(err, format.ErrReadOnly) {
				t.Errorf("%v: %v", r, err)
			}
		}
		protected := loopdev.Of(t, d.Backing, unix.LO_FLAGS_READ_ONLY)
		if _, err := formatter().FormatAndMount(t.Context(), request(protected.Path, target, "ext4")); !errors.Is(err, format.ErrReadOnly) {
			t.Errorf("write-protected: %v", err)
		}
		if content(t, d) != before {
			t.Error("the device was changed")
		}
		// One with a file system is mounted, and not checked.
		run(t, "mkfs.ext4", "-F", d.Path)
		got, err := formatter().FormatAndMount(t.Context(), request(d.Path, target, "ext4", "ro"))
		if e, _ := at(t, target); err != nil || !e.ReadOnly() || got.Unchecked != "" {
			t.Errorf("mounted read-only: %+v, %+v, %v", e, got, err)
		}
	})
}

func TestAnotherFileSystemIsNamedAndKept(t *testing.T) {
	onHost(t, func(t *testing.T) {
		d, target := loopdev.New(t, roomy), t.TempDir()
		run(t, "mkfs.xfs", d.Path)
		before := content(t, d)
		got, err := formatter().FormatAndMount(t.Context(), request(d.Path, target, "ext4"))
		if !errors.Is(err, format.ErrWrongFilesystem) || !errors.Is(err, mount.ErrWrongFilesystem) || got.Found != "xfs" {
			t.Errorf("%+v, %v", got, err)
		}
		if content(t, d) != before {
			t.Error("the device was changed")
		}
		// ext3 asked for as ext4 is what the kernel mounts.
		old := loopdev.New(t, 64*mib)
		run(t, "mkfs.ext3", "-F", old.Path)
		got, err = formatter().FormatAndMount(t.Context(), request(old.Path, target, "ext4"))
		if e, _ := at(t, target); err != nil || got.Found != "ext3" || e.Source != old.Path {
			t.Errorf("ext3 as ext4: %+v, %v", got, err)
		}
	})
}

func TestSourcesThatAreNoDevices(t *testing.T) {
	onHost(t, func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "file")
		if err := os.WriteFile(file, bytes.Repeat([]byte{0}, 8*mib), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, source := range []string{file, "/dev/null", "/does/not/exist", "", "UUID=1234"} {
			_, err := formatter().FormatAndMount(t.Context(), request(source, t.TempDir(), "ext4"))
			if !errors.Is(err, format.ErrNotBlockDevice) {
				t.Errorf("%q: %v", source, err)
			}
		}
		for _, fstype := range []string{"../../tmp/x", "ext4 -F", "-h"} {
			_, err := formatter().FormatAndMount(t.Context(), request(file, t.TempDir(), fstype))
			if !errors.Is(err, format.ErrNotSupported) {
				t.Errorf("type %q: %v", fstype, err)
			}
		}
	})
}

func TestMkfsThatIsMissingOrFails(t *testing.T) {
	onHost(t, func(t *testing.T) {
		d := loopdev.New(t, 64*mib)
		before := content(t, d)
		none := format.New(format.Config{Mounter: host.New(host.Config{}), ToolDirs: []string{t.TempDir()}})
		_, err := none.FormatAndMount(t.Context(), request(d.Path, t.TempDir(), "xfs"))
		if !errors.Is(err, format.ErrToolMissing) || !errors.Is(err, exec.ErrNotFound) || !strings.Contains(err.Error(), "xfsprogs") {
			t.Errorf("missing: %v", err)
		}
		testtool.Need(t, "mkfs.ext4")
		r := request(d.Path, t.TempDir(), "ext4")
		r.FormatOptions = []string{"-O", "no-such-feature"}
		_, err = formatter().FormatAndMount(t.Context(), r)
		e, _ := errors.AsType[*format.Error](err)
		if !errors.Is(err, format.ErrFormatFailed) || !strings.Contains(e.Output, "no-such-feature") || !strings.Contains(e.Command, "mkfs.ext4 -O no-such-feature -F -m0 "+d.Path) {
			t.Errorf("failed: %v", err)
		}
		if content(t, d) != before {
			t.Error("the device was changed")
		}
		if _, err := formatter().FormatAndMount(t.Context(), request(d.Path, t.TempDir(), "ext4")); err != nil {
			t.Errorf("afterwards: %v", err)
		}
	})
}

func TestAContextThatHasEndedBeginsNothing(t *testing.T) {
	onHost(t, func(t *testing.T) {
		d := loopdev.New(t, 64*mib)
		before := content(t, d)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := formatter().FormatAndMount(ctx, request(d.Path, t.TempDir(), "ext4"))
		e, ok := errors.AsType[*format.Error](err)
		if !ok || !errors.Is(err, format.ErrCanceled) || !errors.Is(err, context.Canceled) || e.Uncertain {
			t.Errorf("%v", err)
		}
		if content(t, d) != before {
			t.Error("the device was changed")
		}
	})
}
