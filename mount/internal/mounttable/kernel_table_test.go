package mounttable

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/internal/statmount"
)

// A root, a tmpfs on /a, a second one on top of it, one on /b that is hidden by
// a later mount on its parent, a bind of a file with a space in its name, a bind
// of a directory that was deleted, and a mount without a source.
const captured = `21 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,discard
30 21 0:40 / /a rw,nosuid shared:2 master:1 - tmpfs lower rw,size=64k
31 30 0:41 / /a ro,nosuid,relatime - tmpfs upper rw,size=64k,context="system_u:object_r:c1,c2"
32 31 0:42 / /a/deep rw - nfs4 10.0.0.1:/e\040x rw,vers=4.2
33 21 0:43 / /b/hidden rw - tmpfs x rw
34 21 0:44 / /b rw - tmpfs y rw
35 21 254:0 /src/a\040file\011\134 /c\040d rw - ext4 /dev/vda rw
36 21 254:0 /src/gone//deleted /e rw - ext4 /dev/vda rw
37 21 254:0 /a /refs rw - ext4 /dev/vda rw
38 21 0:45 / /empty rw - tmpfs  rw
39 21 254:0 /src/dir /f rw - ext4 /dev/vda rw
40 21 254:0 /src/dir /g rw - ext4 /dev/vda rw
`

func parseCaptured(t *testing.T) []mount.Entry {
	entries, err := ParseMountinfo(strings.NewReader(captured))
	if err != nil {
		t.Fatal(err)
	}
	return entries
}

func TestParseMountinfo(t *testing.T) {
	entries := parseCaptured(t)
	want := mount.Entry{
		ID: 31, ParentID: 30, Device: unix.Mkdev(0, 41), Root: "/", Target: "/a", Source: "upper", FSType: "tmpfs",
		Options:      []string{"ro", "nosuid", "relatime"},
		SuperOptions: []string{"rw", "size=64k", `context="system_u:object_r:c1,c2"`},
	}
	if diff := cmp.Diff(want, entries[2]); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"shared:2", "master:1"}, entries[1].Propagation); diff != "" {
		t.Error(diff)
	}
	if got := entries[3].Source; got != "10.0.0.1:/e x" {
		t.Errorf("source %q", got)
	}
	if got := entries[6]; got.Root != "/src/a file\t\\" || got.Target != "/c d" {
		t.Errorf("root %q, target %q", got.Root, got.Target)
	}
	if got := entries[9]; got.Source != "" || got.FSType != "tmpfs" {
		t.Errorf("the source is %q, the type %q", got.Source, got.FSType)
	}
	if got := entries[7].Root; got != "/src/gone//deleted" {
		t.Errorf("root %q", got)
	}
}

func TestParseMountinfoRefuses(t *testing.T) {
	for _, line := range []string{
		"nonsense", "1 2 0:1 / /a - tmpfs x rw", "1 2 0:1 / /a rw tmpfs x rw", "x 2 0:1 / /a rw - tmpfs x rw",
		"1 x 0:1 / /a rw - tmpfs x rw", "1 2 01 / /a rw - tmpfs x rw", "1 2 0:x / /a rw - tmpfs x rw", "1 2 x:0 / /a rw - tmpfs x rw",
		"1 2 0:1 / /a rw - tmpfs x",
	} {
		if entries, err := ParseMountinfo(strings.NewReader(line + "\n")); err == nil {
			t.Errorf("%q was accepted: %+v", line, entries)
		}
	}
	broken := errors.New("broken")
	if _, err := ParseMountinfo(failingReader{broken}); !errors.Is(err, broken) {
		t.Errorf("err = %v", err)
	}
}

type failingReader struct{ err error }

func (r failingReader) Read([]byte) (int, error) { return 0, r.err }

func FuzzParseMountinfo(f *testing.F) {
	f.Add(captured)
	f.Add("1 1 0:1 / / rw - a b c\n2 1 0:1 / / rw - a b c\n1 2 0:1 / / rw - a b c")
	f.Fuzz(func(t *testing.T, table string) {
		entries, err := ParseMountinfo(strings.NewReader(table))
		if err != nil {
			return
		}
		if lines := strings.Count(table, "\n") + 1; len(entries) > lines {
			t.Errorf("%d entries of %d lines", len(entries), lines)
		}
		for _, e := range entries { // any table must end the walk
			mountedAt(entries, e.Target)
			refsOf(entries, e.Target)
		}
	})
}

func TestMountedAt(t *testing.T) {
	entries := parseCaptured(t)
	for target, want := range map[string]int{
		"/": 21, "/a": 31, "/a/deep": 32, "/b": 34, "/b/hidden": 0, "/c d": 35, "/a/d": 0, "/nothing": 0,
	} {
		e, ok := mountedAt(entries, target)
		if ok != (want != 0) || ok && e.ID != want {
			t.Errorf("at %q: mount %d, %v; want %d", target, e.ID, ok, want)
		}
	}
	// A process in a chroot that is no mount point sees parents without lines.
	e, ok := mountedAt([]mount.Entry{{ID: 5, ParentID: 1, Target: "/proc"}, {ID: 6, ParentID: 5, Target: "/proc"}}, "/proc")
	if !ok || e.ID != 6 {
		t.Errorf("without a root: mount %d, %v", e.ID, ok)
	}
}

func TestLookUpReadsLinksOnlyWhereTheTableCannotTell(t *testing.T) {
	entries := parseCaptured(t)
	links := map[string]string{
		"/l": "/a", "/up": "a/../l/.", "/src/far": "../../l", "/loop": "/loop", "/twice": "/up",
		"/b/hidden": "/a", // in the tmpfs on /b, over the mount of that name
	}
	for target, want := range map[string]struct {
		id   int
		read []string
		err  error
	}{
		"/a/deep":         {id: 32},
		"/src/a/none":     {}, // no mount is called none
		"/a/x/deep":       {read: []string{"/a/x"}},
		"/a/deep/deep":    {}, // both parents are mount points
		"/a/deep/x/deep":  {read: []string{"/a/deep/x"}},
		"/l/deep":         {id: 32, read: []string{"/l"}},
		"/up/deep":        {id: 32, read: []string{"/up", "/l"}},
		"/twice/deep":     {id: 32, read: []string{"/twice", "/up", "/l"}},
		"/src/far/deep":   {id: 32, read: []string{"/src", "/src/far", "/l"}},
		"/b/hidden/deep":  {id: 32, read: []string{"/b/hidden"}},
		"/missing/x/deep": {read: []string{"/missing"}},
		"/loop/deep":      {read: slices.Repeat([]string{"/loop"}, MaxLinks+1), err: unix.ELOOP},
		"/stale/deep":     {read: []string{"/stale"}, err: unix.ESTALE},
	} {
		var read []string
		e, ok, _, err := lookUp(lines(entries), target, func(name string) (string, error) {
			read = append(read, name)
			switch link, isLink := links[name]; {
			case isLink:
				return link, nil
			case name == "/missing":
				return "", &os.PathError{Op: "readlink", Path: name, Err: unix.ENOENT}
			case name == "/stale":
				return "", &os.PathError{Op: "readlink", Path: name, Err: unix.ESTALE}
			}
			return "", &os.PathError{Op: "readlink", Path: name, Err: unix.EINVAL}
		})
		if ok != (want.id != 0) || e.ID != want.id || !errors.Is(err, want.err) {
			t.Errorf("%s: mount %d, %v, %v; want %d, %v", target, e.ID, ok, err, want.id, want.err)
		}
		if diff := cmp.Diff(want.read, read); diff != "" {
			t.Errorf("%s: read as links (-want +got):\n%s", target, diff)
		}
	}
}

func TestRefsOf(t *testing.T) {
	entries := parseCaptured(t)
	for target, want := range map[string][]string{
		"/f":       {"/g"},
		"/src/dir": {"/f", "/g"},
		"/c d":     nil,
		"/a":       nil, // the tmpfs there is not the directory below it that /refs shows
		"/refs":    nil,
	} {
		if diff := cmp.Diff(want, refsOf(entries, target)); diff != "" {
			t.Errorf("refs of %s: %s", target, diff)
		}
	}
}

func TestAtResolvesParentsOnly(t *testing.T) {
	x := New(statmount.Host{})
	dir := t.TempDir()
	if err := os.Symlink("/", filepath.Join(dir, "root")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/proc", filepath.Join(dir, "link-to-proc")); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]bool{
		"/proc": true, "/proc/": true, dir + "/root/proc": true, dir + "/root/../root/proc": true,
		dir + "/link-to-proc": false, dir: false, dir + "/missing/below": false, "/proc/self/mountinfo/below": false,
	} {
		e, ok, err := x.At(path)
		if err != nil || ok != want || ok && e.FSType != "proc" {
			t.Errorf("At(%s) = %+v, %v, %v; want %v", path, e, ok, err, want)
		}
	}
	if _, _, err := x.At("relative"); err == nil {
		t.Error("a relative path was accepted")
	}
}
