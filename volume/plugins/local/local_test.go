package local_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/fakehost"
	"github.com/podvol/podvol/volume/internal/podmount"
	"github.com/podvol/podvol/volume/plugins/local"
	"github.com/podvol/podvol/volume/volumesource"
)

func newPlugin(t *testing.T) (volume.VolumePlugin, *fakehost.Host) {
	t.Helper()
	h := fakehost.New(t)
	h.HostFiles = nil
	return pluginOf(t, h), h
}

func pluginOf(t *testing.T, h volume.VolumeHost) volume.VolumePlugin {
	t.Helper()
	p := local.New(local.Config{})
	if err := p.Init(h); err != nil {
		t.Fatal(err)
	}
	return p
}

func pod(uid types.UID) *v1.Pod {
	p := &v1.Pod{}
	p.Namespace, p.Name, p.UID = "default", "web", uid
	return p
}

func spec(path string, options ...string) *volume.Spec {
	pv := &v1.PersistentVolume{}
	pv.Name = "pv1"
	pv.Spec.Local = &v1.LocalVolumeSource{Path: path}
	pv.Spec.MountOptions = options
	pv.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}
	return volume.NewSpecFromPersistentVolume(pv, false)
}

func mounter(t *testing.T, p volume.VolumePlugin, s *volume.Spec, uid types.UID) volume.Mounter {
	t.Helper()
	m, err := p.NewMounter(s, pod(uid))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func setUp(t *testing.T, m volume.Mounter) {
	t.Helper()
	if err := m.SetUp(t.Context(), volume.MounterArgs{}); err != nil {
		t.Fatal(err)
	}
}

func tearDown(t *testing.T, p volume.VolumePlugin, uid types.UID) error {
	t.Helper()
	u, err := p.NewUnmounter("pv1", uid)
	if err != nil {
		t.Fatal(err)
	}
	return u.TearDown(t.Context())
}

func wantGone(t *testing.T, path string) {
	t.Helper()
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s is left (%v)", path, err)
	}
}

func TestLife(t *testing.T) {
	p, h := newPlugin(t)
	disk := t.TempDir()
	m := mounter(t, p, spec(disk), "u1")
	if want := filepath.Join(h.RootDir, "pods/u1/volumes/kubernetes.io~local-volume/pv1"); m.GetPath() != want {
		t.Errorf("GetPath = %s, want %s", m.GetPath(), want)
	}
	setUp(t, m)
	setUp(t, m)
	calls := h.Fake.Calls()
	if len(calls) != 1 || calls[0].Source != disk || !slices.Equal(calls[0].Options, []string{"bind"}) {
		t.Errorf("calls %v", calls)
	}
	if err := os.WriteFile(filepath.Join(m.GetPath(), "file"), []byte("data"), 0o644); err != nil {
		t.Fatal(err)
	}
	other := mounter(t, p, spec(disk), "u2")
	setUp(t, other)
	for range 2 {
		if err := tearDown(t, p, "u1"); err != nil {
			t.Fatal(err)
		}
		wantGone(t, m.GetPath())
	}
	if data, err := os.ReadFile(filepath.Join(other.GetPath(), "file")); err != nil || string(data) != "data" {
		t.Errorf("the other pod reads %q, %v", data, err)
	}
	if err := tearDown(t, p, "u2"); err != nil {
		t.Fatal(err)
	}
	if data, err := os.ReadFile(filepath.Join(disk, "file")); err != nil || string(data) != "data" {
		t.Errorf("the directory holds %q, %v", data, err)
	}
}

func TestOptionsAndAttributes(t *testing.T) {
	readOnly := spec("/disk", "noatime")
	readOnly.ReadOnly = true
	many := spec("/disk")
	many.PersistentVolume.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadOnlyMany}
	tests := map[string]struct {
		spec    *volume.Spec
		options []string
		want    volume.Attributes
	}{
		"writable":     {spec("/disk"), []string{"bind"}, volume.Attributes{Managed: true, SELinuxRelabel: true}},
		"read-only":    {readOnly, []string{"bind", "ro", "noatime"}, volume.Attributes{ReadOnly: true, SELinuxRelabel: true}},
		"many readers": {many, []string{"bind", "ro"}, volume.Attributes{ReadOnly: true, SELinuxRelabel: true}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			p, h := newPlugin(t)
			disk := t.TempDir()
			test.spec.PersistentVolume.Spec.Local.Path = disk
			m := mounter(t, p, test.spec, "u1")
			if got := m.GetAttributes(); got != test.want {
				t.Errorf("attributes %+v, want %+v", got, test.want)
			}
			setUp(t, m)
			if got := h.Fake.Calls()[0].Options; !slices.Equal(got, test.options) {
				t.Errorf("options %v, want %v", got, test.options)
			}
			e, ok, err := h.Fake.Table().At(m.GetPath())
			if err != nil || !ok || e.ReadOnly() != test.want.ReadOnly {
				t.Errorf("mounted: %+v, %v, %v", e, ok, err)
			}
		})
	}
}

func TestRefusedSpecs(t *testing.T) {
	block := v1.PersistentVolumeBlock
	blockMode := spec("/disk")
	blockMode.PersistentVolume.Spec.VolumeMode = &block
	inline := volume.NewSpecFromVolume(&v1.Volume{Name: "v"})
	for name, s := range map[string]*volume.Spec{
		"no path": spec(""), "relative": spec("disk"), "dots": spec("/disk/.."), "block": blockMode,
		"bad option": spec("/disk", "loop"), "inline": inline, "nil": nil,
	} {
		p, h := newPlugin(t)
		if m, err := p.NewMounter(s, pod("u1")); err == nil || volume.IsUncertain(err) || len(h.Fake.Calls()) != 0 {
			t.Errorf("%s: NewMounter = %v, %v", name, m, err)
		}
	}
}

func TestSourceIsNoDirectory(t *testing.T) {
	p, h := newPlugin(t)
	base := t.TempDir()
	file := filepath.Join(base, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	check := func(path string, want string) error {
		t.Helper()
		m := mounter(t, p, spec(path), "u1")
		err := m.SetUp(t.Context(), volume.MounterArgs{})
		if err == nil || volume.IsUncertain(err) || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), path) {
			t.Errorf("SetUp = %v, want it to say %q", err, want)
		}
		wantGone(t, m.GetPath())
		return err
	}
	if err := check(filepath.Join(base, "missing"), "does not exist"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v does not match fs.ErrNotExist", err)
	}
	check(file, "regular file")
	check("/dev/null", "character device")
	h.HostFiles = deviceFiles{}
	if err := check("/dev/vdz", "MountDevice"); !errors.Is(err, mount.ErrNotMounted) {
		t.Errorf("SetUp = %v", err)
	}
	if calls := h.Fake.Calls(); len(calls) != 0 {
		t.Errorf("calls %v", calls)
	}
}

// deviceFiles is a host on which every path is a block device.
type deviceFiles struct{ volume.HostFiles }

func (deviceFiles) Stat(context.Context, string) (fs.FileInfo, error) { return deviceInfo{}, nil }

type deviceInfo struct{ fs.FileInfo }

func (deviceInfo) Mode() fs.FileMode { return fs.ModeDevice | 0o600 }
func (deviceInfo) IsDir() bool       { return false }

func TestFailedMountLeavesNothing(t *testing.T) {
	for _, after := range []bool{false, true} {
		p, h := newPlugin(t)
		disk := t.TempDir()
		h.Fake.Inject(fakemount.Fault{Match: func(c fakemount.Call) bool { return c.Op == mount.OpMount }, After: after, Err: unix.EPERM})
		m := mounter(t, p, spec(disk), "u1")
		err := m.SetUp(t.Context(), volume.MounterArgs{})
		if !errors.Is(err, unix.EPERM) || volume.IsUncertain(err) {
			t.Errorf("SetUp = %v", err)
		}
		wantGone(t, m.GetPath())
		if _, err := os.Stat(disk); err != nil {
			t.Error(err)
		}
	}
}

func TestReadOnlyOverWritable(t *testing.T) {
	p, _ := newPlugin(t)
	disk := t.TempDir()
	setUp(t, mounter(t, p, spec(disk), "u1"))
	readOnly := spec(disk)
	readOnly.ReadOnly = true
	err := mounter(t, p, readOnly, "u1").SetUp(t.Context(), volume.MounterArgs{})
	if _, ok := errors.AsType[*podmount.OccupiedError](err); !ok {
		t.Errorf("SetUp = %v", err)
	}
}

func TestTearDownNeverDeletesNorForces(t *testing.T) {
	p, h := newPlugin(t)
	disk := t.TempDir()
	m := mounter(t, p, spec(disk), "u1")
	setUp(t, m)
	remove := h.Fake.Inject(fakemount.Fault{Match: func(c fakemount.Call) bool { return c.Op != mount.OpMount }, Err: unix.EBUSY})
	if err := tearDown(t, p, "u1"); !errors.Is(err, unix.EBUSY) {
		t.Errorf("TearDown = %v", err)
	}
	for _, c := range h.Fake.Calls()[1:] {
		if c.Rung != mount.RungNormal {
			t.Errorf("call %v on rung %v", c, c.Rung)
		}
	}
	remove()
	if err := tearDown(t, p, "u1"); err != nil {
		t.Fatal(err)
	}

	if err := os.MkdirAll(filepath.Join(m.GetPath(), "precious"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, ok := errors.AsType[*podmount.NotEmptyError](tearDown(t, p, "u1")); !ok {
		t.Error("a directory that is not empty was torn down")
	}
	if _, err := os.Stat(filepath.Join(m.GetPath(), "precious")); err != nil {
		t.Error(err)
	}
}

func TestReconstruction(t *testing.T) {
	p, h := newPlugin(t)
	disk := t.TempDir()
	m := mounter(t, p, spec(disk), "u1")
	setUp(t, m)
	setUp(t, mounter(t, p, spec(disk), "u2"))
	rebuilt, err := p.ConstructVolumeSpec(t.Context(), "pv1", m.GetPath())
	if err != nil {
		t.Fatal(err)
	}
	if got := rebuilt.Spec.PersistentVolume.Spec.Local.Path; got != disk || !rebuilt.Complete || rebuilt.Spec.Name() != "pv1" {
		t.Errorf("rebuilt path %q, complete %v, want %q", got, rebuilt.Complete, disk)
	}
	// The same directory at a second place of the node: which one was meant?
	second := t.TempDir()
	if err := h.Fake.Mount(disk, second, "", []string{"bind"}); err != nil {
		t.Fatal(err)
	}
	rebuilt, err = p.ConstructVolumeSpec(t.Context(), "pv1", m.GetPath())
	if got := rebuilt.Spec.PersistentVolume.Spec.Local.Path; err != nil || rebuilt.Complete || (got != disk && got != second) {
		t.Errorf("rebuilt path %q, complete %v, %v", got, rebuilt.Complete, err)
	}
	rebuilt, err = p.ConstructVolumeSpec(t.Context(), "pv1", filepath.Join(h.RootDir, "nothing"))
	if err != nil || rebuilt.Complete || !p.CanSupport(rebuilt.Spec) {
		t.Errorf("ConstructVolumeSpec = %+v, %v", rebuilt, err)
	}
}

func TestNamesAndCapabilities(t *testing.T) {
	p, _ := newPlugin(t)
	s := spec("/disk")
	if name, err := p.GetVolumeName(s); err != nil || name != "pv1" || !p.CanSupport(s) || volumesource.Describe(p, s) != "/disk" {
		t.Errorf("GetVolumeName = %q, %v", name, err)
	}
	for _, s := range []*volume.Spec{nil, {}, volume.NewSpecFromVolume(&v1.Volume{}), volume.NewSpecFromPersistentVolume(&v1.PersistentVolume{}, true)} {
		if _, err := p.GetVolumeName(s); err == nil || p.CanSupport(s) {
			t.Errorf("%+v is taken for a local volume", s)
		}
	}
	pvPlugin, ok := volume.AsPersistentVolume(p)
	if !ok || !slices.Equal(pvPlugin.GetAccessModes(), []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}) || !volume.SupportsMountOption(p) {
		t.Error("capabilities")
	}
}

func TestMetrics(t *testing.T) {
	p, _ := newPlugin(t)
	m := mounter(t, p, spec(t.TempDir()), "u1")
	setUp(t, m)
	if metrics, err := m.GetMetrics(t.Context()); err != nil || metrics.Capacity.Sign() <= 0 {
		t.Errorf("%+v, %v", metrics, err)
	}
}
