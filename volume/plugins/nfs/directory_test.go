package nfs_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/fakehost"
	"github.com/podvol/podvol/volume/plugins/nfs"
)

// newMaker returns a plugin that may make directories below /export and
// /export/deep of a server, and where that export is.
func newMaker(t *testing.T) (volume.VolumePlugin, *fakehost.Host, string) {
	t.Helper()
	p, h := newPluginWith(t, nfs.ServerPolicy{Server: "server", Allow: []string{"vers", "soft"}, MakeBelow: []string{"/export/", "/export/deep"}})
	dir := t.TempDir()
	h.Fake.Serve("server:/export", dir)
	return p, h, dir
}

func wantDir(t *testing.T, path string, mode fs.FileMode) {
	t.Helper()
	if info, err := os.Lstat(path); err != nil || info.Mode() != fs.ModeDir|mode {
		t.Errorf("%s: %v, %v; want a directory of mode %v", path, info, err, mode)
	}
}

func setUpFor(p volume.VolumePlugin, spec *volume.Spec, pod *v1.Pod, t *testing.T) (volume.Mounter, error) {
	t.Helper()
	m, err := p.NewMounter(spec, pod)
	if err != nil {
		t.Fatal(err)
	}
	return m, m.SetUp(t.Context(), volume.MounterArgs{})
}

func TestMissingDirectoriesAreMade(t *testing.T) {
	for name, tc := range map[string]struct {
		path, mode string
		made       map[string]fs.FileMode
	}{
		"one":          {"/export/a", "0770", map[string]fs.FileMode{"a": 0o770}},
		"several":      {"/export/a/b/c", "750", map[string]fs.FileMode{"a": 0o750, "a/b": 0o750, "a/b/c": 0o750}},
		"set-group-id": {"/export/a", "2775", map[string]fs.FileMode{"a": 0o775 | fs.ModeSetgid}},
		"sticky":       {"/export/a", "01777", map[string]fs.FileMode{"a": 0o777 | fs.ModeSticky}},
		"inherited":    {"/export/sgid/a", "0700", map[string]fs.FileMode{"sgid": 0o700 | fs.ModeSetgid, "sgid/a": 0o700 | fs.ModeSetgid}},
		"beside":       {"/export//there/./a/", "0770", map[string]fs.FileMode{"there": 0o701, "there/a": 0o770}},
		"deeper":       {"/export/deep/a", "0770", map[string]fs.FileMode{"deep/a": 0o770}},
	} {
		t.Run(name, func(t *testing.T) {
			before := unix.Umask(0o077)
			t.Cleanup(func() { unix.Umask(before) })
			p, h, dir := newMaker(t)
			err := errors.Join(os.Mkdir(filepath.Join(dir, "there"), 0o700), os.Chmod(filepath.Join(dir, "there"), 0o701), os.Mkdir(filepath.Join(dir, "deep"), 0o700),
				os.Mkdir(filepath.Join(dir, "sgid"), 0o700), os.Chmod(filepath.Join(dir, "sgid"), 0o700|fs.ModeSetgid))
			if err != nil {
				t.Fatal(err)
			}
			m, err := setUpFor(p, inline("server", tc.path), annotated(makeVol1, tc.mode, optionsOfVol1, "vers=4.1"), t)
			if err != nil {
				t.Fatal(err)
			}
			for path, mode := range tc.made {
				wantDir(t, filepath.Join(dir, path), mode)
			}
			for _, c := range h.Fake.Calls() {
				if c.Op == mount.OpMount && !strings.Contains(c.String(), "vers=4.1") {
					t.Errorf("not with the volume's options: %s", c)
				}
			}
			tearDown(t, p, "vol1", "u1")
			wantGone(t, h, m.GetPath())
			if _, err := os.Lstat(filepath.Join(h.RootDir, "plugins/kubernetes.io/nfs/work")); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("left of the work: %v", err)
			}
		})
	}
}

// What exists is as it was, and nothing of the agent's own is mounted for it.
func TestDirectoriesThatExistAreLeftAsTheyAre(t *testing.T) {
	p, h, dir := newMaker(t)
	if err := errors.Join(os.Mkdir(filepath.Join(dir, "a"), 0o700), os.Chmod(filepath.Join(dir, "a"), 0o705)); err != nil {
		t.Fatal(err)
	}
	if _, err := setUpFor(p, inline("server", "/export/a"), annotated(makeVol1, "0770"), t); err != nil {
		t.Fatal(err)
	}
	wantDir(t, filepath.Join(dir, "a"), 0o705)
	if calls := h.Fake.Calls(); len(calls) != 1 {
		t.Errorf("calls %v", calls)
	}
}

// The agent, or another node's, crashed before a directory had its mode: the mount
// succeeds, and finishes it first.
func TestDirectoriesThatWereInterruptedAreFinished(t *testing.T) {
	for name, tc := range map[string]struct {
		asked string
		files bool
		want  fs.FileMode
		calls int
	}{
		"interrupted":     {"2775", false, 0o775 | fs.ModeSetgid, 5},
		"somebody's":      {"2775", true, 0o700 | fs.ModeSticky, 5},
		"as it is wanted": {"1700", false, 0o700 | fs.ModeSticky, 1},
	} {
		t.Run(name, func(t *testing.T) {
			p, h, dir := newMaker(t)
			a := filepath.Join(dir, "a")
			must(t, os.Mkdir(a, 0o700))
			if tc.files {
				must(t, os.WriteFile(filepath.Join(a, "data"), nil, 0o600))
			}
			must(t, os.Chmod(a, 0o700|fs.ModeSticky))
			m, err := setUpFor(p, inline("server", "/export/a"), annotated(makeVol1, tc.asked), t)
			if err != nil {
				t.Fatal(err)
			}
			wantDir(t, a, tc.want)
			if e, ok := entryAt(t, h, m.GetPath()); !ok || e.Source != "server:/export/a" {
				t.Errorf("mounted is %+v", e)
			}
			if calls := h.Fake.Calls(); len(calls) != tc.calls {
				t.Errorf("calls %v", calls)
			}
			tearDown(t, p, "vol1", "u1")
			wantGone(t, h, m.GetPath())
		})
	}
}

// It is not finished, so no pod gets it as it is.
func TestDirectoriesThatCannotBeFinishedAreNotMounted(t *testing.T) {
	p, h, dir := newMaker(t)
	must(t, errors.Join(os.Mkdir(filepath.Join(dir, "a"), 0o700), os.Chmod(filepath.Join(dir, "a"), 0o700|fs.ModeSticky)))
	h.Fake.Inject(fakemount.Fault{Match: isMount, Nth: 2, Err: mount.ErrTimedOut})
	m, err := setUpFor(p, inline("server", "/export/a"), annotated(makeVol1, "0770"), t)
	if !errors.Is(err, nfs.ErrNotMade) || !errors.Is(err, mount.ErrTimedOut) || volume.IsUncertain(err) || !strings.Contains(err.Error(), "interrupted") {
		t.Errorf("SetUp = %v", err)
	}
	wantGone(t, h, m.GetPath())
}

// A read-only volume's directory is made through a writable mount.
func TestDirectoriesOfPersistentVolumes(t *testing.T) {
	p, h, dir := newMaker(t)
	spec := persistent("server", "/export/pv/data", func(pv *v1.PersistentVolume) {
		pv.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadOnlyMany}
		pv.Annotations = map[string]string{nfs.AnnotationMakeDirectory: "0755"}
	})
	m, err := setUpFor(p, spec, pod("u1"), t)
	if err != nil {
		t.Fatal(err)
	}
	wantDir(t, filepath.Join(dir, "pv/data"), 0o755)
	if e, ok := entryAt(t, h, m.GetPath()); !ok || !e.ReadOnly() {
		t.Errorf("mounted is %+v", e)
	}
	bad := persistent("server", "/export/pv", func(pv *v1.PersistentVolume) {
		pv.Annotations = map[string]string{nfs.AnnotationMakeDirectory: "yes"}
	})
	if _, err := p.NewMounter(bad, pod("u1")); !errors.As(err, new(*volume.InvalidSpecError)) {
		t.Errorf("err = %v", err)
	}
}

func TestDirectoriesThatMayNotBeMade(t *testing.T) {
	for name, tc := range map[string]struct {
		server, path string
		because      []string
	}{
		"no policy":         {"other", "/export/a/b", []string{`no entry for server "other"`, `{server: "other", makeBelow: ["/export/a"]}`}},
		"beside":            {"server", "/exports/a", []string{`making the directory "/exports/a"`, `policy for "server"`, `add "/exports" to`}},
		"the export itself": {"server", "/export", []string{`making the directory "/export"`}},
	} {
		t.Run(name, func(t *testing.T) {
			p, h, _ := newMaker(t)
			for kind, spec := range map[string]*volume.Spec{
				"inline": inline(tc.server, tc.path),
				"persistent": persistent(tc.server, tc.path, func(pv *v1.PersistentVolume) {
					pv.Annotations = map[string]string{nfs.AnnotationMakeDirectory: "0770"}
				}),
			} {
				m, err := setUpFor(p, spec, annotated(makeVol1, "0770"), t)
				if !errors.Is(err, nfs.ErrNotAllowed) || volume.IsUncertain(err) || len(h.Fake.Calls()) > 0 {
					t.Errorf("%s: %v; %v", kind, err, h.Fake.Calls())
					continue
				}
				for _, want := range tc.because {
					if !strings.Contains(err.Error(), want) {
						t.Errorf("%s: %q is not in: %v", kind, want, err)
					}
				}
				wantGone(t, h, m.GetPath())
			}
		})
	}
}

func TestDirectoriesThatCannotBeMade(t *testing.T) {
	for name, tc := range map[string]struct {
		prepare func(t *testing.T, h *fakehost.Host, dir string)
		because []string
		is      error
	}{
		"a link on the way": {func(t *testing.T, _ *fakehost.Host, dir string) {
			must(t, os.Symlink(t.TempDir(), filepath.Join(dir, "a")))
		}, []string{`"a" cannot be used`, "symbolic link"}, nil},
		"a link at the end": {func(t *testing.T, _ *fakehost.Host, dir string) {
			must(t, errors.Join(os.Mkdir(filepath.Join(dir, "a"), 0o700), os.Symlink("..", filepath.Join(dir, "a/b"))))
		}, []string{`"a/b" cannot be used`, "symbolic link"}, nil},
		"a file": {func(t *testing.T, _ *fakehost.Host, dir string) {
			must(t, os.WriteFile(filepath.Join(dir, "a"), nil, 0o600))
		}, []string{`"a" cannot be used`, "no directory"}, nil},
		"no export": {func(_ *testing.T, h *fakehost.Host, _ string) {
			h.Fake.Inject(fakemount.Fault{Match: isMount, Err: mount.ErrAccessDenied})
		}, []string{"/etc/exports"}, mount.ErrAccessDenied},
		"a server that is gone": {func(_ *testing.T, h *fakehost.Host, _ string) {
			h.Fake.Inject(fakemount.Fault{Match: isMount, Nth: 2, Err: mount.ErrTimedOut})
		}, []string{"server:/export/a/b seems to be missing"}, mount.ErrTimedOut},
	} {
		t.Run(name, func(t *testing.T) {
			p, h, dir := newMaker(t)
			tc.prepare(t, h, dir)
			m, err := setUpFor(p, inline("server", "/export/a/b"), annotated(makeVol1, "0770"), t)
			failed, ok := errors.AsType[*volume.Failure](err)
			if !ok || failed.Cause != nfs.ErrNotMade || volume.IsUncertain(err) || failed.Subject != "server:/export/a/b" || !strings.Contains(failed.What, "below server:/export failed") {
				t.Fatalf("err = %v", err)
			}
			for _, want := range append(tc.because, "ops-test/web", "vol1") {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q is not in: %v", want, err)
				}
			}
			if tc.is != nil && !errors.Is(err, tc.is) {
				t.Errorf("err = %v", err)
			}
			wantGone(t, h, m.GetPath())
			if all, err := h.Fake.Table().All(); err != nil || len(all) != 1 {
				t.Errorf("mounted is %+v, %v", all, err)
			}
		})
	}
}

func TestAdviceOfADirectory(t *testing.T) {
	for errno, want := range map[error]string{unix.EACCES: "no_root_squash", unix.EPERM: "no_root_squash", unix.EROFS: "writable", unix.ENOSPC: ""} {
		e, _ := errors.AsType[*volume.Failure](nfs.NotMade("s:/e/a", "s:/e", errno, mount.ErrNoSuchExport))
		if advice := e.Advice(); want == "" && advice != "" || !strings.Contains(advice, want) || !strings.Contains(e.Error(), advice) {
			t.Errorf("%v: %q", errno, advice)
		}
		if !errors.Is(e, errno) || !errors.Is(e, mount.ErrNoSuchExport) {
			t.Errorf("%v is not kept", errno)
		}
	}
}

// Other failures of a mount have nothing made.
func TestNothingIsMadeForOtherFailures(t *testing.T) {
	p, h, dir := newMaker(t)
	h.Fake.Inject(fakemount.Fault{Match: isMount, Err: mount.ErrConnectionRefused})
	if _, err := setUpFor(p, inline("server", "/export/a"), annotated(makeVol1, "0770"), t); !errors.Is(err, mount.ErrConnectionRefused) {
		t.Errorf("err = %v", err)
	}
	if calls := h.Fake.Calls(); len(calls) != 1 {
		t.Errorf("calls %v", calls)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("made: %v, %v", left, err)
	}
}

// Many pods want one directory at the same time: the first makes it, the others
// wait for that.
func TestOneDirectoryForManyPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, h, dir := newMaker(t)
		const pods = 20
		isWork := func(c fakemount.Call) bool { return c.Op == mount.OpMount && c.Source == "server:/export" }
		release := make(chan struct{})
		h.Fake.Inject(fakemount.Fault{Match: isWork, Release: release})
		var all sync.WaitGroup
		for i := range pods {
			all.Go(func() {
				pod := annotated(makeVol1, "0770")
				pod.UID = types.UID("u" + string(rune('a'+i)))
				m, err := p.NewMounter(inline("server", "/export/a/b"), pod)
				if err == nil {
					err = m.SetUp(t.Context(), volume.MounterArgs{})
				}
				if err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		close(release)
		all.Wait()
		wantDir(t, filepath.Join(dir, "a/b"), 0o770)
		mounted, err := h.Fake.Table().BySource("server:/export/a/b")
		if err != nil || len(mounted) != pods {
			t.Errorf("%d pods have their volume, %v", len(mounted), err)
		}
		if work := slices.DeleteFunc(h.Fake.Calls(), func(c fakemount.Call) bool { return !isWork(c) }); len(work) != 1 {
			t.Errorf("the export was mounted for it: %v", work)
		}
	})
}

// While one pod's directory hangs on its server, others that want the same give
// up with their context, and those of another export do not wait.
func TestADirectoryThatHangsDelaysOnlyItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, h, _ := newMaker(t)
		h.Fake.Serve("server:/export/deep", t.TempDir())
		release := make(chan struct{})
		defer close(release)
		h.Fake.Inject(fakemount.Fault{Match: func(c fakemount.Call) bool { return c.Op == mount.OpMount && c.Source == "server:/export" }, Release: release})
		var all sync.WaitGroup
		for _, uid := range []types.UID{"u1", "u2"} {
			all.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				pod := annotated(makeVol1, "0770")
				pod.UID = uid
				m, err := p.NewMounter(inline("server", "/export/a"), pod)
				if err == nil {
					err = m.SetUp(ctx, volume.MounterArgs{})
				}
				if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, nfs.ErrNotMade) {
					t.Errorf("%s: %v", uid, err)
				}
			})
		}
		synctest.Wait()
		begun := time.Now()
		other := annotated(makeVol1, "0770")
		other.UID = "u3"
		m, err := p.NewMounter(inline("server", "/export/deep/a"), other)
		if err == nil {
			err = m.SetUp(t.Context(), volume.MounterArgs{})
		}
		if err != nil || time.Since(begun) > time.Second {
			t.Errorf("another export: %v after %v", err, time.Since(begun))
		}
		all.Wait()
		if took := time.Since(begun); took > time.Minute+10*time.Second {
			t.Errorf("they waited for %v", took)
		}
	})
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
