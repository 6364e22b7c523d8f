package volumetest

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/table"
)

// assertShown fails unless the volume shows what its case wants. It may be
// called from any goroutine.
func (v *podVolume) assertShown() {
	t, want := v.node.T(), v.node.working.Want
	t.Helper()
	dir := v.GetPath()
	if got := v.GetAttributes().ReadOnly; got != want.ReadOnly {
		t.Errorf("GetAttributes().ReadOnly = %v, want %v", got, want.ReadOnly)
	}
	if v.Owned() {
		if info, err := os.Stat(dir); err != nil || !info.IsDir() {
			t.Errorf("after SetUp there is no directory at GetPath() %s: %v", dir, err)
			return
		}
	}
	if want.Mode != 0 {
		v.assertMode(dir, want.Mode)
	}
	for _, name := range slices.Sorted(maps.Keys(want.Files)) {
		v.assertFile(filepath.Join(dir, name), want.Files[name])
	}
	if want.Exact {
		v.assertNothingElse(want.Files)
	}
	if want.Mount != nil {
		v.assertMounted(*want.Mount)
	}
}

const modeBits = fs.ModePerm | fs.ModeSetuid | fs.ModeSetgid | fs.ModeSticky

func (v *podVolume) assertMode(path string, want fs.FileMode) {
	v.node.T().Helper()
	info, err := os.Stat(path)
	if err != nil {
		v.node.T().Error(err)
		return
	}
	if got := info.Mode() & modeBits; got != want&modeBits {
		v.node.T().Errorf("%s has mode %v, want %v", path, got, want&modeBits)
	}
}

func (v *podVolume) assertFile(path string, want File) {
	t := v.node.T()
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Errorf("the volume does not show a file: %v", err)
		return
	}
	if string(content) != want.Content && !want.Varies {
		t.Errorf("%s contains %q, want %q", path, content, want.Content)
	}
	if want.Mode != 0 {
		v.assertMode(path, want.Mode)
	}
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		t.Error(err)
		return
	}
	if want.UID != nil && int64(st.Uid) != *want.UID {
		t.Errorf("%s belongs to user %d, want %d", path, st.Uid, *want.UID)
	}
	if want.GID != nil && int64(st.Gid) != *want.GID {
		t.Errorf("%s belongs to group %d, want %d", path, st.Gid, *want.GID)
	}
}

// assertNothingElse fails if the volume shows more than the files. Links at its
// top are followed, as those of a published set of files are.
func (v *podVolume) assertNothingElse(files map[string]File) {
	t := v.node.T()
	t.Helper()
	wanted := map[string]bool{}
	for name := range files {
		for ; name != "."; name = filepath.Dir(name) {
			wanted[name] = true
		}
	}
	entries, err := os.ReadDir(v.GetPath())
	if err != nil {
		t.Error(err)
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), "..") {
			continue
		}
		top, err := filepath.EvalSymlinks(filepath.Join(v.GetPath(), e.Name()))
		if err != nil {
			t.Error(err)
			continue
		}
		err = filepath.WalkDir(top, func(path string, _ fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			rel, err := filepath.Rel(top, path)
			if name := filepath.Join(e.Name(), rel); !wanted[name] {
				t.Errorf("the volume shows %s, which is not wanted", name)
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	}
}

func (v *podVolume) assertMounted(want Mount) {
	t := v.node.T()
	t.Helper()
	entry, mounted, err := v.lookUp()
	if err != nil {
		t.Error(err)
		return
	}
	if !mounted {
		t.Errorf("nothing is mounted at %s", v.GetPath())
		return
	}
	if want.Source != "" && entry.Source != want.Source {
		t.Errorf("%s is mounted at %s, want %s", entry.Source, v.GetPath(), want.Source)
	}
	if want.FSType != "" && entry.FSType != want.FSType {
		t.Errorf("a %s is mounted at %s, want %s", entry.FSType, v.GetPath(), want.FSType)
	}
	for _, o := range want.Options {
		if !slices.Contains(entry.Options, o) && !slices.Contains(entry.SuperOptions, o) {
			t.Errorf("the mount at %s has options %v and %v, without %q", v.GetPath(), entry.Options, entry.SuperOptions, o)
		}
	}
}

// entry is what the mount table shows at the volume's path.
func (v *podVolume) entry() (mount.Entry, bool) {
	v.node.T().Helper()
	entry, mounted, err := v.lookUp()
	if err != nil {
		v.node.T().Fatal(err)
	}
	return entry, mounted
}

func (v *podVolume) lookUp() (mount.Entry, bool, error) {
	mounts := table.Of(v.node.GetMounter())
	return mounts.At(v.GetPath())
}

// assertGone fails if anything is left of the volume's own directory.
func (v *podVolume) assertGone() {
	v.node.T().Helper()
	if !v.Owned() {
		return
	}
	if _, err := os.Lstat(v.GetPath()); !errors.Is(err, fs.ErrNotExist) {
		v.node.T().Errorf("after TearDown the directory %s is still there (%v)", v.GetPath(), err)
	}
}
