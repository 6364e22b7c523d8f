package emptydirs_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/emptydirs"
	"github.com/podvol/podvol/volume/internal/podmount"
)

func TestLifeOfEachMedium(t *testing.T) {
	tests := map[string]emptydirs.Options{
		"disk":               {},
		"disk, wrapped":      {Wrapped: true},
		"memory":             {Medium: memory},
		"memory, wrapped":    {Medium: memory, SizeBytes: 1 << 20, Wrapped: true},
		"huge pages":         {Medium: "HugePages-2Mi", SizeBytes: 4 << 20},
		"huge pages of 1 Gi": {Medium: "HugePages-1Gi"},
	}
	for name, o := range tests {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			setUmask(t, 0o077)
			b.setUp(o)
			want := fs.FileMode(0o777)
			if o.Medium == memory {
				want |= fs.ModeSticky // as the kubelet's
			}
			b.wantMode(want)
			b.wantReady(true, o.Wrapped)
			b.wantReady(false, !o.Wrapped)
			file := b.write("a/b/file")
			mounts := len(b.mounts())
			if want := o.Medium != ""; want != (mounts == 1) {
				t.Errorf("%d mounts", mounts)
			}

			// Again, after the pod has changed the directory itself.
			if err := os.Chmod(b.dir, 0o700); err != nil {
				t.Fatal(err)
			}
			b.setUp(o)
			b.wantData(file)
			b.wantMode(0o700)
			b.wantMounts(mounts)

			b.tearDown(o.Wrapped)
			b.wantNothing()
			b.tearDown(o.Wrapped)
			if _, err := os.Stat(filepath.Dir(b.dir)); err != nil {
				t.Errorf("the parents are the manager's: %v", err)
			}
		})
	}
}

func TestMountOptions(t *testing.T) {
	tests := map[string]struct {
		o       emptydirs.Options
		fsType  string
		options []string
	}{
		"memory":          {emptydirs.Options{Medium: memory}, "tmpfs", []string{"mode=1777", "noswap"}},
		"limited memory":  {emptydirs.Options{Medium: memory, SizeBytes: 4096, Mode: new(fs.FileMode(0o700))}, "tmpfs", []string{"mode=0700", "size=4096", "noswap"}},
		"huge pages":      {emptydirs.Options{Medium: "HugePages-2Mi"}, "hugetlbfs", []string{"mode=0777", "pagesize=2097152"}},
		"some huge pages": {emptydirs.Options{Medium: "HugePages-1Gi", SizeBytes: 2 << 30}, "hugetlbfs", []string{"mode=0777", "size=2147483648", "pagesize=1073741824"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.setUp(test.o)
			calls := b.fake.Calls()
			if len(calls) != 1 || calls[0].FSType != test.fsType || !slices.Equal(calls[0].Options, test.options) {
				t.Errorf("calls %v, want one of %s with %v", calls, test.fsType, test.options)
			}
		})
	}
}

func TestModeAndGroup(t *testing.T) {
	gid := int64(os.Getgid())
	tests := map[string]struct {
		o    emptydirs.Options
		want fs.FileMode
	}{
		"given mode":               {emptydirs.Options{Mode: new(fs.FileMode(0o750))}, 0o750},
		"no rights":                {emptydirs.Options{Mode: new(fs.FileMode(0))}, 0},
		"sticky":                   {emptydirs.Options{Mode: new(fs.ModeSticky | 0o777)}, 0o777 | fs.ModeSticky},
		"sticky with a group":      {emptydirs.Options{GID: &gid, Mode: new(fs.ModeSticky | 0o700)}, 0o770 | fs.ModeSticky | fs.ModeSetgid},
		"given mode in memory":     {emptydirs.Options{Mode: new(fs.FileMode(0o750)), Medium: memory}, 0o750},
		"group":                    {emptydirs.Options{GID: &gid}, 0o777 | fs.ModeSetgid},
		"group that had no rights": {emptydirs.Options{GID: &gid, Mode: new(fs.FileMode(0o700)), Medium: memory}, 0o770 | fs.ModeSetgid},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			setUmask(t, 0o027)
			b.setUp(test.o)
			b.wantMode(test.want)
		})
	}
}

func TestGroupOfAnotherUser(t *testing.T) {
	b := newBench(t)
	gid := int64(54321)
	err := emptydirs.SetUp(t.Context(), b.v, b.dir, emptydirs.Options{GID: &gid})
	if os.Geteuid() != 0 {
		if !errors.Is(err, fs.ErrPermission) || volume.IsUncertain(err) {
			t.Errorf("SetUp = %v", err)
		}
		b.wantNothing()
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Stat(b.dir, &st); err != nil || int64(st.Gid) != gid {
		t.Errorf("group %d, %v", st.Gid, err)
	}
}

func TestInvalidOptions(t *testing.T) {
	negative, huge := int64(-1), int64(1)<<32-1
	tests := map[string]emptydirs.Options{
		"size":                     {Medium: memory, SizeBytes: -1},
		"mode":                     {Mode: new(fs.ModeSymlink | 0o777)},
		"setuid":                   {Mode: new(fs.ModeSetuid | 0o777)},
		"group":                    {GID: &negative},
		"group that means nobody":  {GID: &huge},
		"medium":                   {Medium: "Floppy"},
		"huge pages without size":  {Medium: "HugePages"},
		"huge pages of no size":    {Medium: "HugePages-"},
		"huge pages of odd size":   {Medium: "HugePages-3Mi"},
		"huge pages of minus size": {Medium: "HugePages--2Mi"},
		"less than a page":         {Medium: "HugePages-2Mi", SizeBytes: 1 << 20},
	}
	for name, o := range tests {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			err := emptydirs.SetUp(t.Context(), b.v, b.dir, o)
			if _, ok := errors.AsType[*volume.InvalidSpecError](err); !ok || volume.IsUncertain(err) {
				t.Errorf("SetUp = %v", err)
			}
			if entries, err := os.ReadDir(b.host.RootDir); err != nil || len(entries) != 0 {
				t.Errorf("the root holds %v (%v)", entries, err)
			}
		})
	}
}

func TestOldKernelWithoutNoswap(t *testing.T) {
	b := newBench(t)
	b.fake.Inject(fakemount.Fault{Match: func(c fakemount.Call) bool { return slices.Contains(c.Options, "noswap") }, Err: unix.EINVAL})
	b.setUp(emptydirs.Options{Medium: memory, SizeBytes: 4096})
	b.wantMounts(1)
	b.wantReady(true, false)
	last := b.fake.Calls()[len(b.fake.Calls())-1]
	if !slices.Contains(last.Options, "size=4096") || slices.Contains(last.Options, "noswap") {
		t.Errorf("mounted with %v", last.Options)
	}
	b.wantMode(0o777 | fs.ModeSticky)
}

func TestFailureLeavesNothing(t *testing.T) {
	isMount := func(c fakemount.Call) bool { return c.Op == mount.OpMount }
	for name, after := range map[string]bool{"before its effect": false, "after its effect": true} {
		t.Run("mount fails "+name, func(t *testing.T) {
			b := newBench(t)
			b.fake.Inject(fakemount.Fault{Match: isMount, After: after, Err: unix.EPERM})
			err := emptydirs.SetUp(t.Context(), b.v, b.dir, emptydirs.Options{Medium: memory})
			if !errors.Is(err, unix.EPERM) || volume.IsUncertain(err) {
				t.Errorf("SetUp = %v", err)
			}
			b.wantNothing()
		})
	}
	for _, medium := range []v1.StorageMedium{"", memory} {
		t.Run("marker cannot be written, medium "+string(medium), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t)
				obstacle := filepath.Join(b.host.RootDir, "pods/u1/plugins")
				if err := os.MkdirAll(filepath.Dir(obstacle), 0o750); err != nil {
					t.Fatal(err)
				}
				if err := os.Symlink("/proc", obstacle); err != nil {
					t.Fatal(err)
				}
				err := emptydirs.SetUp(t.Context(), b.v, b.dir, emptydirs.Options{Medium: medium})
				if err == nil || volume.IsUncertain(err) {
					t.Errorf("SetUp = %v", err)
				}
				b.wantMounts(0)
				if _, err := os.Lstat(b.dir); !errors.Is(err, fs.ErrNotExist) {
					t.Errorf("the directory is left (%v)", err)
				}
			})
		})
	}
	t.Run("context ended", func(t *testing.T) {
		b := newBench(t)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := emptydirs.SetUp(ctx, b.v, b.dir, emptydirs.Options{}); !errors.Is(err, context.Canceled) || volume.IsUncertain(err) {
			t.Errorf("SetUp = %v", err)
		}
		b.wantNothing()
	})
}

func TestMarkerOutlivesTheMount(t *testing.T) {
	b := newBench(t)
	o := emptydirs.Options{Medium: memory}
	b.setUp(o)
	b.write("old")
	// A reboot takes the mount, and leaves directory and marker.
	if err := b.fake.Unmount(b.dir); err != nil {
		t.Fatal(err)
	}
	b.setUp(o)
	b.wantMounts(1)
	b.wantMode(0o777 | fs.ModeSticky)
	if _, err := os.Lstat(filepath.Join(b.dir, "old")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("old contents: %v", err)
	}

	if err := b.fake.Unmount(b.dir); err != nil {
		t.Fatal(err)
	}
	b.fake.Inject(fakemount.Fault{Err: unix.ENOMEM})
	if err := emptydirs.SetUp(t.Context(), b.v, b.dir, o); !errors.Is(err, unix.ENOMEM) {
		t.Errorf("SetUp = %v", err)
	}
	b.wantNothing()
}

func TestMountWithoutMarkerIsCompleted(t *testing.T) {
	b := newBench(t)
	o := emptydirs.Options{Medium: memory}
	b.setUp(o)
	file := b.write("file")
	if err := os.Remove(b.marker(false)); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(b.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	b.setUp(o)
	b.wantMounts(1)
	b.wantMode(0o777 | fs.ModeSticky)
	b.wantReady(true, false)
	b.wantData(file)
}

func TestDirectoryWithoutMarkerKeepsItsData(t *testing.T) {
	b := newBench(t)
	b.setUp(emptydirs.Options{})
	file := b.write("file")
	if err := os.Remove(b.marker(false)); err != nil {
		t.Fatal(err)
	}
	b.setUp(emptydirs.Options{})
	b.wantData(file)
	b.wantReady(true, false)
}

// Each directory of a volume is set up for itself.
func TestSeveralDirectories(t *testing.T) {
	b := newBench(t)
	b.setUp(emptydirs.Options{})
	other := filepath.Join(b.host.RootDir, "other")
	if err := os.Mkdir(other, 0o700); err != nil {
		t.Fatal(err)
	}
	mode := func(want fs.FileMode) {
		t.Helper()
		if info, err := os.Stat(other); err != nil || info.Mode().Perm() != want {
			t.Errorf("mode %v (%v), want %v", info.Mode(), err, want)
		}
	}
	setUp := func() {
		t.Helper()
		if err := emptydirs.SetUp(t.Context(), b.v, other, emptydirs.Options{}); err != nil {
			t.Fatal(err)
		}
	}
	setUp()
	mode(0o777)
	// Once set up, what the pod changed stays, here and there.
	for _, dir := range []string{b.dir, other} {
		if err := os.Chmod(dir, 0o750); err != nil {
			t.Fatal(err)
		}
	}
	setUp()
	b.setUp(emptydirs.Options{})
	mode(0o750)
	b.wantMode(0o750)

	if err := emptydirs.TearDown(t.Context(), b.v, other, false, nil); err != nil {
		t.Fatal(err)
	}
	b.wantReady(true, false)
	b.wantMode(0o750)
	b.tearDown(false)
	b.wantNothing()
}

func TestMarkerOutlivesTheDirectory(t *testing.T) {
	b := newBench(t)
	b.setUp(emptydirs.Options{})
	if err := os.Remove(b.dir); err != nil {
		t.Fatal(err)
	}
	b.setUp(emptydirs.Options{})
	b.wantMode(0o777)
}

func TestAnotherMediumIsInTheWay(t *testing.T) {
	for name, test := range map[string]struct{ first, second emptydirs.Options }{
		"memory where disk is wanted":       {emptydirs.Options{Medium: memory}, emptydirs.Options{}},
		"memory where huge pages is wanted": {emptydirs.Options{Medium: memory}, emptydirs.Options{Medium: "HugePages-2Mi"}},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.setUp(test.first)
			file := b.write("file")
			err := emptydirs.SetUp(t.Context(), b.v, b.dir, test.second)
			if _, ok := errors.AsType[*podmount.OccupiedError](err); !ok || volume.IsUncertain(err) {
				t.Errorf("SetUp = %v", err)
			}
			b.wantData(file)
			b.wantMounts(1)
			b.wantReady(true, false)
		})
	}
}

// A volume whose medium was edited while the pod ran.
func TestFilesOnDiskAreNotHidden(t *testing.T) {
	b := newBench(t)
	b.setUp(emptydirs.Options{})
	file := b.write("file")
	err := emptydirs.SetUp(t.Context(), b.v, b.dir, emptydirs.Options{Medium: memory})
	hidden, ok := errors.AsType[*emptydirs.HiddenFilesError](err)
	if !ok || hidden.Dir != b.dir || hidden.Medium != memory || volume.IsUncertain(err) {
		t.Errorf("SetUp = %v", err)
	}
	b.wantMounts(0)
	b.wantData(file)
	b.wantReady(true, false)

	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	b.setUp(emptydirs.Options{Medium: memory})
	b.wantMounts(1)
	b.tearDown(false)
	b.wantNothing()
}

func TestResize(t *testing.T) {
	b := newBench(t)
	b.setUp(emptydirs.Options{Medium: memory, SizeBytes: 1 << 20})
	file := b.write("file")
	b.fake.ResetCalls()
	b.setUp(emptydirs.Options{Medium: memory, SizeBytes: 1 << 20})
	b.setUp(emptydirs.Options{Medium: memory, SizeBytes: 1<<20 - 1})
	b.setUp(emptydirs.Options{Medium: memory})
	if calls := b.fake.Calls(); len(calls) != 0 {
		t.Errorf("the same size in pages was mounted again: %v", calls)
	}
	b.setUp(emptydirs.Options{Medium: memory, SizeBytes: 2 << 20})
	calls := b.fake.Calls()
	if len(calls) != 1 || !slices.Equal(calls[0].Options, []string{"remount", "size=2097152"}) {
		t.Errorf("calls %v", calls)
	}
	b.wantMounts(1)
	b.wantData(file)

	b.fake.Inject(fakemount.Fault{Err: unix.EINVAL})
	err := emptydirs.SetUp(t.Context(), b.v, b.dir, emptydirs.Options{Medium: memory, SizeBytes: 1})
	if !errors.Is(err, unix.EINVAL) || volume.IsUncertain(err) {
		t.Errorf("SetUp = %v", err)
	}
	b.wantMounts(1)
	b.wantReady(true, false)
	b.wantData(file)
}

func TestRootBehindALink(t *testing.T) {
	b := newBench(t)
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(b.host.RootDir, link); err != nil {
		t.Fatal(err)
	}
	real := b.dir
	b.use(&volume.Host{RootDir: link, Mounter: b.fake})
	for _, medium := range []v1.StorageMedium{"", memory} {
		b.setUp(emptydirs.Options{Medium: medium})
		b.setUp(emptydirs.Options{Medium: medium})
		b.write("file")
		if medium == memory {
			b.dir = real
			b.wantMounts(1)
			b.dir = b.v.GetPath()
		}
		b.tearDown(false)
		b.wantNothing()
	}
}

func TestMediumOf(t *testing.T) {
	for want, entry := range map[v1.StorageMedium]mount.Entry{
		"":               {FSType: "ext4"},
		"Memory":         {FSType: "tmpfs"},
		"HugePages":      {FSType: "hugetlbfs", SuperOptions: []string{"rw", "pagesize=x"}},
		"HugePages-2Mi":  {FSType: "hugetlbfs", SuperOptions: []string{"rw", "pagesize=2M"}},
		"HugePages-1Gi":  {FSType: "hugetlbfs", SuperOptions: []string{"rw", "pagesize=1024M"}},
		"HugePages-64Ki": {FSType: "hugetlbfs", Options: []string{"pagesize=65536"}},
	} {
		if got := emptydirs.MediumOf(entry); got != want {
			t.Errorf("MediumOf(%v) = %q, want %q", entry, got, want)
		}
	}
}
