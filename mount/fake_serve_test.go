package mount_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/podvol/podvol/mount"
)

// What mounts hide is nowhere but where the fake was told to keep it.
func TestFakeKeepsWhatItHidesWhereItIsTold(t *testing.T) {
	f, root := newFake(t, "kept", "parent/t")
	t.Setenv("TMPDIR", "/nowhere")
	kept := filepath.Join(root, "kept")
	f.KeepIn(kept)
	target := filepath.Join(root, "parent/t")
	for _, r := range []mount.Request{
		{Source: "server:/x", Target: target, FSType: "nfs"},
		{Source: "tmpfs", Target: target, FSType: "tmpfs"},
	} {
		mustMount(t, f, r)
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
	f, root := newFake(t, "export/a/b", "outer", "inner", "t")
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
		mustMount(t, f, mount.Request{Source: source, Target: target, FSType: "nfs"})
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
	mustMount(t, f, mount.Request{Source: "server:/x/c", Target: target, FSType: "nfs"})
	mustUnmount(t, f, target)
	// What was never served shows a tree of its own, also below another one.
	for _, source := range []string{"other:/x", "other:/x/a"} {
		mustMount(t, f, mount.Request{Source: source, Target: target, FSType: "nfs"})
		writeFile(t, filepath.Join(target, "own"), source)
		mustUnmount(t, f, target)
	}
	mustMount(t, f, mount.Request{Source: "other:/x", Target: target, FSType: "nfs"})
	if got := readFile(t, filepath.Join(target, "own")); got != "other:/x" {
		t.Errorf("other:/x shows what was written to %q", got)
	}
}
