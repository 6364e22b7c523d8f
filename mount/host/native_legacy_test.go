package host

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
	"github.com/podvol/podvol/mount/internal/mountapi"
	"github.com/podvol/podvol/mount/internal/mountopt"
	"github.com/podvol/podvol/mount/internal/mounttable"
	"github.com/podvol/podvol/util/pathin"
	"github.com/podvol/podvol/util/testenv/nstest"
)

// request reads "TYPE SOURCE TARGET OPTIONS", where "-" is nothing and paths
// are below base.
func request(base, words string) mount.Request {
	f := strings.Fields(words)
	for i, w := range f {
		if w == "-" {
			f[i] = ""
		}
	}
	r := mount.Request{Source: f[1], Target: filepath.Join(base, f[2]), FSType: f[0], Options: mountopt.Split(f[3])}
	if r.FSType == "" && r.Source != "" {
		r.Source = filepath.Join(base, r.Source)
	}
	return r
}

// nativeStories are requests one after the other, with the calls of the new
// mount API that they need.
func nativeStories() map[string]struct {
	requests []string
	needs    []string
} {
	type story = struct {
		requests []string
		needs    []string
	}
	made := []string{"fsopen", "fsconfig", "create", "fsmount", "move_mount"}
	bound := []string{"open_tree", "mount_setattr", "move_mount"}
	changed := []string{"fspick", "reconfigure", "mount_setattr"}
	return map[string]story{
		"tmpfs":             {[]string{"tmpfs src a size=64k,mode=0711,ro,nosuid,noexec,noatime,nodiratime,nosymfollow,sync"}, made},
		"read-only mount":   {[]string{"tmpfs src a size=64k,ro=vfs,nodev"}, made},
		"read-only super":   {[]string{"tmpfs src a size=64k,ro=fs,dirsync,lazytime"}, made},
		"strictatime":       {[]string{"tmpfs src a size=64k,strictatime"}, made},
		"stacked":           {[]string{"tmpfs one a size=64k", "tmpfs two a size=128k"}, made},
		"shared":            {[]string{"tmpfs src a size=64k,shared", "tmpfs src a/x size=64k,private"}, made},
		"bind":              {[]string{"tmpfs src a size=64k,nosuid,noatime", "- a b bind,ro,noexec"}, bound},
		"bind, suid again":  {[]string{"tmpfs src a size=64k,nosuid,nodev", "- a b bind,suid"}, bound},
		"bind, atime again": {[]string{"tmpfs src a size=64k,noatime", "- a b bind,atime", "- a c bind,norelatime"}, bound},
		"bind strictatime":  {[]string{"tmpfs src a size=64k", "- a b bind,strictatime,nodiratime"}, bound},
		"rbind": {
			[]string{"tmpfs src a size=64k", "tmpfs src a/x size=64k,nodev", "- a b rbind,ro"}, bound,
		},
		"rbind, recursive": {
			[]string{"tmpfs src a size=64k", "tmpfs src a/x size=64k,nodev", "tmpfs src a/x/y size=64k,noatime", "- a b rbind,ro=recursive,noexec=recursive,nosuid,relatime=recursive"}, bound,
		},
		"rbind, shared below": {
			[]string{"tmpfs src a size=64k", "tmpfs src a/x size=64k", "- a b rbind,rshared"}, bound[:1],
		},
		"remount":              {[]string{"tmpfs src a size=64k,nosuid,sync", "tmpfs - a remount,size=128k,ro", "tmpfs - a remount,rw,noexec"}, changed},
		"remount of the mount": {[]string{"tmpfs src a size=64k,nodev,lazytime", "- - a remount,ro=vfs", "- - a remount,size=128k,nolazytime"}, changed},
		"remount of the super": {[]string{"tmpfs src a size=64k,nodev", "- - a remount,ro=fs"}, []string{"fspick", "reconfigure"}},
		"remount both, bound":  {[]string{"tmpfs src a size=64k", "- a b bind,noexec", "- - a remount,ro,async", "- - a remount,rw"}, changed},
		"remount,bind":         {[]string{"tmpfs src a size=64k,nosuid,noatime", "- - a remount,bind,ro,nodev", "- - a remount,bind,rw,relatime"}, []string{"mount_setattr"}},
		"remount,bind below": {
			[]string{"tmpfs src a size=64k", "tmpfs src a/x size=64k", "- - a remount,bind,ro=recursive,nosuid"}, []string{"mount_setattr"},
		},
		"propagation": {
			[]string{"tmpfs src a size=64k", "- - a shared", "- a b bind,slave", "tmpfs src a/x size=64k", "- - b rshared", "- - a rprivate", "- - b/x unbindable"}, []string{"mount_setattr"},
		},
	}
}

// shown is a mount as the stories are compared by.
type shown struct {
	Target, Root, Source, FSType string
	Options, Super, Propagation  []string
}

func shownBelow(t *testing.T, base string) []shown {
	t.Helper()
	entries, err := mounttable.Uncached{}.All()
	if err != nil {
		t.Fatal(err)
	}
	var all []shown
	for _, e := range entries {
		if !pathin.In(base, e.Target) {
			continue
		}
		for i, p := range e.Propagation { // peer groups have new numbers each time
			e.Propagation[i], _, _ = strings.Cut(p, ":")
		}
		all = append(all, shown{strings.TrimPrefix(e.Target, base), e.Root, e.Source, e.FSType, e.Options, e.SuperOptions, e.Propagation})
	}
	slices.SortStableFunc(all, func(a, b shown) int { return strings.Compare(a.Target, b.Target) })
	return all
}

// tell makes the requests one after the other and returns the mounts in the
// end, which it removes.
func tell(t *testing.T, api mountapi.Calls, requests []string) []shown {
	t.Helper()
	base := filepath.Join(t.TempDir(), "base")
	for _, dir := range []string{"", "a", "b", "c"} {
		if err := os.Mkdir(filepath.Join(base, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	m := New(Config{Via: ViaSystemCalls})
	m.api = api
	for _, words := range requests {
		r := request(base, words)
		if err := os.MkdirAll(r.Target, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := m.MountContext(t.Context(), r); err != nil {
			t.Errorf("%s: %v", words, err)
		}
	}
	all := shownBelow(t, base)
	for _, dir := range []string{"c", "b", "a"} {
		for unix.Unmount(filepath.Join(base, dir), unix.MNT_DETACH) == nil {
			continue
		}
	}
	return all
}

// Whichever call a kernel lacks, or a filter of system calls denies, the mount
// table shows the same in the end.
func TestKernelsWithoutTheNewCalls(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		for name, story := range nativeStories() {
			t.Run(name, func(t *testing.T) {
				var used []string
				want := tell(t, hooked{before: func(call string) error { used = append(used, call); return nil }}, story.requests)
				if slices.Contains(used, "mount") {
					t.Errorf("mount(2) was used: %v", used)
				}
				for _, call := range story.needs {
					if !slices.Contains(used, call) {
						t.Errorf("%s was not used: %v", call, used)
					}
					if diff := cmp.Diff(want, tell(t, lackingCalls(unix.ENOSYS, call), story.requests)); diff != "" {
						t.Errorf("without %s (-with +without):\n%s", call, diff)
					}
				}
				all := []string{"fsopen", "fspick", "open_tree", "mount_setattr", "move_mount"}
				if diff := cmp.Diff(want, tell(t, lackingCalls(unix.EPERM, all...), story.requests)); diff != "" {
					t.Errorf("with all of them denied (-with +denied):\n%s", diff)
				}
			})
		}
	})
}

// What fsconfig cannot carry goes to mount(2) at once.
func TestWhatFsconfigCannotCarry(t *testing.T) {
	long := "/" + strings.Repeat("x", 300)
	for name, tc := range map[string]struct {
		fs      filesystem
		options []string
		fits    bool
	}{
		"short":           {fs: filesystem{"tmpfs", "tmpfs", []string{"size=1m", "noswap"}}, fits: true},
		"long value":      {fs: filesystem{"overlay", "overlay", []string{"lowerdir=" + long}}},
		"long flag":       {fs: filesystem{"x", "x", []string{long}}},
		"long source":     {fs: filesystem{"x", long, nil}},
		"escaped comma":   {fs: filesystem{"overlay", "overlay", []string{`lowerdir=/a\,b`}}},
		"quoted comma":    {fs: filesystem{"x", "x", []string{`key="a,b"`}}},
		"a label's comma": {fs: filesystem{"tmpfs", "tmpfs", []string{`context="system_u:object_r:x:s0:c1,c2"`}}, fits: true},
		"i_version":       {fs: filesystem{"tmpfs", "tmpfs", nil}, options: []string{"iversion"}},
	} {
		n := native{options: mountopt.Parse(tc.options...)}
		if got := n.fits(tc.fs); got != tc.fits {
			t.Errorf("%s: fits = %v", name, got)
		}
	}
}

// A long overlay is one of those, and mounts all the same.
func TestLongOptionsMount(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		top := t.TempDir()
		if err := unix.Mount("tmpfs", top, "tmpfs", 0, ""); err != nil {
			t.Fatal(err)
		}
		lower := filepath.Join(top, strings.Repeat("l", 200))
		second, target := filepath.Join(top, strings.Repeat("m", 200)), filepath.Join(top, "target")
		for _, dir := range []string{lower, second, target} {
			if err := os.MkdirAll(dir, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(filepath.Join(lower, "file"), []byte("below"), 0o644); err != nil {
			t.Fatal(err)
		}
		m := New(Config{Via: ViaSystemCalls})
		// Two layers, as overlay wants without an upper one.
		if err := m.Mount("overlay", target, "overlay", []string{"lowerdir=" + lower + ":" + second, "ro"}); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(filepath.Join(target, "file")); err != nil || string(got) != "below" {
			t.Errorf("read %q, %v", got, err)
		}
	})
}

// mount(2) too is refused in words.
func TestMount2SaysWhy(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		top := t.TempDir()
		file := filepath.Join(top, "file")
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		m := New(Config{Via: ViaSystemCalls})
		m.api = lackingCalls(unix.ENOSYS, "fsopen", "fspick", "open_tree", "mount_setattr")
		for name, tc := range map[string]struct {
			request mount.Request
			want    error
		}{
			"bad option":        {mount.Request{Target: top, FSType: "tmpfs", Options: []string{"sise=1"}}, mount.ErrBadOption},
			"no file system":    {mount.Request{Source: "x", Target: top, FSType: "no-such-type"}, mount.ErrNoFilesystem},
			"on a file":         {mount.Request{Target: file, FSType: "tmpfs"}, mount.ErrKindMismatch},
			"directory on file": {mount.Request{Source: top, Target: file, Options: []string{"bind"}}, mount.ErrKindMismatch},
			"missing source":    {mount.Request{Source: top + "/missing", Target: top, Options: []string{"bind"}}, mount.ErrNoSource},
			"not mounted":       {mount.Request{Target: top, Options: []string{"remount", "bind", "ro"}}, mount.ErrNotMounted},
			"no mount to share": {mount.Request{Target: top, Options: []string{"shared"}}, mount.ErrNotMounted},
		} {
			err := m.MountContext(t.Context(), tc.request)
			if e, ok := errors.AsType[*mount.Error](err); !ok || !errors.Is(err, tc.want) || e.Uncertain {
				t.Errorf("%s: err = %v, want %v, certainly", name, err, tc.want)
			}
		}
	})
}

// Mount(2) would leave out what is behind the first page without a word.
func TestOptionsThatMount2WouldCutAreRefused(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		target := t.TempDir()
		m := New(Config{Via: ViaSystemCalls})
		// Exactly as many bytes as fit, the last option counting, and one more.
		options := func(length int) []string {
			const first, last = "iversion,", ",mode=0700"
			filler := length - len(last)
			list := strings.Repeat("size=1m,", filler/8-2)
			list += "size=1" + strings.Repeat("0", filler-len(list)-6)
			if len(list)+len(last) != length || strings.Count(list, "0") > 24 {
				t.Fatalf("a list of %d bytes for %d", len(list)+len(last), length)
			}
			return mountopt.Split(first + list + last)
		}
		fits := os.Getpagesize() - 1
		err := m.MountContext(t.Context(), mount.Request{Source: "x", Target: target, FSType: "tmpfs", Options: options(fits + 1)})
		if e, ok := errors.AsType[*mount.Error](err); !ok || e.Cause != mount.ErrBadOption || e.Uncertain || !strings.Contains(err.Error(), "shorten") {
			t.Errorf("one byte too much: %v", err)
		}
		if e, there, err := m.Table().At(target); there || err != nil {
			t.Fatalf("mounted all the same: %+v, %v", e, err)
		}
		if err := m.MountContext(t.Context(), mount.Request{Source: "x", Target: target, FSType: "tmpfs", Options: options(fits)}); err != nil {
			t.Fatalf("a full page: %v", err)
		}
		if e, _, _ := m.Table().At(target); !slices.Contains(e.SuperOptions, "mode=700") {
			t.Errorf("a full page: mounted with %v", e.SuperOptions)
		}
		err = m.MountContext(t.Context(), mount.Request{Target: target, FSType: "tmpfs", Options: append([]string{"remount"}, options(fits+1)...)})
		if e, ok := errors.AsType[*mount.Error](err); !ok || e.Cause != mount.ErrBadOption || e.Uncertain || !strings.Contains(err.Error(), "shorten") {
			t.Errorf("a remount with one byte too much: %v", err)
		}
	})
}
