package fakemount_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/util/testenv/mounttest"
)

// What mounts hide is nowhere but where the fake was told to keep it.
func TestFakeKeepsWhatItHidesWhereItIsTold(t *testing.T) {
	f, root := mounttest.NewFake(t, "kept", "parent/t")
	t.Setenv("TMPDIR", "/nowhere")
	kept := filepath.Join(root, "kept")
	f.KeepIn(kept)
	target := filepath.Join(root, "parent/t")
	for _, r := range []mount.Request{
		{Source: "server:/x", Target: target, FSType: "nfs"},
		{Source: "tmpfs", Target: target, FSType: "tmpfs"},
	} {
		mounttest.MountBy(t, f, r)
		if got := names(t, filepath.Dir(target)); !slices.Equal(got, []string{"t"}) {
			t.Errorf("beside a %s there is %q", r.FSType, got)
		}
		if got := names(t, kept); len(got) != 1 {
			t.Errorf("with a %s it keeps %q", r.FSType, got)
		}
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	if got := names(t, kept); len(got) != 0 {
		t.Errorf("left after Close: %q", got)
	}
}

// A directory below an export can be mounted by itself, once it is there.
func TestFakeServesWhatIsBelowAnExport(t *testing.T) {
	f, root := mounttest.NewFake(t, "export/a/b", "outer", "inner", "t")
	f.Serve("server:/x", filepath.Join(root, "export"))
	f.Serve("server:/", filepath.Join(root, "outer"))
	f.Serve("server:/x/a/deeper/than/any", filepath.Join(root, "outer"))
	f.Serve("[fd00::1]:/x/", filepath.Join(root, "inner"))
	target := filepath.Join(root, "t")
	writeFile(t, filepath.Join(root, "export/a/b/file"), "deep")
	writeFile(t, filepath.Join(root, "outer/file"), "no directory")
	for link, to := range map[string]string{"export/link": "a", "export/out": root} {
		if err := os.Symlink(to, filepath.Join(root, link)); err != nil {
			t.Fatal(err)
		}
	}
	for _, source := range []string{"server:/x/a/b", "server:/x//a/b/"} {
		mounttest.MountBy(t, f, mount.Request{Source: source, Target: target, FSType: "nfs"})
		if got := readFile(t, filepath.Join(target, "file")); got != "deep" {
			t.Errorf("%s shows %q", source, got)
		}
		if e, _, err := f.Table().At(target); err != nil || e.Source != source || e.Root != "/" {
			t.Errorf("the table has %+v, %v", e, err)
		}
		mustUnmount(t, f, target)
	}
	for _, source := range []string{"server:/x/c", "server:/xa", "server:/file", "server:/x/link", "server:/x/out", "server:/x/../outer", "[fd00::1]:/x/c"} {
		err := f.MountContext(t.Context(), mount.Request{Source: source, Target: target, FSType: "nfs"})
		if !errors.Is(err, mount.ErrNoSuchExport) {
			t.Errorf("%s: %v", source, err)
		}
	}
	if err := os.Mkdir(filepath.Join(root, "export/c"), 0o750); err != nil {
		t.Fatal(err)
	}
	mounttest.MountBy(t, f, mount.Request{Source: "server:/x/c", Target: target, FSType: "nfs"})
	mustUnmount(t, f, target)
	// What was never served shows a tree of its own, also below another one.
	for _, source := range []string{"other:/x", "other:/x/a"} {
		mounttest.MountBy(t, f, mount.Request{Source: source, Target: target, FSType: "nfs"})
		writeFile(t, filepath.Join(target, "own"), source)
		mustUnmount(t, f, target)
	}
	mounttest.MountBy(t, f, mount.Request{Source: "other:/x", Target: target, FSType: "nfs"})
	if got := readFile(t, filepath.Join(target, "own")); got != "other:/x" {
		t.Errorf("other:/x shows what was written to %q", got)
	}
}

// A type that was served shows what its function says of each request, keeps what
// is written as that directory does, and is mounted and unmounted as any other.
func TestFakeServesAType(t *testing.T) {
	f, root := mounttest.NewFake(t, "upper", "image", "a", "b")
	upper, image := filepath.Join(root, "upper"), filepath.Join(root, "image")
	writeFile(t, filepath.Join(image, "file"), "packed")
	var asked []string
	f.ServeType("overlay", func(r mount.Request) (string, error) {
		asked = append(asked, r.Options...)
		return upper, nil
	})
	f.ServeType("squashfs", func(r mount.Request) (string, error) {
		asked = append(asked, r.Source)
		return image, nil
	})
	a, b := filepath.Join(root, "a"), filepath.Join(root, "b")
	entry := func(target string) mount.Entry {
		e, mounted, err := f.Table().At(target)
		if err != nil || !mounted {
			t.Fatalf("%s: %v, %v", target, mounted, err)
		}
		return e
	}

	overlay := mount.Request{Source: "overlay", FSType: "overlay", Options: []string{"upperdir=" + upper}}
	for _, target := range []string{a, b} {
		overlay.Target = target
		mounttest.MountBy(t, f, overlay)
	}
	if entry(a).Device == entry(b).Device || entry(a).ReadOnly() {
		t.Errorf("two overlays are %+v and %+v", entry(a), entry(b))
	}
	writeFile(t, filepath.Join(a, "written"), "data")
	mustUnmount(t, f, a)
	mustUnmount(t, f, b)
	if got := readFile(t, filepath.Join(upper, "written")); got != "data" || len(names(t, a)) != 0 {
		t.Errorf("after the unmount there are %q and, at the target, %q", got, names(t, a))
	}

	for _, target := range []string{a, b} {
		mounttest.MountBy(t, f, mount.Request{Source: "/images/x.squashfs", Target: target, FSType: "squashfs", Options: []string{"ro", "loop"}})
		if got := readFile(t, filepath.Join(target, "file")); got != "packed" || !entry(target).ReadOnly() {
			t.Errorf("%s shows %q, %+v", target, got, entry(target))
		}
	}
	if entry(a).Device != entry(b).Device {
		t.Error("an image that is mounted twice is two file systems")
	}
	mustUnmount(t, f, a)
	mustUnmount(t, f, b)
	mounttest.MountBy(t, f, mount.Request{Source: "/images/y", Target: a, FSType: "squashfs"})
	if !entry(a).ReadOnly() {
		t.Error("a squashfs can be written to")
	}
	mustUnmount(t, f, a)
	if want := []string{"upperdir=" + upper, "upperdir=" + upper, "/images/x.squashfs", "/images/y"}; !slices.Equal(asked, want) {
		t.Errorf("asked for %q, want %q", asked, want)
	}

	// Its failure is the mount's, which leaves nothing.
	broken := errors.New("no such image")
	f.ServeType("squashfs", func(mount.Request) (string, error) { return "", broken })
	err := f.MountContext(t.Context(), mount.Request{Source: "/images/z", Target: a, FSType: "squashfs"})
	if _, mounted, _ := f.Table().At(a); !errors.Is(err, broken) || mounted {
		t.Errorf("err = %v, mounted: %v", err, mounted)
	}
	f.ServeType("overlay", nil)
	overlay.Target = a
	mounttest.MountBy(t, f, overlay)
	if got := names(t, a); len(got) != 0 {
		t.Errorf("an overlay that is not served any more shows %q", got)
	}
	mustUnmount(t, f, a)
}
