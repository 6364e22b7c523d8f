package hostpath_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/fakehost"
	"github.com/podvol/podvol/volume/plugins/hostpath"
	"github.com/podvol/podvol/volume/volumesource"
)

func newPlugin(t *testing.T) (volume.VolumePlugin, *fakehost.Host) {
	t.Helper()
	h := fakehost.New(t)
	h.HostFiles = nil
	p := hostpath.New(hostpath.Config{})
	if err := p.Init(h); err != nil {
		t.Fatal(err)
	}
	return p, h
}

func pod() *v1.Pod {
	p := &v1.Pod{}
	p.Namespace, p.Name, p.UID = "default", "web", "u1"
	return p
}

func inline(path string, kind v1.HostPathType) *volume.Spec {
	return volume.NewSpecFromVolume(&v1.Volume{Name: "vol", VolumeSource: v1.VolumeSource{
		HostPath: &v1.HostPathVolumeSource{Path: path, Type: &kind}}})
}

func persistent(path string) *volume.Spec {
	pv := &v1.PersistentVolume{}
	pv.Name = "pv1"
	pv.Spec.HostPath = &v1.HostPathVolumeSource{Path: path}
	return volume.NewSpecFromPersistentVolume(pv, false)
}

func setUp(t *testing.T, p volume.VolumePlugin, spec *volume.Spec) error {
	t.Helper()
	m, err := p.NewMounter(spec, pod())
	if err != nil {
		t.Fatal(err)
	}
	return m.SetUp(t.Context(), volume.MounterArgs{})
}

func setUmask(t *testing.T, mask int) {
	old := unix.Umask(mask)
	t.Cleanup(func() { unix.Umask(old) })
}

// kinds makes one path of each kind and returns the paths by kind.
func kinds(t *testing.T) map[string]string {
	t.Helper()
	base := t.TempDir()
	paths := map[string]string{
		"nothing":          filepath.Join(base, "nothing"),
		"directory":        filepath.Join(base, "dir"),
		"regular file":     filepath.Join(base, "file"),
		"socket":           filepath.Join(base, "socket"),
		"character device": "/dev/null",
		"named pipe":       filepath.Join(base, "fifo"),
	}
	if err := os.Mkdir(paths["directory"], 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(paths["regular file"], []byte("data"), 0o600); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("unix", paths["socket"])
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	if err := unix.Mkfifo(paths["named pipe"], 0o600); err != nil {
		t.Fatal(err)
	}
	return paths
}

// fits are the kinds that each type takes; everything else is refused.
var fits = map[v1.HostPathType][]string{
	v1.HostPathUnset:             {"nothing", "directory", "regular file", "socket", "character device", "named pipe"},
	v1.HostPathDirectoryOrCreate: {"nothing", "directory"},
	v1.HostPathDirectory:         {"directory"},
	v1.HostPathFileOrCreate:      {"nothing", "regular file"},
	v1.HostPathFile:              {"regular file"},
	v1.HostPathSocket:            {"socket"},
	v1.HostPathCharDev:           {"character device"},
	v1.HostPathBlockDev:          {},
}

func TestEveryTypeAgainstEveryKind(t *testing.T) {
	for kind, want := range fits {
		t.Run(string(kind), func(t *testing.T) {
			p, h := newPlugin(t)
			for found, path := range kinds(t) {
				err := setUp(t, p, inline(path, kind))
				if slices.Contains(want, found) {
					if err != nil {
						t.Errorf("%s: %v", found, err)
					}
					continue
				}
				wantRefusal(t, err, kind, found, path)
			}
			if entries, err := os.ReadDir(filepath.Join(h.RootDir, "pods")); err != nil || len(entries) != 0 {
				t.Errorf("below pods: %v (%v)", entries, err)
			}
			h.AssertClean(t)
		})
	}
}

func wantRefusal(t *testing.T, err error, kind v1.HostPathType, found, path string) {
	t.Helper()
	e, ok := errors.AsType[*volume.Failure](err)
	if !ok || e.Cause != hostpath.ErrWrongType || e.Subject != path || e.Next == "" || !strings.Contains(e.What, fmt.Sprintf("asks for %s", kind)) || volume.IsUncertain(err) {
		t.Errorf("%s as %s: %v", found, kind, err)
		return
	}
	words := []string{path, string(kind)}
	if found == "nothing" {
		if !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%v does not match fs.ErrNotExist", err)
		}
	} else {
		words = append(words, found)
	}
	for _, word := range words {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("%q does not say %q", err, word)
		}
	}
}

// A block device is not to be had everywhere, so the host's files are faked.
func TestBlockDevice(t *testing.T) {
	p, h := newPlugin(t)
	h.HostFiles = fakeFiles{mode: fs.ModeDevice | 0o600}
	if err := setUp(t, p, inline("/dev/vdz", v1.HostPathBlockDev)); err != nil {
		t.Error(err)
	}
	for _, kind := range []v1.HostPathType{v1.HostPathCharDev, v1.HostPathFile, v1.HostPathDirectory} {
		wantRefusal(t, setUp(t, p, inline("/dev/vdz", kind)), kind, "block device", "/dev/vdz")
	}
}

func TestCreatedModes(t *testing.T) {
	setUmask(t, 0o077)
	p, _ := newPlugin(t)
	base := t.TempDir()
	dir, file := filepath.Join(base, "a", "b"), filepath.Join(base, "a", "b", "file")
	for range 2 {
		if err := setUp(t, p, inline(dir, v1.HostPathDirectoryOrCreate)); err != nil {
			t.Fatal(err)
		}
		if err := setUp(t, p, inline(file, v1.HostPathFileOrCreate)); err != nil {
			t.Fatal(err)
		}
	}
	for path, want := range map[string]fs.FileMode{filepath.Dir(dir): fs.ModeDir | 0o755, dir: fs.ModeDir | 0o755, file: 0o644} {
		if info, err := os.Lstat(path); err != nil || info.Mode() != want {
			t.Errorf("%s has mode %v (%v), want %v", path, info.Mode(), err, want)
		}
	}
}

func TestWhatExistsIsNotChanged(t *testing.T) {
	p, _ := newPlugin(t)
	paths := kinds(t)
	if err := setUp(t, p, inline(paths["directory"], v1.HostPathDirectoryOrCreate)); err != nil {
		t.Fatal(err)
	}
	if err := setUp(t, p, inline(paths["regular file"], v1.HostPathFileOrCreate)); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(paths["directory"]); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("directory: %v, %v", info.Mode(), err)
	}
	if data, err := os.ReadFile(paths["regular file"]); err != nil || string(data) != "data" {
		t.Errorf("file: %q, %v", data, err)
	}
}

func TestFileWithoutItsDirectory(t *testing.T) {
	p, _ := newPlugin(t)
	dir := filepath.Join(t.TempDir(), "missing")
	err := setUp(t, p, inline(filepath.Join(dir, "file"), v1.HostPathFileOrCreate))
	if !errors.Is(err, hostpath.ErrWrongType) || volume.IsUncertain(err) || !strings.Contains(err.Error(), "directory does not exist") {
		t.Errorf("SetUp = %v", err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the directory was made (%v)", err)
	}
}

func TestLinksAreFollowed(t *testing.T) {
	p, _ := newPlugin(t)
	base := t.TempDir()
	link := filepath.Join(base, "link")
	if err := os.Symlink(base, link); err != nil {
		t.Fatal(err)
	}
	if err := setUp(t, p, inline(link, v1.HostPathDirectory)); err != nil {
		t.Error(err)
	}
	dangling := filepath.Join(base, "dangling")
	if err := os.Symlink("nowhere", dangling); err != nil {
		t.Fatal(err)
	}
	for _, kind := range []v1.HostPathType{v1.HostPathDirectoryOrCreate, v1.HostPathFileOrCreate} {
		if err := setUp(t, p, inline(dangling, kind)); err == nil {
			t.Errorf("a dangling link was taken for %s", kind)
		}
	}
}

// A manifest may spell a path in several ways; what is recorded, shown and
// bound is one of them.
func TestPathIsCleaned(t *testing.T) {
	p, _ := newPlugin(t)
	m, err := p.NewMounter(inline("/var//lib/./data/", ""), pod())
	if err != nil {
		t.Fatal(err)
	}
	if got := m.GetPath(); got != "/var/lib/data" {
		t.Errorf("GetPath = %q", got)
	}
}

func TestRefusedSpecs(t *testing.T) {
	block := v1.PersistentVolumeBlock
	blockPV := persistent("/data")
	blockPV.PersistentVolume.Spec.VolumeMode = &block
	for name, spec := range map[string]*volume.Spec{
		"no path":       inline("", ""),
		"relative path": inline("data", ""),
		"dots":          inline("/data/../etc", ""),
		"unknown type":  inline("/data", "Folder"),
		"block":         blockPV,
		"no hostPath":   volume.NewSpecFromVolume(&v1.Volume{Name: "v"}),
		"nil":           nil,
	} {
		p, _ := newPlugin(t)
		_, err := p.NewMounter(spec, pod())
		if _, ok := errors.AsType[*volume.InvalidSpecError](err); !ok || volume.IsUncertain(err) {
			t.Errorf("%s: NewMounter = %v", name, err)
		}
	}
}

func TestPersistentVolume(t *testing.T) {
	p, _ := newPlugin(t)
	spec := persistent("/data")
	for _, readOnly := range []bool{false, true} {
		spec.ReadOnly = readOnly
		m, err := p.NewMounter(spec, pod())
		if err != nil {
			t.Fatal(err)
		}
		if got, want := m.GetAttributes(), (volume.Attributes{ReadOnly: readOnly}); got != want {
			t.Errorf("attributes %+v, want %+v", got, want)
		}
		if m.GetPath() != "/data" {
			t.Errorf("GetPath = %s", m.GetPath())
		}
	}
}

func TestNamesAndCapabilities(t *testing.T) {
	p, _ := newPlugin(t)
	for _, spec := range []*volume.Spec{inline("/data", ""), inline("/data/", ""), persistent("/data")} {
		if name, err := p.GetVolumeName(spec); err != nil || name != "/data" || !p.CanSupport(spec) {
			t.Errorf("GetVolumeName = %q, %v", name, err)
		}
	}
	if got := volumesource.Describe(p, inline("/data", "")); got != "/data" {
		t.Errorf("DescribeSource = %s", got)
	}
	for _, spec := range []*volume.Spec{nil, {}, volume.NewSpecFromVolume(&v1.Volume{}), volume.NewSpecFromPersistentVolume(&v1.PersistentVolume{}, true)} {
		if _, err := p.GetVolumeName(spec); err == nil || p.CanSupport(spec) {
			t.Errorf("%+v is taken for a hostPath", spec)
		}
	}
	pvPlugin, ok := volume.AsPersistentVolume(p)
	if !ok || !slices.Equal(pvPlugin.GetAccessModes(), []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}) || volume.SupportsMountOption(p) {
		t.Error("capabilities")
	}
}

func TestTearDownTouchesNothing(t *testing.T) {
	p, _ := newPlugin(t)
	paths := kinds(t)
	if err := setUp(t, p, inline(paths["directory"], v1.HostPathDirectory)); err != nil {
		t.Fatal(err)
	}
	u, err := p.NewUnmounter("vol", "u1")
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := errors.Join(u.TearDown(t.Context()), u.TearDownAt(t.Context(), paths["directory"])); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Stat(paths["directory"]); err != nil {
		t.Error(err)
	}
	if _, err := p.NewUnmounter("a/b", types.UID("u1")); err == nil {
		t.Error("a name with a slash was accepted")
	}
}

func TestReconstruction(t *testing.T) {
	p, _ := newPlugin(t)
	rebuilt, err := p.ConstructVolumeSpec(t.Context(), "vol", "/somewhere")
	if err != nil || rebuilt.Complete || rebuilt.Spec.Name() != "vol" || !p.CanSupport(rebuilt.Spec) {
		t.Errorf("ConstructVolumeSpec = %+v, %v", rebuilt, err)
	}
}

func TestMetrics(t *testing.T) {
	p, _ := newPlugin(t)
	m, err := p.NewMounter(inline(t.TempDir(), ""), pod())
	if err != nil {
		t.Fatal(err)
	}
	if metrics, err := m.GetMetrics(t.Context()); err != nil || metrics.Capacity.Sign() <= 0 {
		t.Errorf("%+v, %v", metrics, err)
	}
	u, err := p.NewUnmounter("vol", "u1")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := u.GetMetrics(t.Context()); !errors.Is(err, volume.ErrMetricsUnsupported) {
		t.Errorf("metrics of an unmounter: %v", err)
	}
}

func TestHostsRoleIsUsed(t *testing.T) {
	p, h := newPlugin(t)
	var log []string
	h.HostFiles = fakeFiles{err: fs.ErrNotExist, log: &log}
	err := setUp(t, p, inline("/on/the/host", v1.HostPathDirectoryOrCreate))
	if !errors.Is(err, hostpath.ErrWrongType) {
		t.Errorf("SetUp = %v", err)
	}
	want := []string{"stat /on/the/host", "mkdir /on/the/host drwxr-xr-x", "stat /on/the/host"}
	if !slices.Equal(log, want) {
		t.Errorf("calls %q, want %q", log, want)
	}
}

// lateFiles is a host on which somebody else makes the file just after it was
// found missing.
type lateFiles struct {
	fakeFiles
	asked *int
}

func (f lateFiles) Stat(ctx context.Context, path string) (fs.FileInfo, error) {
	*f.asked++
	if *f.asked == 1 {
		return nil, fs.ErrNotExist
	}
	return f.fakeFiles.Stat(ctx, path)
}

func (f lateFiles) MakeFile(context.Context, string, fs.FileMode) error { return fs.ErrExist }

func TestSomebodyElseCreatesIt(t *testing.T) {
	for mode, fits := range map[fs.FileMode]bool{0o600: true, fs.ModeDir: false} {
		p, h := newPlugin(t)
		h.HostFiles = lateFiles{fakeFiles{mode: mode}, new(int)}
		if err := setUp(t, p, inline("/run/app.pid", v1.HostPathFileOrCreate)); (err == nil) != fits {
			t.Errorf("mode %v: SetUp = %v", mode, err)
		}
	}
}

// A hostPath on a dead network file system.
func TestHungPath(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, h := newPlugin(t)
		h.HostFiles = fakeFiles{hang: true}
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		m, err := p.NewMounter(inline("/mnt/dead", v1.HostPathDirectory), pod())
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		if err := m.SetUp(ctx, volume.MounterArgs{}); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != 5*time.Second {
			t.Errorf("SetUp = %v after %v", err, time.Since(start))
		}
	})
}

// fakeFiles answers every question in one way.
type fakeFiles struct {
	mode fs.FileMode
	err  error
	hang bool
	log  *[]string
}

func (f fakeFiles) note(words ...string) {
	if f.log != nil {
		*f.log = append(*f.log, strings.Join(words, " "))
	}
}

func (f fakeFiles) Stat(ctx context.Context, path string) (fs.FileInfo, error) {
	f.note("stat", path)
	if f.hang {
		<-ctx.Done()
		return nil, context.Cause(ctx)
	}
	return fakeInfo{mode: f.mode}, f.err
}

func (f fakeFiles) MakeDir(_ context.Context, path string, perm fs.FileMode) error {
	f.note("mkdir", path, (perm | fs.ModeDir).String())
	return nil
}

func (f fakeFiles) MakeFile(_ context.Context, path string, perm fs.FileMode) error {
	f.note("create", path, perm.String())
	return nil
}

type fakeInfo struct {
	fs.FileInfo
	mode fs.FileMode
}

func (i fakeInfo) Mode() fs.FileMode { return i.mode }
func (i fakeInfo) IsDir() bool       { return i.mode.IsDir() }
