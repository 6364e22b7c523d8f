//go:build linux

package atomicdir

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/volume/fileset"
)

// text makes a set of files of mode 0644.
func text(contents map[string]string) map[string]fileset.File {
	files := make(map[string]fileset.File, len(contents))
	for name, data := range contents {
		files[name] = fileset.File{Data: []byte(data), Mode: 0o644}
	}
	return files
}

// visible reads what a user of dir sees: every file that can be reached by a
// name that does not begin with "..", links followed.
func visible(t testing.TB, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	var walk func(path, name string)
	walk = func(path, name string) {
		info, err := os.Stat(path)
		if err != nil {
			t.Errorf("visible but not there: %v", err)
			return
		}
		if !info.IsDir() {
			data, err := os.ReadFile(path)
			if err != nil {
				t.Error(err)
			}
			all[name] = string(data)
			return
		}
		entries, err := os.ReadDir(path)
		if err != nil {
			t.Error(err)
		}
		for _, e := range entries {
			if name == "" && strings.HasPrefix(e.Name(), "..") {
				continue
			}
			walk(filepath.Join(path, e.Name()), filepath.Join(name, e.Name()))
		}
	}
	walk(dir, "")
	return all
}

func versions(t testing.TB, dir string) []string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "..2*"))
	if err != nil {
		t.Fatal(err)
	}
	return names
}

func mustPublish(t testing.TB, p *Publisher, dir string, files map[string]fileset.File) (changed bool) {
	t.Helper()
	changed, err := p.Publish(t.Context(), dir, files)
	if err != nil {
		t.Fatal(err)
	}
	return changed
}

func wantVisible(t testing.TB, dir string, want map[string]string) {
	t.Helper()
	if diff := cmp.Diff(want, visible(t, dir)); diff != "" {
		t.Errorf("visible files (-want +got):\n%s", diff)
	}
}

func TestPublishSequence(t *testing.T) {
	dir := t.TempDir()
	var p Publisher
	for n, contents := range []map[string]string{
		{"a": "1", "b": "2", "nested/deep/c": "3"},
		{"a": "1", "b": "changed", "nested/deep/c": "3"},
		{"a": "1", "new": "4", "nested/other/d": "5"},
		{"nested": "now a file", "a/b": "now a directory"},
		{"a": "", "big": strings.Repeat("0123456789", 50_000)},
		{"a": "x", "big": strings.Repeat("0123456789", 49_999) + "012345678X"},
		{},
		{"a": "1", ".hidden": "2", "a b": "3", "-rf": "4", "ü/ö": "5", "x/..y": "6", strings.Repeat("n", 255): "7"},
	} {
		if !mustPublish(t, &p, dir, text(contents)) {
			t.Errorf("%d: not changed", n)
		}
		wantVisible(t, dir, contents)
		if mustPublish(t, &p, dir, text(contents)) {
			t.Errorf("%d: changed although it was the same", n)
		}
		if mustPublish(t, new(Publisher), dir, text(contents)) {
			t.Errorf("%d: changed for a new Publisher, although it was the same", n)
		}
		if got, want := len(versions(t, dir)), min(n+1, 2); got != want {
			t.Errorf("%d: %d versions on disk, want %d", n, got, want)
		}
	}
}

// The layout is the kubelet's.
func TestLayout(t *testing.T) {
	dir := t.TempDir()
	mustPublish(t, new(Publisher), dir, text(map[string]string{"ca.crt": "x", "nested/a": "y"}))
	data, err := os.Readlink(filepath.Join(dir, "..data"))
	if err != nil {
		t.Fatal(err)
	}
	if !versionName().MatchString(data) {
		t.Errorf("..data leads to %q", data)
	}
	if info, err := os.Lstat(filepath.Join(dir, data)); err != nil || info.Mode() != fs.ModeDir|0o755 {
		t.Errorf("the version's mode is %v, %v", info.Mode(), err)
	}
	for _, name := range []string{"ca.crt", "nested"} {
		if link, err := os.Readlink(filepath.Join(dir, name)); err != nil || link != "..data/"+name {
			t.Errorf("%s leads to %q, %v", name, link, err)
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) != 4 {
		t.Errorf("%d entries, want the version, ..data and two links: %v", len(entries), entries)
	}
}

// What a kubelet left is taken over: unchanged contents are not written again.
func TestTakesOverFromKubelet(t *testing.T) {
	dir := t.TempDir()
	version := filepath.Join(dir, "..2025_12_31_23_59_58.1234567890")
	if err := os.MkdirAll(filepath.Join(version, "sub"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string]string{"a": "1", "sub/b": "2"} {
		if err := os.WriteFile(filepath.Join(version, name), []byte(data), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for link, to := range map[string]string{"..data": filepath.Base(version), "a": "..data/a", "sub": "..data/sub"} {
		if err := os.Symlink(to, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	var p Publisher
	if mustPublish(t, &p, dir, text(map[string]string{"a": "1", "sub/b": "2"})) {
		t.Error("unchanged contents were written again")
	}
	if !mustPublish(t, &p, dir, text(map[string]string{"a": "1"})) {
		t.Error("not changed")
	}
	wantVisible(t, dir, map[string]string{"a": "1"})
}

func TestModesAndOwnersAreExact(t *testing.T) {
	id := func(n int64) *int64 { return &n }
	files := map[string]fileset.File{}
	for _, mode := range []fs.FileMode{0, 0o400, 0o440, 0o444, 0o600, 0o644, 0o666, 0o777} {
		files["sub/"+mode.String()] = fileset.File{Data: []byte("x"), Mode: mode}
	}
	if os.Geteuid() == 0 {
		files["owned"] = fileset.File{Mode: 0o440, UID: id(1234), GID: id(5678)}
		files["group"] = fileset.File{Mode: 0o640, GID: id(5678)}
		files["root"] = fileset.File{Mode: 0o640, UID: id(0), GID: id(0)}
	}
	check := func(dir string) {
		t.Helper()
		for name, f := range files {
			info, err := os.Stat(filepath.Join(dir, name))
			if err != nil {
				t.Fatal(err)
			}
			if info.Mode() != f.Mode {
				t.Errorf("%s: mode %v, want %v", name, info.Mode(), f.Mode)
			}
			st := info.Sys().(*syscall.Stat_t)
			if f.UID != nil && int64(st.Uid) != *f.UID || f.GID != nil && int64(st.Gid) != *f.GID {
				t.Errorf("%s: owner %d:%d", name, st.Uid, st.Gid)
			}
		}
		if info, err := os.Stat(filepath.Join(dir, "sub")); err != nil || info.Mode().Perm() != 0o755 {
			t.Errorf("directory: %v, %v", info.Mode(), err)
		}
	}
	for _, umask := range []int{0, 0o022, 0o077} {
		dir := t.TempDir()
		restore := unix.Umask(umask)
		_, err := new(Publisher).Publish(t.Context(), dir, files)
		unix.Umask(restore)
		if err != nil {
			t.Fatal(err)
		}
		check(dir)
	}
	// A change of mode or owner alone is a change; what else is the same keeps
	// its owner and mode.
	dir := t.TempDir()
	var p Publisher
	mustPublish(t, &p, dir, files)
	for name, f := range maps.Clone(files) {
		f.Mode ^= 0o004
		if f.UID != nil {
			f.UID = id(*f.UID + 1)
		}
		files[name] = f
		if !mustPublish(t, &p, dir, files) {
			t.Errorf("%s: the change was not noticed", name)
		}
		check(dir)
	}
}

// A file without an owner has that of its creation, whoever had it before.
func TestOwnersThatAreDropped(t *testing.T) {
	euid, egid := os.Geteuid(), os.Getegid()
	other := func(t *testing.T, p *Publisher, dir string) *int64 {
		t.Helper()
		// Any other group will do; without privilege, only one's own can.
		groups, err := os.Getgroups()
		if err != nil {
			t.Fatal(err)
		}
		for _, gid := range append(groups, 5678) {
			id := int64(gid)
			_, err := p.Publish(t.Context(), dir, map[string]fileset.File{"a": {Mode: 0o644, GID: &id}})
			if gid != egid && err == nil {
				return &id
			}
		}
		t.Skip("this process may not give files to any other group")
		return nil
	}
	wantOwner := func(dir string, uid, gid int) {
		t.Helper()
		info, err := os.Stat(filepath.Join(dir, "a"))
		if err != nil {
			t.Fatal(err)
		}
		if st := info.Sys().(*syscall.Stat_t); int(st.Uid) != uid || int(st.Gid) != gid {
			t.Errorf("owner %d:%d, want %d:%d", st.Uid, st.Gid, uid, gid)
		}
	}
	for name, next := range map[string]func(*Publisher) *Publisher{
		"while it is remembered": func(p *Publisher) *Publisher { return p },
		"after a restart":        func(*Publisher) *Publisher { return new(Publisher) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			p := new(Publisher)
			gid := other(t, p, dir)
			wantOwner(dir, euid, int(*gid))
			set := map[string]fileset.File{"a": {Mode: 0o644}}
			p = next(p)
			if !mustPublish(t, p, dir, set) {
				t.Error("not changed")
			}
			wantOwner(dir, euid, egid)
			if mustPublish(t, next(p), dir, set) {
				t.Error("changed again")
			}
		})
	}
}

func TestReadersKeepTheirVersion(t *testing.T) {
	dir := t.TempDir()
	var p Publisher
	mustPublish(t, &p, dir, text(map[string]string{"a": "1", "b": "1"}))
	held, err := os.OpenRoot(filepath.Join(dir, "..data"))
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	mustPublish(t, &p, dir, text(map[string]string{"a": "2", "c": "2"}))
	for _, name := range []string{"a", "b"} {
		if got, err := held.ReadFile(name); err != nil || string(got) != "1" {
			t.Errorf("%s = %q, %v after one update: not the version that is held open", name, got, err)
		}
	}
	// Unchanged sets are no publications.
	mustPublish(t, &p, dir, text(map[string]string{"a": "2", "c": "2"}))
	if _, err := held.ReadFile("a"); err != nil {
		t.Errorf("gone without a further update: %v", err)
	}
	// It stays until the next version is in place, and goes then.
	looked := false
	p.beforeStep = func(op, name string) error {
		if op == "replace" {
			looked = true
			if _, err := held.ReadFile("a"); err != nil {
				t.Errorf("gone before the next version is in place: %v", err)
			}
		}
		return nil
	}
	mustPublish(t, &p, dir, text(map[string]string{"a": "3"}))
	if _, err := held.ReadFile("a"); !looked || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the outdated version stays: %v", err)
	}
}

// While updates run, whoever opens ..data sees one whole version, no visible
// name dangles, and a name in all versions is always there.
func TestUpdatesAreAtomicForReaders(t *testing.T) {
	dir := t.TempDir()
	set := func(n int) map[string]fileset.File {
		v := strings.Repeat(string(rune('a'+n%26)), 100+n)
		files := text(map[string]string{"always": v, "nested/always": v})
		for i := range 5 {
			if n>>i&1 == 1 {
				files["some"+string(rune('0'+i))] = fileset.File{Data: []byte(v), Mode: 0o644}
			}
		}
		return files
	}
	var p Publisher
	mustPublish(t, &p, dir, set(0))
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	var begun atomic.Int64
	go func() {
		defer close(done)
		for reads := 0; ctx.Err() == nil || reads == 0; reads++ {
			checkReader(t, dir, &begun)
		}
	}()
	for n := range 300 {
		begun.Add(1)
		mustPublish(t, &p, dir, set(n))
	}
	stop()
	<-done
}

func checkReader(t *testing.T, dir string, begun *atomic.Int64) {
	before := begun.Load()
	a, err := os.ReadFile(filepath.Join(dir, "always"))
	if errors.Is(err, fs.ErrNotExist) && begun.Load() != before {
		return // the open was suspended for the whole time of an update
	}
	if err != nil || strings.Count(string(a), string(a[:1])) != len(a) {
		t.Errorf("one open: %q, %v", a, err)
	}
	version, err := os.Readlink(filepath.Join(dir, "..data"))
	if err != nil {
		t.Error(err)
		return
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Error(err)
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), "..") {
			continue
		}
		_, statErr := os.Stat(filepath.Join(dir, e.Name()))
		if _, lstatErr := os.Lstat(filepath.Join(dir, e.Name())); statErr != nil && lstatErr == nil {
			// Between the two looks the link may have gone and come back; then
			// the version is another one.
			if now, err := os.Readlink(filepath.Join(dir, "..data")); err == nil && now == version {
				t.Errorf("%s dangles", e.Name())
			}
		}
	}
	held, err := os.OpenRoot(filepath.Join(dir, "..data"))
	if errors.Is(err, fs.ErrNotExist) { // two updates between two system calls
		return
	}
	if err != nil {
		t.Error(err)
		return
	}
	defer held.Close()
	seen := map[string]bool{}
	for _, name := range []string{"always", "nested/always"} {
		if data, err := held.ReadFile(name); err == nil {
			seen[string(data)] = true
		}
	}
	if len(seen) > 1 {
		t.Errorf("one open directory shows several versions: %v", slices.Collect(maps.Keys(seen)))
	}
}
