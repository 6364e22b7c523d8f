package host_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/host"
	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/util/testenv/mounttest"
	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/util/testenv/testtool"
)

func bindOn(source, target string, options ...string) mount.Request {
	return mount.Request{Source: source, Target: target, Options: append([]string{"bind"}, options...)}
}

func TestTmpfs(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		dir := testtool.MkdirAll(t, t.TempDir(), "a b")
		mounttest.Mount(t, mounttest.Tmpfs(dir, "size=64k,mode=0711", "nosuid", "noexec"))
		e, ok := mounttest.EntryAt(t, dir)
		if !ok || e.FSType != "tmpfs" || !slices.Contains(e.SuperOptions, "size=64k") || !slices.Contains(e.Options, "nosuid") || !slices.Contains(e.Options, "noexec") {
			t.Errorf("mounted: %v, as %+v", ok, e)
		}
		if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o711 {
			t.Errorf("mode %v, %v", info.Mode(), err)
		}
		err := os.WriteFile(filepath.Join(dir, "big"), make([]byte, 128<<10), 0o600)
		if !errors.Is(err, unix.ENOSPC) {
			t.Errorf("writing beyond the size: %v", err)
		}
		mounttest.Mount(t, mount.Request{Target: dir, FSType: "tmpfs", Options: []string{"remount", "size=1m", "ro"}})
		e, _ = mounttest.EntryAt(t, dir)
		if !slices.Contains(e.SuperOptions, "size=1024k") || !slices.Contains(e.Options, "nosuid") || !e.ReadOnly() {
			t.Errorf("remounted as %+v", e)
		}
		if err := mounttest.Unmount(t, dir); err != nil {
			t.Fatal(err)
		}
		if _, ok := mounttest.EntryAt(t, dir); ok {
			t.Error("still mounted")
		}
	})
}

func TestTmpfsBadOption(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		dir := t.TempDir()
		err := mount.Mount(t.Context(), host.New(host.Config{}), mounttest.Tmpfs(dir, "sise=1k"))
		e, ok := errors.AsType[*mount.Error](err)
		if !ok || !errors.Is(err, mount.ErrBadOption) || e.Uncertain {
			t.Errorf("err = %#v", err)
		}
		if _, ok := mounttest.EntryAt(t, dir); ok {
			t.Error("mounted all the same")
		}
	})
}

func TestHugetlbfs(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		dir := t.TempDir()
		err := mount.Mount(t.Context(), host.New(host.Config{}), mount.Request{Target: dir, FSType: "hugetlbfs", Options: []string{"mode=0700", "nosuid"}})
		e, mounted := mounttest.EntryAt(t, dir)
		switch {
		case inUserNamespace(t): // the kernel keeps huge pages from user namespaces
			if !errors.Is(err, mount.ErrNotPermitted) || mounted {
				t.Errorf("err = %v, mounted = %v", err, mounted)
			}
		case errors.Is(err, mount.ErrNoFilesystem): // a kernel without huge pages
		case err != nil || e.FSType != "hugetlbfs" || !slices.Contains(e.Options, "nosuid"):
			t.Errorf("err = %v, mounted %+v", err, e)
		}
	})
}

func TestMountCommandOfThisSystem(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		testtool.Need(t, "mount")
		dir := testtool.MkdirAll(t, t.TempDir(), "a,b c")
		m := host.New(host.Config{Via: host.ViaCommand})
		if err := m.Mount("by-command", dir, "ramfs", []string{"nosuid", "noexec"}); err != nil {
			t.Fatal(err)
		}
		if e, ok := mounttest.EntryAt(t, dir); !ok || e.Source != "by-command" || e.FSType != "ramfs" || !slices.Contains(e.Options, "noexec") {
			t.Errorf("mounted: %v, as %+v", ok, e)
		}
		if err := m.Mount("", dir, "", []string{"remount", "ro"}); err != nil {
			t.Fatal(err)
		}
		if e, _ := mounttest.EntryAt(t, dir); !e.ReadOnly() {
			t.Errorf("remounted as %+v", e)
		}
		if err := mounttest.Unmount(t, dir); err != nil {
			t.Error(err)
		}
		err := m.Mount("10.0.0.1:/x", dir, "no-such-type", nil)
		e, ok := errors.AsType[*mount.Error](err)
		if !ok || e.Uncertain || !strings.Contains(err.Error(), "Mounting arguments: -t no-such-type 10.0.0.1:/x "+dir+"\nOutput: mount: ") {
			t.Errorf("an unknown type: %v", err)
		}
	})
}

func TestBind(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		top := t.TempDir()
		source, target := testtool.MkdirAll(t, top, "source"), testtool.MkdirAll(t, top, "target")
		file := testtool.WriteFile(t, "content", source, "file")
		mounttest.Mount(t, bindOn(source, target, "ro", "noexec"))
		if got, err := os.ReadFile(filepath.Join(target, "file")); err != nil || string(got) != "content" {
			t.Errorf("read %q, %v", got, err)
		}
		if err := os.WriteFile(filepath.Join(target, "file"), nil, 0o600); !errors.Is(err, unix.EROFS) {
			t.Errorf("writing through a read-only bind: %v", err)
		}
		if err := os.WriteFile(file, []byte("new"), 0o600); err != nil {
			t.Errorf("the source became read-only: %v", err)
		}
		// Making it writable again keeps noexec.
		mounttest.Mount(t, mount.Request{Target: target, Options: []string{"bind", "remount", "rw"}})
		if e, _ := mounttest.EntryAt(t, target); e.ReadOnly() || !slices.Contains(e.Options, "noexec") {
			t.Errorf("remounted as %+v", e)
		}
		fileTarget := testtool.WriteFile(t, "", top, "file-target")
		mounttest.Mount(t, bindOn(file, fileTarget))
		if got, err := os.ReadFile(fileTarget); err != nil || string(got) != "new" {
			t.Errorf("the bound file reads %q, %v", got, err)
		}
		for _, path := range []string{fileTarget, target} {
			if err := mounttest.Unmount(t, path); err != nil {
				t.Error(err)
			}
		}
	})
}

func TestBindKeepsTheFlagsOfItsSource(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		top := t.TempDir()
		volume, target := testtool.MkdirAll(t, top, "volume"), testtool.MkdirAll(t, top, "target")
		mounttest.Mount(t, mounttest.Tmpfs(volume, "nosuid", "nodev", "noatime"))
		mounttest.Mount(t, bindOn(testtool.MkdirAll(t, volume, "sub"), target, "ro"))
		e, _ := mounttest.EntryAt(t, target)
		for _, option := range []string{"ro", "nosuid", "nodev", "noatime"} {
			if !slices.Contains(e.Options, option) {
				t.Errorf("%s is lost: %v", option, e.Options)
			}
		}
		other := testtool.MkdirAll(t, top, "other")
		mounttest.Mount(t, bindOn(volume, other, "suid", "relatime"))
		if e, _ := mounttest.EntryAt(t, other); slices.Contains(e.Options, "nosuid") || !slices.Contains(e.Options, "relatime") || !slices.Contains(e.Options, "nodev") {
			t.Errorf("asked for suid and relatime, got %v", e.Options)
		}
	})
}

// In a user namespace the flags of inherited mounts are locked, and a remount
// that leaves one out is refused by the kernel.
func TestBindOfLockedFlags(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		top := t.TempDir()
		source, flags := flaggedMount(t)
		target := testtool.MkdirAll(t, top, "target")
		mounttest.Mount(t, mount.Request{Source: source, Target: target, Options: []string{"rbind", "ro"}})
		e, _ := mounttest.EntryAt(t, target)
		for _, option := range append(flags, "ro") {
			if !slices.Contains(e.Options, option) {
				t.Errorf("%s is lost: %v", option, e.Options)
			}
		}
		stripped := testtool.MkdirAll(t, top, "stripped")
		err := mount.Mount(t.Context(), host.New(host.Config{}), mount.Request{Source: source, Target: stripped, Options: []string{"rbind", "suid", "dev", "exec", "strictatime"}})
		_, mounted := mounttest.EntryAt(t, stripped)
		if !inUserNamespace(t) {
			if err != nil || !mounted {
				t.Errorf("root takes flags away: %v, mounted = %v", err, mounted)
			}
			return
		}
		if e, ok := errors.AsType[*mount.Error](err); !ok || !errors.Is(err, mount.ErrNotPermitted) || e.Uncertain || mounted {
			t.Errorf("taking locked flags away: %v, mounted = %v", err, mounted)
		}
	})
}

// flaggedMount returns an inherited directory mount that has flags to lose,
// preferably those that protect the node.
func flaggedMount(t *testing.T) (target string, flags []string) {
	t.Helper()
	mounts := table.Kernel()
	entries, err := mounts.All()
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		for _, option := range []string{"nosuid", "nodev", "noexec"} {
			if slices.Contains(e.Options, option) {
				flags = append(flags, option)
			}
		}
		info, err := os.Stat(e.Target)
		if len(flags) > 0 && err == nil && info.IsDir() {
			return e.Target, flags
		}
		flags = nil
	}
	proc, _ := mounttest.EntryAt(t, "/proc") // its relatime or noatime is locked as well
	return "/proc", slices.DeleteFunc(proc.Options, func(o string) bool { return o == "rw" })
}

func inUserNamespace(t *testing.T) bool {
	t.Helper()
	uidMap, err := os.ReadFile("/proc/self/uid_map")
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(string(uidMap))
	return fields[len(fields)-1] != "4294967295"
}

func TestPropagation(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		dir := t.TempDir()
		mounttest.Mount(t, bindOn(dir, dir, "rshared"))
		if e, ok := mounttest.EntryAt(t, dir); !ok || len(e.Propagation) != 1 {
			t.Errorf("mounted %v with propagation %v", ok, e.Propagation)
		}
		mounttest.Mount(t, mount.Request{Target: dir, Options: []string{"rprivate"}})
		if e, _ := mounttest.EntryAt(t, dir); len(e.Propagation) != 0 {
			t.Errorf("propagation is still %v", e.Propagation)
		}
		plain := testtool.MkdirAll(t, dir, "plain")
		err := mount.Mount(t.Context(), host.New(host.Config{}), mount.Request{Target: plain, Options: []string{"rslave"}})
		if !errors.Is(err, mount.ErrNotMounted) {
			t.Errorf("propagation of what is no mount: %v", err)
		}
	})
}

func TestStackedMounts(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		dir := t.TempDir()
		mounttest.Mount(t, mounttest.Tmpfs(dir, "size=64k"))
		testtool.WriteFile(t, "", dir, "lower")
		mounttest.Mount(t, mount.Request{Source: "upper", Target: dir, FSType: "tmpfs"})
		if e, ok := mounttest.EntryAt(t, dir); !ok || e.Source != "upper" {
			t.Errorf("topmost is %+v, %v", e, ok)
		}
		if err := mounttest.Unmount(t, dir); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(filepath.Join(dir, "lower")); err != nil {
			t.Errorf("the lower mount is gone as well: %v", err)
		}
		if err := mounttest.Unmount(t, dir); err != nil {
			t.Fatal(err)
		}
		if _, ok := mounttest.EntryAt(t, dir); ok {
			t.Error("still mounted")
		}
	})
}

func TestRefusals(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		top := t.TempDir()
		source, dir := testtool.MkdirAll(t, top, "source"), testtool.MkdirAll(t, top, "dir")
		file := testtool.WriteFile(t, "", top, "file")
		link := filepath.Join(top, "link")
		if err := os.Symlink(dir, link); err != nil {
			t.Fatal(err)
		}
		tests := map[string]struct {
			request mount.Request
			want    error
		}{
			"missing target":           {mounttest.Tmpfs(top + "/missing"), mount.ErrNoTarget},
			"target below a file":      {mounttest.Tmpfs(file + "/x"), mount.ErrNoTarget},
			"relative target":          {mounttest.Tmpfs("dir"), mount.ErrNoTarget},
			"no target":                {mounttest.Tmpfs(""), mount.ErrNoTarget},
			"link as target":           {mounttest.Tmpfs(link), mount.ErrTargetIsLink},
			"link as target of a bind": {bindOn(source, link), mount.ErrTargetIsLink},
			"link, with mount(8)":      {mount.Request{Source: "x", Target: link, FSType: "nfs"}, mount.ErrTargetIsLink},
			"missing, with mount(8)":   {mount.Request{Source: "x", Target: top + "/missing", FSType: "nfs"}, mount.ErrNoTarget},
			"missing source":           {bindOn(top+"/missing", dir), mount.ErrNoSource},
			"source like a flag":       {bindOn("-oexec", dir), mount.ErrBadOption},
			"type like a flag":         {mount.Request{Source: "x", Target: dir, FSType: "-h"}, mount.ErrBadOption},
			"directory on file":        {bindOn(source, file), mount.ErrKindMismatch},
			"file on directory":        {bindOn(file, dir), mount.ErrKindMismatch},
			"file system option":       {bindOn(source, dir, "size=3"), mount.ErrBadOption},
			"file system flag":         {bindOn(source, dir, "sync"), mount.ErrBadOption},
			"remount of no mount":      {mount.Request{Target: dir, FSType: "tmpfs", Options: []string{"remount", "ro"}}, mount.ErrNotMounted},
		}
		for name, tc := range tests {
			err := mount.Mount(t.Context(), host.New(host.Config{}), tc.request)
			e, ok := errors.AsType[*mount.Error](err)
			if !ok || !errors.Is(err, tc.want) || e.Uncertain {
				t.Errorf("%s: err = %v, want %v, certainly", name, err, tc.want)
			}
		}
		for _, path := range []string{dir, file, link, source} {
			if e, ok := mounttest.EntryAt(t, path); ok {
				t.Errorf("something is mounted on %s: %+v", path, e)
			}
		}
	})
}

func TestUnmountErrors(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		top := t.TempDir()
		dir := testtool.MkdirAll(t, top, "dir")
		link := filepath.Join(top, "link")
		if err := os.Symlink(dir, link); err != nil {
			t.Fatal(err)
		}
		if err := mounttest.Unmount(t, dir); !errors.Is(err, mount.ErrNotMounted) || !errors.Is(err, unix.EINVAL) {
			t.Errorf("unmounting what is not mounted: %v", err)
		}
		if err := mounttest.Unmount(t, top+"/missing"); !errors.Is(err, mount.ErrNoTarget) || !errors.Is(err, mount.ErrNotMounted) {
			t.Errorf("unmounting what does not exist: %v", err)
		}
		mounttest.Mount(t, mounttest.Tmpfs(dir))
		if err := mounttest.Unmount(t, link); !errors.Is(err, mount.ErrNotMounted) {
			t.Errorf("unmounting a link to a mount point: %v", err)
		}
		if _, ok := mounttest.EntryAt(t, dir); !ok {
			t.Error("the mount behind the link is gone")
		}
		held, err := os.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		err = mounttest.Unmount(t, dir)
		if e, ok := errors.AsType[*mount.Error](err); !ok || !errors.Is(err, mount.ErrBusy) || e.Uncertain || e.FSType != "tmpfs" {
			t.Errorf("unmounting a busy mount: %v", err)
		}
		held.Close()
		if err := mounttest.Unmount(t, dir); err != nil {
			t.Error(err)
		}
		if inUserNamespace(t) {
			if err := mounttest.Unmount(t, "/proc"); !errors.Is(err, mount.ErrNotPermitted) || errors.Is(err, mount.ErrNotMounted) {
				t.Errorf("unmounting what the namespace inherited: %v", err)
			}
		}
	})
}

func TestLazyUnmountOfABusyTmpfs(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		dir := t.TempDir()
		mounttest.Mount(t, mounttest.Tmpfs(dir))
		held, err := os.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer held.Close()
		rung, err := mount.Unmount(t.Context(), host.New(host.Config{}), dir, mount.UnmountOptions{ForceAfter: 1, LazyAfter: 2})
		if err != nil || rung != mount.RungLazy {
			t.Errorf("rung %v, err = %v", rung, err)
		}
		if _, ok := mounttest.EntryAt(t, dir); ok {
			t.Error("still in sight")
		}
	})
}

func TestQuestions(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		m := host.New(host.Config{})
		top := t.TempDir()
		volume, one, two := testtool.MkdirAll(t, top, "volume"), testtool.MkdirAll(t, top, "one"), testtool.MkdirAll(t, top, "two")
		mounttest.Mount(t, mount.Request{Source: "questions", Target: volume, FSType: "tmpfs", Options: []string{"size=64k", "nodev"}})
		sub := testtool.MkdirAll(t, volume, "sub")
		mounttest.Mount(t, bindOn(sub, one))
		mounttest.Mount(t, bindOn(sub, two, "ro"))
		link := filepath.Join(top, "link")
		if err := os.Symlink(one, link); err != nil {
			t.Fatal(err)
		}
		for path, want := range map[string]bool{top: false, volume: true, one: true, two: true, sub: false, link: true, "/": true} {
			if got, err := m.IsMountPoint(path); err != nil || got != want {
				t.Errorf("IsMountPoint(%s) = %v, %v", path, got, err)
			}
		}
		if not, err := m.IsLikelyNotMountPoint(one); err != nil || not {
			t.Errorf("IsLikelyNotMountPoint of a bind = %v, %v", not, err)
		}
		if _, err := m.IsMountPoint(top + "/missing"); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("IsMountPoint of nothing: %v", err)
		}
		if _, err := m.IsLikelyNotMountPoint(top + "/missing"); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("IsLikelyNotMountPoint of nothing: %v", err)
		}
		for path, want := range map[string][]string{one: {two}, two: {one}, sub: {one, two}, link: {two}, volume: nil, top + "/missing": nil} {
			if got, err := m.GetMountRefs(path); err != nil || !cmp.Equal(got, want) {
				t.Errorf("GetMountRefs(%s) = %v, %v; want %v", path, got, err, want)
			}
		}
		points, err := m.List()
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(points, func(p mount.MountPoint) bool { return p.Path == two })
		if i < 0 {
			t.Fatalf("not listed: %v", points)
		}
		if p := points[i]; p.Device != "questions" || p.Type != "tmpfs" || p.Opts[0] != "ro" || !slices.Contains(p.Opts, "size=64k") || !slices.Contains(p.Opts, "nodev") {
			t.Errorf("listed as %+v", p)
		}
		mounts := table.Of(m)
		if entries, err := mounts.BySource("questions"); err != nil || len(entries) != 3 || entries[0].Target != volume {
			t.Errorf("by source: %+v, %v", entries, err)
		}
		var st unix.Stat_t
		if err := unix.Stat(volume, &st); err != nil {
			t.Fatal(err)
		}
		if entries, err := mounts.ByDevice(st.Dev); err != nil || len(entries) != 3 {
			t.Errorf("by device: %+v, %v", entries, err)
		}
	})
}
