package fakemount_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/util/testenv/mounttest"
)

func mustUnmount(t testing.TB, f *fakemount.Mounter, target string) {
	t.Helper()
	if err := f.Unmount(target); err != nil {
		t.Fatal(err)
	}
}

func writeFile(t testing.TB, name, text string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func readFile(t testing.TB, name string) string {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func names(t testing.TB, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	found := []string{}
	for _, e := range entries {
		found = append(found, e.Name())
	}
	return found
}

func TestFakeTmpfsIsFreshAndHides(t *testing.T) {
	f, root := mounttest.NewFake(t, "t")
	target := filepath.Join(root, "t")
	writeFile(t, filepath.Join(target, "hidden"), "x")
	mounttest.MountBy(t, f, mount.Request{Source: "tmpfs", Target: target, FSType: "tmpfs"})
	info, err := os.Lstat(target)
	if err != nil || !info.IsDir() || info.Mode().Perm() != 0o777 || info.Mode()&os.ModeSticky == 0 {
		t.Fatalf("the root of tmpfs is %v, %v; want a directory drwxrwxrwt", info, err)
	}
	if got := names(t, target); len(got) != 0 {
		t.Fatalf("a new tmpfs shows %v", got)
	}
	writeFile(t, filepath.Join(target, "own"), "y")
	if err := unix.Rmdir(target); err == nil {
		t.Fatal("rmdir of a mount point succeeds")
	}
	mustUnmount(t, f, target)
	if got := names(t, target); len(got) != 1 || got[0] != "hidden" {
		t.Fatalf("after the unmount there is %v", got)
	}
	if info, err := os.Lstat(target); err != nil || info.Mode().Perm() != 0o750 {
		t.Fatalf("after the unmount the directory is %v, %v", info, err)
	}
}

func TestFakeNFSShowsItsServer(t *testing.T) {
	f, root := mounttest.NewFake(t, "a", "b", "export")
	f.Serve("server:/x", filepath.Join(root, "export"))
	for _, dir := range []string{"a", "b"} {
		mounttest.MountBy(t, f, mount.Request{Source: "server:/x", Target: filepath.Join(root, dir), FSType: "nfs"})
	}
	writeFile(t, filepath.Join(root, "a", "file"), "data")
	if got := readFile(t, filepath.Join(root, "b", "file")); got != "data" {
		t.Errorf("the other mount shows %q", got)
	}
	if err := unix.Rmdir(filepath.Join(root, "a")); !errors.Is(err, unix.ENOTDIR) {
		t.Errorf("rmdir of a mounted directory: %v", err)
	}
	for _, dir := range []string{"a", "b"} {
		mustUnmount(t, f, filepath.Join(root, dir))
		if got := names(t, filepath.Join(root, dir)); len(got) != 0 {
			t.Errorf("after the unmount %s holds %v", dir, got)
		}
	}
	if got := readFile(t, filepath.Join(root, "export", "file")); got != "data" {
		t.Errorf("the export holds %q", got)
	}
}

func fakeEntryAt(t testing.TB, f *fakemount.Mounter, target string) mount.Entry {
	t.Helper()
	e, ok, err := f.Table().At(target)
	if err != nil || !ok {
		t.Fatalf("At(%s) = %v, %v", target, ok, err)
	}
	return e
}

func TestFakeEntries(t *testing.T) {
	f, root := mounttest.NewFake(t, "a", "b", "c", "d/sub")
	at := func(name string) string { return filepath.Join(root, name) }
	mounttest.MountBy(t, f, mount.Request{Target: at("a"), FSType: "tmpfs", Options: []string{"nosuid", "size=1m", "mode=0750"}})
	mounttest.MountBy(t, f, mount.Request{Source: at("a"), Target: at("b"), Options: []string{"bind", "ro,noexec"}})
	mounttest.MountBy(t, f, mount.Request{Source: at("d/sub"), Target: at("c"), Options: []string{"bind"}})
	tests := map[string]mount.Entry{
		"/": {Root: "/", Source: "/dev/root", FSType: "ext4", Options: []string{"rw", "relatime"}, SuperOptions: []string{"rw"}},
		at("a"): {
			Root: "/", Source: "tmpfs", FSType: "tmpfs", Options: []string{"rw", "nosuid", "relatime"},
			SuperOptions: []string{"rw", "size=1024k", "mode=0750"},
		},
		at("b"): {
			Root: "/", Source: "tmpfs", FSType: "tmpfs", Options: []string{"ro", "nosuid", "noexec", "relatime"},
			SuperOptions: []string{"rw", "size=1024k", "mode=0750"},
		},
		at("c"): {Root: at("d/sub"), Source: "/dev/root", FSType: "ext4", Options: []string{"rw", "relatime"}, SuperOptions: []string{"rw"}},
	}
	for target, want := range tests {
		got := fakeEntryAt(t, f, target)
		if got.ID == 0 || got.Device == 0 || got.ReadOnly() != (target == at("b")) {
			t.Errorf("At(%s) = %+v", target, got)
		}
		want.Target = target
		got.ID, got.ParentID, got.Device = 0, 0, 0
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("At(%s) (-want +got):\n%s", target, diff)
		}
	}
	if info, err := os.Stat(at("a")); err != nil || info.Mode().Perm() != 0o750 {
		t.Errorf("the root of the tmpfs is %v, %v", info, err)
	}
	same, err := f.Table().ByDevice(fakeEntryAt(t, f, at("a")).Device)
	if err != nil || len(same) != 2 || same[0].Target != at("a") || same[1].Target != at("b") {
		t.Errorf("ByDevice = %v, %v", same, err)
	}
	if got, err := f.Table().BySource("/dev/root"); err != nil || len(got) != 2 {
		t.Errorf("BySource = %v, %v", got, err)
	}
	if refs, err := f.GetMountRefs(at("a")); err != nil || !slices.Equal(refs, []string{at("b")}) {
		t.Errorf("GetMountRefs of a mount = %v, %v", refs, err)
	}
	if refs, err := f.GetMountRefs(at("d/sub")); err != nil || !slices.Equal(refs, []string{at("c")}) {
		t.Errorf("GetMountRefs of a directory = %v, %v", refs, err)
	}
	if refs, err := f.GetMountRefs(at("nothing")); err != nil || len(refs) != 0 {
		t.Errorf("GetMountRefs of nothing = %v, %v", refs, err)
	}
	points, err := f.List()
	want := mount.MountPoint{Device: "tmpfs", Path: at("b"), Type: "tmpfs", Opts: []string{"ro", "nosuid", "noexec", "relatime", "size=1024k", "mode=0750"}}
	if err != nil || len(points) != 4 || !cmp.Equal(points[2], want) {
		t.Errorf("List = %v, %v", points, err)
	}
}

func TestFakeQuestions(t *testing.T) {
	f, root := mounttest.NewFake(t, "real/t", "src/in")
	at := func(name string) string { return filepath.Join(root, name) }
	if err := os.Symlink("real", at("link")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(at("real/t"), at("last")); err != nil {
		t.Fatal(err)
	}
	mounttest.MountBy(t, f, mount.Request{Source: at("src"), Target: at("link/t"), Options: []string{"bind"}})
	for name, want := range map[string]struct{ at, isMountPoint bool }{
		"real/t": {true, true}, "link/t": {true, true}, "last": {false, true}, "real/t/in": {}, "real": {}, "src": {},
	} {
		_, ok, err := f.Table().At(at(name))
		if ok != want.at || err != nil {
			t.Errorf("At(%s) = %v, %v", name, ok, err)
		}
		if is, err := f.IsMountPoint(at(name)); is != want.isMountPoint || err != nil {
			t.Errorf("IsMountPoint(%s) = %v, %v", name, is, err)
		}
		if not, err := f.IsLikelyNotMountPoint(at(name)); not == want.isMountPoint || err != nil {
			t.Errorf("IsLikelyNotMountPoint(%s) = %v, %v", name, not, err)
		}
	}
	if _, err := f.IsMountPoint(at("nothing")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("IsMountPoint of nothing: %v", err)
	}
	if _, ok, err := f.Table().At(at("nothing/x")); ok || err != nil {
		t.Errorf("At of nothing = %v, %v", ok, err)
	}
	if _, _, err := f.Table().At("relative"); err == nil {
		t.Error("At takes a relative path")
	}
	if got := fakeEntryAt(t, f, at("link/t")).Target; got != at("real/t") {
		t.Errorf("the target is %s", got)
	}
}

func TestFakeCauses(t *testing.T) {
	f, root := mounttest.NewFake(t, "a/b", "c")
	at := func(name string) string { return filepath.Join(root, name) }
	writeFile(t, at("file"), "")
	if err := os.Symlink("a", at("link")); err != nil {
		t.Fatal(err)
	}
	mounttest.MountBy(t, f, mount.Request{Source: "/dev/sdx", Target: at("a"), FSType: "ext4"})
	tests := map[string]struct {
		request mount.Request
		cause   mount.Cause
	}{
		"no target":          {mount.Request{Source: "tmpfs", Target: at("nothing"), FSType: "tmpfs"}, mount.ErrNoTarget},
		"relative target":    {mount.Request{Source: "tmpfs", Target: "a", FSType: "tmpfs"}, mount.ErrNoTarget},
		"target is a link":   {mount.Request{Source: "tmpfs", Target: at("link"), FSType: "tmpfs"}, mount.ErrTargetIsLink},
		"no source":          {mount.Request{Source: at("nothing"), Target: at("c"), Options: []string{"bind"}}, mount.ErrNoSource},
		"another kind":       {mount.Request{Source: at("file"), Target: at("c"), Options: []string{"bind"}}, mount.ErrKindMismatch},
		"file system option": {mount.Request{Source: at("a"), Target: at("c"), Options: []string{"bind", "size=1"}}, mount.ErrBadOption},
		"unknown option":     {mount.Request{Source: "tmpfs", Target: at("c"), FSType: "tmpfs", Options: []string{"colour=red"}}, mount.ErrBadOption},
		"bad size":           {mount.Request{Source: "tmpfs", Target: at("c"), FSType: "tmpfs", Options: []string{"size=-1"}}, mount.ErrBadOption},
		"not mounted":        {mount.Request{Target: at("c"), Options: []string{"remount", "ro"}}, mount.ErrNotMounted},
		"same on itself":     {mount.Request{Source: "/dev/sdx", Target: at("a"), FSType: "ext4"}, mount.ErrBusy},
		"ro and rw":          {mount.Request{Source: "/dev/sdx", Target: at("c"), FSType: "ext4", Options: []string{"ro"}}, mount.ErrBusy},
		"another type":       {mount.Request{Source: "/dev/sdx", Target: at("c"), FSType: "xfs"}, mount.ErrBusy},
		"the root":           {mount.Request{Source: "tmpfs", Target: "/", FSType: "tmpfs"}, mount.ErrBusy},
	}
	for name, tc := range tests {
		err := f.MountContext(t.Context(), tc.request)
		if e, ok := errors.AsType[*mount.Error](err); !ok || e.Cause != tc.cause || e.Uncertain {
			t.Errorf("%s: %v; want the cause %q", name, err, tc.cause)
		}
	}
	for name, cause := range map[string]mount.Cause{"c": mount.ErrNotMounted, "nothing": mount.ErrNotMounted, "link": mount.ErrNotMounted} {
		if rung, err := f.UnmountContext(t.Context(), at(name), mount.UnmountOptions{}); !errors.Is(err, cause) || rung != mount.RungNormal {
			t.Errorf("unmount of %s = %v, %v", name, rung, err)
		}
	}
	if all, _ := f.Table().All(); len(all) != 2 {
		t.Errorf("failed mounts left %v", all)
	}
}

func TestFakeSharesFileSystems(t *testing.T) {
	f, root := mounttest.NewFake(t, "a", "b")
	a, b := filepath.Join(root, "a"), filepath.Join(root, "b")
	for name, tc := range map[string]struct {
		request mount.Request // for a
		options []string      // for b
		shared  bool
	}{
		"device":                 {mount.Request{Source: "/dev/sdx", FSType: "ext4"}, nil, true},
		"NFS":                    {mount.Request{Source: "s:/x", FSType: "nfs"}, nil, true},
		"NFS, options disagree":  {mount.Request{Source: "s:/x", FSType: "nfs"}, []string{"vers=3"}, false},
		"NFS, read-only for one": {mount.Request{Source: "s:/x", FSType: "nfs"}, []string{"ro"}, false},
		"tmpfs":                  {mount.Request{Source: "tmpfs", FSType: "tmpfs"}, nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			tc.request.Target = a
			mounttest.MountBy(t, f, tc.request)
			tc.request.Target, tc.request.Options = b, tc.options
			mounttest.MountBy(t, f, tc.request)
			if shared := fakeEntryAt(t, f, a).Device == fakeEntryAt(t, f, b).Device; shared != tc.shared {
				t.Errorf("shared = %v", shared)
			}
			mustUnmount(t, f, a)
			mustUnmount(t, f, b)
		})
	}
}

func TestFakeKeepsAServersData(t *testing.T) {
	f, root := mounttest.NewFake(t)
	request := mount.Request{Source: "server:/x", Target: root, FSType: "nfs"}
	mounttest.MountBy(t, f, request)
	writeFile(t, filepath.Join(root, "file"), "data")
	mustUnmount(t, f, root)
	mounttest.MountBy(t, f, request)
	if got := readFile(t, filepath.Join(root, "file")); got != "data" {
		t.Errorf("after mounting again: %q", got)
	}
}

func TestFakeCloseGivesEverythingBack(t *testing.T) {
	f, root := mounttest.NewFake(t, "a/b")
	writeFile(t, filepath.Join(root, "a/b/file"), "x")
	for range 2 {
		mounttest.MountBy(t, f, mount.Request{Source: "tmpfs", Target: filepath.Join(root, "a/b"), FSType: "tmpfs"})
		mounttest.MountBy(t, f, mount.Request{Source: "s:/x", Target: filepath.Join(root, "a"), FSType: "nfs"})
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		if got := readFile(t, filepath.Join(root, "a/b/file")); got != "x" {
			t.Errorf("after Close: %q", got)
		}
	}
}

func TestFakeTableSubscribe(t *testing.T) {
	f, root := mounttest.NewFake(t)
	ctx, cancel := context.WithCancel(t.Context())
	changes := f.Table().Subscribe(ctx)
	for range 2 {
		mounttest.MountBy(t, f, mount.Request{Source: "tmpfs", Target: root, FSType: "tmpfs"})
	}
	<-changes // one value for both
	select {
	case <-changes:
		t.Error("changes are not coalesced")
	default:
	}
	mustUnmount(t, f, root)
	<-changes
	cancel()
	if _, open := <-changes; open {
		t.Error("the channel is not closed")
	}
}

func TestFakeConcurrently(t *testing.T) {
	f, root := mounttest.NewFake(t, "source")
	writeFile(t, filepath.Join(root, "source", "file"), "x")
	var group sync.WaitGroup
	for n := range 8 {
		target := filepath.Join(root, fmt.Sprint(n))
		if err := os.Mkdir(target, 0o755); err != nil {
			t.Fatal(err)
		}
		group.Go(func() {
			for range 20 {
				request := mount.Request{Source: filepath.Join(root, "source"), Target: target, Options: []string{"bind"}}
				if n%2 == 0 {
					request = mount.Request{Source: "s:/x", Target: target, FSType: "nfs"}
				}
				if err := f.MountContext(context.Background(), request); err != nil {
					t.Error(err)
				}
				if _, ok, err := f.Table().At(target); !ok || err != nil {
					t.Errorf("At = %v, %v", ok, err)
				}
				f.Calls()
				if err := f.Unmount(target); err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
	if all, _ := f.Table().All(); len(all) != 1 {
		t.Errorf("left: %v", all)
	}
}

// tree lists every file below dir with its mode and content.
func tree(t failer, dir string) []string {
	var found []string
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		line := name + " " + info.Mode().String()
		if info.Mode().IsRegular() {
			data, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			line += " " + string(data)
		}
		found = append(found, line)
		return nil
	})
	if err != nil {
		t.Fatalf("walk: %v", err)
	}
	return found
}

// TestFakeGivesBackWhatItHid mounts and unmounts at random; when nothing is
// mounted any more, every file is where and as it was.
func TestFakeGivesBackWhatItHid(t *testing.T) {
	base := realTempDir(t)
	dirs := []string{"a", "a/x", "a/x/y", "b", "b/z"}
	for _, dir := range dirs {
		if err := os.Mkdir(filepath.Join(base, dir), 0o751); err != nil {
			t.Fatal(err)
		}
		writeFile(t, filepath.Join(base, dir, "file"), dir)
	}
	before := tree(t, base)
	rapid.Check(t, func(t *rapid.T) {
		f := fakemount.New()
		defer f.Close()
		dir := func(label string) string { return filepath.Join(base, rapid.SampledFrom(dirs).Draw(t, label)) }
		for range rapid.IntRange(1, 15).Draw(t, "steps") {
			target := dir("target")
			// Errors are what they are: the directory may be covered or busy.
			switch rapid.SampledFrom([]string{"tmpfs", "nfs", "bind", "rbind", "remount", "unmount"}).Draw(t, "action") {
			case "tmpfs":
				_ = f.Mount("tmpfs", target, "tmpfs", nil)
			case "nfs":
				_ = f.Mount("s:/x", target, "nfs", nil)
			case "bind":
				_ = f.Mount(dir("source"), target, "", []string{"bind"})
			case "rbind":
				_ = f.Mount(dir("source"), target, "", []string{"rbind"})
			case "remount":
				_ = f.Mount("", target, "", []string{"remount", "bind", "ro"})
			case "unmount":
				_ = f.Unmount(target)
			}
		}
		for {
			all, _ := f.Table().All()
			if len(all) == 1 {
				break
			}
			// Only a visible mount can be unmounted; one always is.
			unmounted := slices.ContainsFunc(all[1:], func(e mount.Entry) bool { return f.Unmount(e.Target) == nil })
			if !unmounted {
				t.Fatalf("none of these can be unmounted: %v", all)
			}
		}
		if diff := cmp.Diff(before, tree(t, base)); diff != "" {
			t.Fatalf("before and after (-before +after):\n%s", diff)
		}
	})
}

func BenchmarkFakeMountUnmountNFS(b *testing.B) {
	f, root := mounttest.NewFake(b, "pods/uid/volumes/kubernetes.io~nfs/nfs211")
	target := filepath.Join(root, "pods/uid/volumes/kubernetes.io~nfs/nfs211")
	for b.Loop() {
		if err := f.Mount("server:/x", target, "nfs", nil); err != nil {
			b.Fatal(err)
		}
		if err := f.Unmount(target); err != nil {
			b.Fatal(err)
		}
	}
}

// Another process's mounts are seen, and its calls are neither disturbed nor noted.
func TestBeside(t *testing.T) {
	f := fakemount.New()
	defer f.Close()
	f.Inject(fakemount.Fault{Err: errors.New("injected")})
	dir, other := t.TempDir(), f.Beside()
	if err := other.Mount("tmpfs", dir, "tmpfs", nil); err != nil {
		t.Fatal(err)
	}
	if _, mounted, err := f.Table().At(dir); !mounted || err != nil {
		t.Errorf("the other's mount is seen: %v, %v", mounted, err)
	}
	if err := f.Unmount(dir); err == nil || len(f.Calls()) != 1 || len(other.Calls()) != 1 {
		t.Errorf("unmounting: %v; calls %v and %v", err, f.Calls(), other.Calls())
	}
	if err := other.Unmount(dir); err != nil {
		t.Fatal(err)
	}
}
