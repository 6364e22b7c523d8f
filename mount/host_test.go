package mount_test

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
	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/util/testenv/testtool"
)

func makeDir(t *testing.T, elem ...string) string {
	t.Helper()
	dir := filepath.Join(elem...)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

func putFile(t *testing.T, content string, elem ...string) string {
	t.Helper()
	path := filepath.Join(elem...)
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func doMount(t *testing.T, r mount.Request) {
	t.Helper()
	if err := mount.Mount(t.Context(), mount.New(mount.Config{}), r); err != nil {
		t.Fatal(err)
	}
}

func unmountNow(t *testing.T, target string) error {
	t.Helper()
	rung, err := mount.Unmount(t.Context(), mount.New(mount.Config{}), target, mount.UnmountOptions{})
	if rung != mount.RungNormal {
		t.Errorf("the rung is %v", rung)
	}
	return err
}

func entryAt(t *testing.T, target string) (mount.Entry, bool) {
	t.Helper()
	table, err := mount.KernelTable()
	if err != nil {
		t.Fatal(err)
	}
	e, ok, err := table.At(target)
	if err != nil {
		t.Fatal(err)
	}
	return e, ok
}

func tmpfsAt(target string, options ...string) mount.Request {
	return mount.Request{Source: "tmpfs", Target: target, FSType: "tmpfs", Options: options}
}

func bindOn(source, target string, options ...string) mount.Request {
	return mount.Request{Source: source, Target: target, Options: append([]string{"bind"}, options...)}
}

func TestTmpfs(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		dir := makeDir(t, t.TempDir(), "a b")
		doMount(t, tmpfsAt(dir, "size=64k,mode=0711", "nosuid", "noexec"))
		e, ok := entryAt(t, dir)
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
		doMount(t, mount.Request{Target: dir, FSType: "tmpfs", Options: []string{"remount", "size=1m", "ro"}})
		e, _ = entryAt(t, dir)
		if !slices.Contains(e.SuperOptions, "size=1024k") || !slices.Contains(e.Options, "nosuid") || !e.ReadOnly() {
			t.Errorf("remounted as %+v", e)
		}
		if err := unmountNow(t, dir); err != nil {
			t.Fatal(err)
		}
		if _, ok := entryAt(t, dir); ok {
			t.Error("still mounted")
		}
	})
}

func TestTmpfsBadOption(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		dir := t.TempDir()
		err := mount.Mount(t.Context(), mount.New(mount.Config{}), tmpfsAt(dir, "sise=1k"))
		e, ok := errors.AsType[*mount.Error](err)
		if !ok || !errors.Is(err, mount.ErrBadOption) || e.Uncertain {
			t.Errorf("err = %#v", err)
		}
		if _, ok := entryAt(t, dir); ok {
			t.Error("mounted all the same")
		}
	})
}

func TestHugetlbfs(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		dir := t.TempDir()
		err := mount.Mount(t.Context(), mount.New(mount.Config{}), mount.Request{Target: dir, FSType: "hugetlbfs", Options: []string{"mode=0700", "nosuid"}})
		e, mounted := entryAt(t, dir)
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
		dir := makeDir(t, t.TempDir(), "a,b c")
		m := mount.New(mount.Config{Via: mount.ViaCommand})
		if err := m.Mount("by-command", dir, "ramfs", []string{"nosuid", "noexec"}); err != nil {
			t.Fatal(err)
		}
		if e, ok := entryAt(t, dir); !ok || e.Source != "by-command" || e.FSType != "ramfs" || !slices.Contains(e.Options, "noexec") {
			t.Errorf("mounted: %v, as %+v", ok, e)
		}
		if err := m.Mount("", dir, "", []string{"remount", "ro"}); err != nil {
			t.Fatal(err)
		}
		if e, _ := entryAt(t, dir); !e.ReadOnly() {
			t.Errorf("remounted as %+v", e)
		}
		if err := unmountNow(t, dir); err != nil {
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
		source, target := makeDir(t, top, "source"), makeDir(t, top, "target")
		file := putFile(t, "content", source, "file")
		doMount(t, bindOn(source, target, "ro", "noexec"))
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
		doMount(t, mount.Request{Target: target, Options: []string{"bind", "remount", "rw"}})
		if e, _ := entryAt(t, target); e.ReadOnly() || !slices.Contains(e.Options, "noexec") {
			t.Errorf("remounted as %+v", e)
		}
		fileTarget := putFile(t, "", top, "file-target")
		doMount(t, bindOn(file, fileTarget))
		if got, err := os.ReadFile(fileTarget); err != nil || string(got) != "new" {
			t.Errorf("the bound file reads %q, %v", got, err)
		}
		for _, path := range []string{fileTarget, target} {
			if err := unmountNow(t, path); err != nil {
				t.Error(err)
			}
		}
	})
}

func TestBindKeepsTheFlagsOfItsSource(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		top := t.TempDir()
		volume, target := makeDir(t, top, "volume"), makeDir(t, top, "target")
		doMount(t, tmpfsAt(volume, "nosuid", "nodev", "noatime"))
		doMount(t, bindOn(makeDir(t, volume, "sub"), target, "ro"))
		e, _ := entryAt(t, target)
		for _, option := range []string{"ro", "nosuid", "nodev", "noatime"} {
			if !slices.Contains(e.Options, option) {
				t.Errorf("%s is lost: %v", option, e.Options)
			}
		}
		other := makeDir(t, top, "other")
		doMount(t, bindOn(volume, other, "suid", "relatime"))
		if e, _ := entryAt(t, other); slices.Contains(e.Options, "nosuid") || !slices.Contains(e.Options, "relatime") || !slices.Contains(e.Options, "nodev") {
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
		target := makeDir(t, top, "target")
		doMount(t, mount.Request{Source: source, Target: target, Options: []string{"rbind", "ro"}})
		e, _ := entryAt(t, target)
		for _, option := range append(flags, "ro") {
			if !slices.Contains(e.Options, option) {
				t.Errorf("%s is lost: %v", option, e.Options)
			}
		}
		stripped := makeDir(t, top, "stripped")
		err := mount.Mount(t.Context(), mount.New(mount.Config{}), mount.Request{Source: source, Target: stripped, Options: []string{"rbind", "suid", "dev", "exec", "strictatime"}})
		_, mounted := entryAt(t, stripped)
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
	table, err := mount.KernelTable()
	if err != nil {
		t.Fatal(err)
	}
	entries, err := table.All()
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
	proc, _ := entryAt(t, "/proc") // its relatime or noatime is locked as well
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
		doMount(t, bindOn(dir, dir, "rshared"))
		if e, ok := entryAt(t, dir); !ok || len(e.Propagation) != 1 {
			t.Errorf("mounted %v with propagation %v", ok, e.Propagation)
		}
		doMount(t, mount.Request{Target: dir, Options: []string{"rprivate"}})
		if e, _ := entryAt(t, dir); len(e.Propagation) != 0 {
			t.Errorf("propagation is still %v", e.Propagation)
		}
		plain := makeDir(t, dir, "plain")
		err := mount.Mount(t.Context(), mount.New(mount.Config{}), mount.Request{Target: plain, Options: []string{"rslave"}})
		if !errors.Is(err, mount.ErrNotMounted) {
			t.Errorf("propagation of what is no mount: %v", err)
		}
	})
}

func TestStackedMounts(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		dir := t.TempDir()
		doMount(t, tmpfsAt(dir, "size=64k"))
		putFile(t, "", dir, "lower")
		doMount(t, mount.Request{Source: "upper", Target: dir, FSType: "tmpfs"})
		if e, ok := entryAt(t, dir); !ok || e.Source != "upper" {
			t.Errorf("topmost is %+v, %v", e, ok)
		}
		if err := unmountNow(t, dir); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(filepath.Join(dir, "lower")); err != nil {
			t.Errorf("the lower mount is gone as well: %v", err)
		}
		if err := unmountNow(t, dir); err != nil {
			t.Fatal(err)
		}
		if _, ok := entryAt(t, dir); ok {
			t.Error("still mounted")
		}
	})
}

func TestRefusals(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		top := t.TempDir()
		source, dir := makeDir(t, top, "source"), makeDir(t, top, "dir")
		file := putFile(t, "", top, "file")
		link := filepath.Join(top, "link")
		if err := os.Symlink(dir, link); err != nil {
			t.Fatal(err)
		}
		tests := map[string]struct {
			request mount.Request
			want    error
		}{
			"missing target":           {tmpfsAt(top + "/missing"), mount.ErrNoTarget},
			"target below a file":      {tmpfsAt(file + "/x"), mount.ErrNoTarget},
			"relative target":          {tmpfsAt("dir"), mount.ErrNoTarget},
			"no target":                {tmpfsAt(""), mount.ErrNoTarget},
			"link as target":           {tmpfsAt(link), mount.ErrTargetIsLink},
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
			err := mount.Mount(t.Context(), mount.New(mount.Config{}), tc.request)
			e, ok := errors.AsType[*mount.Error](err)
			if !ok || !errors.Is(err, tc.want) || e.Uncertain {
				t.Errorf("%s: err = %v, want %v, certainly", name, err, tc.want)
			}
		}
		for _, path := range []string{dir, file, link, source} {
			if e, ok := entryAt(t, path); ok {
				t.Errorf("something is mounted on %s: %+v", path, e)
			}
		}
	})
}

func TestUnmountErrors(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		top := t.TempDir()
		dir := makeDir(t, top, "dir")
		link := filepath.Join(top, "link")
		if err := os.Symlink(dir, link); err != nil {
			t.Fatal(err)
		}
		if err := unmountNow(t, dir); !errors.Is(err, mount.ErrNotMounted) || !errors.Is(err, unix.EINVAL) {
			t.Errorf("unmounting what is not mounted: %v", err)
		}
		if err := unmountNow(t, top+"/missing"); !errors.Is(err, mount.ErrNoTarget) || !errors.Is(err, mount.ErrNotMounted) {
			t.Errorf("unmounting what does not exist: %v", err)
		}
		doMount(t, tmpfsAt(dir))
		if err := unmountNow(t, link); !errors.Is(err, mount.ErrNotMounted) {
			t.Errorf("unmounting a link to a mount point: %v", err)
		}
		if _, ok := entryAt(t, dir); !ok {
			t.Error("the mount behind the link is gone")
		}
		held, err := os.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		err = unmountNow(t, dir)
		if e, ok := errors.AsType[*mount.Error](err); !ok || !errors.Is(err, mount.ErrBusy) || e.Uncertain || e.FSType != "tmpfs" {
			t.Errorf("unmounting a busy mount: %v", err)
		}
		held.Close()
		if err := unmountNow(t, dir); err != nil {
			t.Error(err)
		}
		if inUserNamespace(t) {
			if err := unmountNow(t, "/proc"); !errors.Is(err, mount.ErrNotPermitted) || errors.Is(err, mount.ErrNotMounted) {
				t.Errorf("unmounting what the namespace inherited: %v", err)
			}
		}
	})
}

func TestLazyUnmountOfABusyTmpfs(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		dir := t.TempDir()
		doMount(t, tmpfsAt(dir))
		held, err := os.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer held.Close()
		rung, err := mount.Unmount(t.Context(), mount.New(mount.Config{}), dir, mount.UnmountOptions{ForceAfter: 1, LazyAfter: 2})
		if err != nil || rung != mount.RungLazy {
			t.Errorf("rung %v, err = %v", rung, err)
		}
		if _, ok := entryAt(t, dir); ok {
			t.Error("still in sight")
		}
	})
}

func TestQuestions(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		m := mount.New(mount.Config{})
		top := t.TempDir()
		volume, one, two := makeDir(t, top, "volume"), makeDir(t, top, "one"), makeDir(t, top, "two")
		doMount(t, mount.Request{Source: "questions", Target: volume, FSType: "tmpfs", Options: []string{"size=64k", "nodev"}})
		sub := makeDir(t, volume, "sub")
		doMount(t, bindOn(sub, one))
		doMount(t, bindOn(sub, two, "ro"))
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
		table, err := mount.TableOf(m)
		if err != nil {
			t.Fatal(err)
		}
		if entries, err := table.BySource("questions"); err != nil || len(entries) != 3 || entries[0].Target != volume {
			t.Errorf("by source: %+v, %v", entries, err)
		}
		var st unix.Stat_t
		if err := unix.Stat(volume, &st); err != nil {
			t.Fatal(err)
		}
		if entries, err := table.ByDevice(st.Dev); err != nil || len(entries) != 3 {
			t.Errorf("by device: %+v, %v", entries, err)
		}
	})
}
