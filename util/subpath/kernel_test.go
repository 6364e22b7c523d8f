package subpath

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/testenv/nstest"
)

func mountAt(t *testing.T, source, target, fsType string, flags uintptr, data string) {
	t.Helper()
	must(t, os.MkdirAll(target, 0o755))
	if err := unix.Mount(source, target, fsType, flags, data); err != nil {
		t.Fatalf("mount %s at %s: %v", fsType, target, err)
	}
	t.Cleanup(func() { unix.Unmount(target, unix.MNT_DETACH) })
}

// The other tests run where the temporary directory is; here once more on file
// systems that a volume may be, as root and as an ordinary user.
func TestOnOtherFileSystems(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		for _, fsType := range []string{"tmpfs", "overlay"} {
			t.Run(fsType, func(t *testing.T) {
				base := t.TempDir()
				options := "mode=0755"
				if fsType == "overlay" {
					for _, dir := range []string{"lower", "upper", "work"} {
						must(t, os.Mkdir(filepath.Join(base, dir), 0o755))
					}
					options = strings.ReplaceAll("lowerdir=%/lower,upperdir=%/upper,workdir=%/work", "%", base)
				}
				merged := filepath.Join(base, "merged")
				mountAt(t, fsType, merged, fsType, 0, options)
				t.Setenv("TMPDIR", merged)
				for name, test := range map[string]func(*testing.T){
					"open": TestOpen, "refuse": TestOpenRefuses, "links": TestFortyLinks, "mode": TestOpenOrMakeGivesTheRootsMode,
					"leave": TestOpenOrMakeLeavesWhatExists, "point": TestMakePoint, "group": TestMakePointInheritsTheGroup,
					"CVE-2017-1002101": TestCVE20171002101, "CVE-2017-1002102": TestCVE20171002102,
					"CVE-2021-25741": TestCVE202125741ExchangeWhileMaking,
				} {
					t.Run(name, test)
				}
			})
		}
	})
}

// On a read-only volume what is missing is an error, and what exists is none.
func TestReadOnlyVolume(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		bothWays(t, func(t *testing.T, k kernel) {
			dir := t.TempDir()
			mountAt(t, "tmpfs", dir, "tmpfs", 0, "mode=0755")
			must(t, os.MkdirAll(filepath.Join(dir, "a/b"), 0o755))
			must(t, unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""))
			root := openRoot(t, dir)
			got, err := k.openOrMake(t.Context(), root, "a/b")
			must(t, err)
			got.Close()
			must(t, k.makePoint(t.Context(), root, "a/b", true))
			_, missing := k.openOrMake(t.Context(), root, "a/b/c/d")
			for _, err := range []error{missing, k.makePoint(t.Context(), root, "a/c", true), k.makePoint(t.Context(), root, "a/c", false)} {
				readOnly, ok := errors.AsType[*ReadOnlyError](err)
				if !ok || !errors.Is(err, unix.EROFS) || !errors.Is(err, os.ErrNotExist) || readOnly.Volume != dir {
					t.Errorf("err = %v", err)
				}
			}
			root.Close()
		})
	})
}

// A file system mounted in a volume is entered; no link leads out of it and of
// the volume.
func TestMountsInTheVolume(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		bothWays(t, func(t *testing.T, k kernel) {
			root := newVolume(t)
			mkdir(t, root, "a/mnt")
			touch(t, root, "a/file")
			mountAt(t, "tmpfs", in(root, "a/mnt"), "tmpfs", 0, "mode=0755")
			touch(t, root, "a/mnt/dir/file")
			link(t, root, "a/mnt/dir/up", "../../file")
			link(t, root, "a/mnt/out", "../../../host")
			link(t, root, "to-mnt", "a/mnt/dir")
			for path, want := range map[string]string{
				"a/mnt": "a/mnt", "a/mnt/dir/file": "a/mnt/dir/file", "to-mnt/file": "a/mnt/dir/file",
				"a/mnt/dir/up": "a/file", "to-mnt/up": "a/file",
			} {
				got, err := k.open(root, path)
				must(t, err)
				sameAs(t, got, in(root, want))
				got.Close()
			}
			everyWay(t, k, root, "a/mnt/out/secrets", "a/mnt/out")
			got, err := k.openOrMake(t.Context(), root, "a/mnt/new/below")
			must(t, err)
			sameAs(t, got, in(root, "a/mnt/new/below"))
			got.Close()

			// A volume that is itself a mount ends at its root.
			bound := filepath.Join(t.TempDir(), "bound")
			mountAt(t, in(root, "a"), bound, "", unix.MS_BIND, "")
			volume := openRoot(t, bound)
			link(t, volume, "beside", "../to-mnt")
			if _, err := k.open(volume, "beside"); !isEscape(err) {
				t.Errorf("out of a bind mount: %v", err)
			}
			volume.Close()
		})
	})
}

// Links of /proc that are no paths lead to other processes' files.
func TestMagicLinks(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		linuxWays(t, func(t *testing.T, k kernel) {
			root := newVolume(t)
			mkdir(t, root, "proc")
			mountAt(t, "/proc", in(root, "proc"), "", unix.MS_BIND|unix.MS_REC, "")
			read, write, err := os.Pipe()
			must(t, err)
			defer read.Close()
			defer write.Close()
			must(t, unix.Dup3(int(read.Fd()), 200, unix.O_CLOEXEC))
			defer unix.Close(200)
			for _, path := range []string{
				"proc/self/root", "proc/self/root/etc", "proc/self/cwd", "proc/self/exe", "proc/self/fd/200", "proc/self/ns/mnt",
			} {
				if _, err := k.open(root, path); !isEscape(err) {
					t.Errorf("Open(%q) = %v", path, err)
				}
			}
			got, err := k.open(root, "proc/self/status") // an ordinary link, and a file
			must(t, err)
			got.Close()
		})
	})
}

// A mount that follows no links is respected.
func TestNoSymFollow(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		linuxWays(t, func(t *testing.T, k kernel) {
			dir := t.TempDir()
			const noSymFollow = 0x100 // MS_NOSYMFOLLOW, Linux 5.10
			mountAt(t, "tmpfs", dir, "tmpfs", noSymFollow, "mode=0755")
			root := openRoot(t, dir)
			mkdir(t, root, "dir")
			link(t, root, "link", "dir")
			if _, err := k.open(root, "link"); !errors.Is(err, unix.ELOOP) {
				t.Errorf("err = %v, want ELOOP", err)
			}
			root.Close()
		})
	})
}

// asNobody runs f with the rights of an ordinary user on files, where the
// tests run as root.
func asNobody(t *testing.T, f func()) {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before, err := unix.SetfsuidRetUid(65534)
	must(t, err)
	defer func() {
		_, err := unix.SetfsuidRetUid(before)
		must(t, err)
	}()
	f()
}

// Links that others have put into a directory like /tmp are followed, which the
// kernel refuses to root where fs.protected_symlinks is set.
func TestOthersLinkInStickyDirectory(t *testing.T) {
	if os.Geteuid() != 0 {
		return // only root can make others' links
	}
	bothWays(t, func(t *testing.T, k kernel) {
		root := newVolume(t)
		mkdir(t, root, "tmp/dir")
		link(t, root, "tmp/link", "dir")
		link(t, root, "tmp/out", "../..")
		must(t, os.Lchown(in(root, "tmp/link"), 65534, 65534))
		must(t, os.Lchown(in(root, "tmp/out"), 65534, 65534))
		must(t, unix.Chmod(in(root, "tmp"), 0o1777))
		got, err := k.open(root, "tmp/link")
		must(t, err)
		sameAs(t, got, in(root, "tmp/dir"))
		got.Close()
		if _, err := k.open(root, "tmp/out"); !isEscape(err) {
			t.Errorf("a link out: %v", err)
		}
	})
}

// Who may not search a directory gets no further, not even by "..".
func TestPermissions(t *testing.T) {
	linuxWays(t, func(t *testing.T, k kernel) {
		root := newVolume(t)
		touch(t, root, "closed/file", "open/file")
		link(t, root, "through", "closed/../open")
		link(t, root, "stay", "closed/.")
		for dir := filepath.Dir(root.Name()); dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
			must(t, os.Chmod(dir, 0o755))
		}
		must(t, os.Chmod(in(root, "closed"), 0o600))
		defer os.Chmod(in(root, "closed"), 0o755)
		check := func() {
			for _, path := range []string{"closed/file", "through", "stay"} {
				if _, err := k.open(root, path); !errors.Is(err, os.ErrPermission) {
					t.Errorf("Open(%q) = %v, want that it is denied", path, err)
				}
			}
			got, err := k.open(root, "closed")
			must(t, err)
			got.Close()
		}
		if os.Geteuid() == 0 {
			asNobody(t, check)
		} else {
			check()
		}
	})
}

// A directory that is not ours or not empty is not opened up, whatever has put
// it where we have made one.
func TestModeOfOthersDirectories(t *testing.T) {
	root := newVolume(t)
	mkdir(t, root, "empty", "full/file", "others")
	m := maker{kernel: system(), mode: 0o2777, bits: modeBits}
	want := map[string]uint32{"empty": 0o2777, "full": 0o700, "others": 0o700}
	if os.Geteuid() == 0 {
		must(t, os.Chown(in(root, "others"), 65534, 65534))
	} else {
		want["others"] = 0o2777 // it is ours
	}
	for name, want := range want {
		must(t, os.Chmod(in(root, name), 0o700))
		fd, err := openPath(int(root.Fd()), name, unix.O_DIRECTORY)
		must(t, err)
		must(t, m.setMode(fd))
		unix.Close(fd)
		if got := mode(t, in(root, name)); got != want {
			t.Errorf("%s has mode %o, want %o", name, got, want)
		}
	}
}
