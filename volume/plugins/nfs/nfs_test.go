package nfs_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/fakehost"
	"github.com/podvol/podvol/volume/plugins/nfs"
	"github.com/podvol/podvol/volume/volumesource"
)

func newPlugin(t *testing.T) (volume.VolumePlugin, *fakehost.Host) {
	t.Helper()
	h := fakehost.New(t)
	p := nfs.New(nfs.Config{})
	if err := p.Init(h); err != nil {
		t.Fatal(err)
	}
	return p, h
}

func pod(uid types.UID) *v1.Pod {
	p := &v1.Pod{}
	p.Namespace, p.Name, p.UID = "ops-test", "web", uid
	return p
}

func inline(server, path string) *volume.Spec {
	return volume.NewSpecFromVolume(&v1.Volume{Name: "vol1", VolumeSource: v1.VolumeSource{
		NFS: &v1.NFSVolumeSource{Server: server, Path: path}}})
}

func persistent(server, path string, change ...func(*v1.PersistentVolume)) *volume.Spec {
	pv := &v1.PersistentVolume{}
	pv.Name = "nfs211"
	pv.Spec.NFS = &v1.NFSVolumeSource{Server: server, Path: path}
	pv.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadWriteMany}
	for _, c := range change {
		c(pv)
	}
	return volume.NewSpecFromPersistentVolume(pv, false)
}

func mounter(t *testing.T, p volume.VolumePlugin, spec *volume.Spec, uid types.UID) volume.Mounter {
	t.Helper()
	m, err := p.NewMounter(spec, pod(uid))
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

func unmounter(t *testing.T, p volume.VolumePlugin, name string, uid types.UID) volume.Unmounter {
	t.Helper()
	u, err := p.NewUnmounter(name, uid)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

func tearDown(t *testing.T, p volume.VolumePlugin, name string, uid types.UID) {
	t.Helper()
	if err := unmounter(t, p, name, uid).TearDown(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func entryAt(t *testing.T, h *fakehost.Host, dir string) (mount.Entry, bool) {
	t.Helper()
	e, ok, err := h.Fake.Table().At(dir)
	if err != nil {
		t.Fatal(err)
	}
	return e, ok
}

func wantGone(t *testing.T, h *fakehost.Host, dir string) {
	t.Helper()
	if e, ok := entryAt(t, h, dir); ok {
		t.Errorf("%s is still mounted at %s", e.Source, dir)
	}
	if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s is left (%v)", dir, err)
	}
}

func isMount(c fakemount.Call) bool { return c.Op == mount.OpMount }

func TestThroughAPersistentVolume(t *testing.T) {
	p, h := newPlugin(t)
	m := mounter(t, p, persistent("10.20.172.211", "/nfs"), "u1")
	want := filepath.Join(h.RootDir, "pods/u1/volumes/kubernetes.io~nfs/nfs211")
	if m.GetPath() != want {
		t.Errorf("GetPath = %s, want %s", m.GetPath(), want)
	}
	setUp(t, m)
	calls := h.Fake.Calls()
	if len(calls) != 1 || calls[0].String() != "mount -t nfs 10.20.172.211:/nfs "+want {
		t.Errorf("calls %v", calls)
	}
	setUp(t, m)
	if n := len(h.Fake.Calls()); n != 1 {
		t.Errorf("%d calls after the second SetUp", n)
	}
	tearDown(t, p, "nfs211", "u1")
	wantGone(t, h, want)
	tearDown(t, p, "nfs211", "u1")
}

func TestInline(t *testing.T) {
	p, h := newPlugin(t)
	m := mounter(t, p, inline("10.244.1.4", "/k8s-nfs/redis/data"), "u1")
	want := filepath.Join(h.RootDir, "pods/u1/volumes/kubernetes.io~nfs/vol1")
	setUp(t, m)
	if e, ok := entryAt(t, h, want); !ok || e.Source != "10.244.1.4:/k8s-nfs/redis/data" || e.ReadOnly() {
		t.Errorf("mounted: %+v, %v", e, ok)
	}
}

func TestSourcesAndOptions(t *testing.T) {
	readOnlySource := inline("server", "/nfs")
	readOnlySource.Volume.NFS.ReadOnly = true
	readOnlyClaim := persistent("server", "/nfs")
	readOnlyClaim.ReadOnly = true
	tests := map[string]struct {
		spec     *volume.Spec
		source   string
		options  []string
		readOnly bool
	}{
		"plain":            {inline("server", "/nfs"), "server:/nfs", nil, false},
		"IPv6":             {inline("fd00::1", "/nfs"), "[fd00::1]:/nfs", nil, false},
		"IPv6 in brackets": {inline("[fe80::1%eth0]", "/"), "[fe80::1%eth0]:/", nil, false},
		"read-only source": {readOnlySource, "server:/nfs", []string{"ro"}, true},
		"read-only claim":  {readOnlyClaim, "server:/nfs", []string{"ro"}, true},
		"read-only PV": {persistent("server", "/nfs", func(pv *v1.PersistentVolume) {
			pv.Spec.NFS.ReadOnly = true
		}), "server:/nfs", []string{"ro"}, true},
		"PV for many readers only": {persistent("server", "/nfs", func(pv *v1.PersistentVolume) {
			pv.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadOnlyMany}
		}), "server:/nfs", []string{"ro"}, true},
		"mount options": {persistent("server", "/nfs", func(pv *v1.PersistentVolume) {
			pv.Annotations = map[string]string{v1.MountOptionAnnotation: "hard,nfsvers=4.1"}
			pv.Spec.MountOptions = []string{"nfsvers=4.1", "timeo=50"}
		}), "server:/nfs", []string{"hard", "nfsvers=4.1", "timeo=50"}, false},
		"ro as mount option": {persistent("server", "/nfs", func(pv *v1.PersistentVolume) {
			pv.Spec.MountOptions = []string{"ro"}
		}), "server:/nfs", []string{"ro"}, true},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			p, h := newPlugin(t)
			m := mounter(t, p, test.spec, "u1")
			want := volume.Attributes{ReadOnly: test.readOnly}
			if got := m.GetAttributes(); got != want {
				t.Errorf("attributes %+v, want %+v", got, want)
			}
			setUp(t, m)
			call := h.Fake.Calls()[0]
			if call.Source != test.source || call.FSType != "nfs" || !slices.Equal(call.Options, test.options) {
				t.Errorf("call %v, want %s with %v", call, test.source, test.options)
			}
			if e, ok := entryAt(t, h, m.GetPath()); !ok || e.ReadOnly() != test.readOnly {
				t.Errorf("mounted: %+v, %v", e, ok)
			}
		})
	}
}

func TestRefusedSpecs(t *testing.T) {
	block := v1.PersistentVolumeBlock
	tests := map[string]*volume.Spec{
		"no server":     inline("", "/nfs"),
		"relative path": inline("server", "nfs"),
		"option source": inline("-ofoo", "/nfs"),
		"bad option": persistent("server", "/nfs", func(pv *v1.PersistentVolume) {
			pv.Spec.MountOptions = []string{"bind"}
		}),
		"writable and read-only": persistent("server", "/nfs", func(pv *v1.PersistentVolume) {
			pv.Spec.MountOptions, pv.Spec.NFS.ReadOnly = []string{"rw"}, true
		}),
		"block":             persistent("server", "/nfs", func(pv *v1.PersistentVolume) { pv.Spec.VolumeMode = &block }),
		"name with a slash": persistent("server", "/nfs", func(pv *v1.PersistentVolume) { pv.Name = "../x" }),
		"no nfs":            volume.NewSpecFromVolume(&v1.Volume{Name: "v"}),
		"nil":               nil,
	}
	for name, spec := range tests {
		t.Run(name, func(t *testing.T) {
			p, h := newPlugin(t)
			if m, err := p.NewMounter(spec, pod("u1")); err == nil || volume.IsUncertain(err) {
				t.Errorf("NewMounter = %v, %v", m, err)
			}
			if calls := h.Fake.Calls(); len(calls) != 0 {
				t.Errorf("calls %v", calls)
			}
		})
	}
	p, _ := newPlugin(t)
	if _, err := p.NewMounter(inline("server", "/nfs"), pod("a/b")); err == nil {
		t.Error("a pod UID with a slash was accepted")
	}
	if _, err := p.NewMounter(inline("server", "/nfs"), nil); err == nil {
		t.Error("no pod was accepted")
	}
	if _, err := p.NewUnmounter("..", "u1"); err == nil {
		t.Error("an unmounter of .. was made")
	}
}

func TestNewMounterChangesNothing(t *testing.T) {
	p, _ := newPlugin(t)
	spec := persistent("[fd00::1]", "/nfs", func(pv *v1.PersistentVolume) {
		pv.Spec.MountOptions = append(make([]string, 0, 10), "hard")
	})
	before := spec.PersistentVolume.DeepCopy()
	setUp(t, mounter(t, p, spec, "u1"))
	if diff := cmp.Diff(before, spec.PersistentVolume); diff != "" {
		t.Errorf("the spec was changed (-before +after):\n%s", diff)
	}
	if extra := spec.PersistentVolume.Spec.MountOptions[:2][1]; extra != "" {
		t.Errorf("%q was written behind the options", extra)
	}
}

func TestTwoPodsOnOneExport(t *testing.T) {
	p, h := newPlugin(t)
	export := t.TempDir()
	h.Fake.Serve("server:/nfs", export)
	first := mounter(t, p, persistent("server", "/nfs"), "u1")
	second := mounter(t, p, persistent("server", "/nfs"), "u2")
	setUp(t, first)
	setUp(t, second)
	if entries, err := h.Fake.Table().BySource("server:/nfs"); err != nil || len(entries) != 2 {
		t.Errorf("the table lists %v, %v", entries, err)
	}
	if err := os.WriteFile(filepath.Join(first.GetPath(), "file"), []byte("data"), 0o644); err != nil {
		t.Fatal(err)
	}
	tearDown(t, p, "nfs211", "u1")
	wantGone(t, h, first.GetPath())
	if data, err := os.ReadFile(filepath.Join(second.GetPath(), "file")); err != nil || string(data) != "data" {
		t.Errorf("the other pod reads %q, %v", data, err)
	}
	tearDown(t, p, "nfs211", "u2")
	wantGone(t, h, second.GetPath())
	if _, err := os.Stat(filepath.Join(export, "file")); err != nil {
		t.Errorf("the data on the server: %v", err)
	}
}

func TestReconstruction(t *testing.T) {
	p, h := newPlugin(t)
	spec := inline("[fd00::1]", "/nfs/a")
	spec.Volume.NFS.ReadOnly = true
	m := mounter(t, p, spec, "u1")
	setUp(t, m)
	rebuilt, err := p.ConstructVolumeSpec(t.Context(), "vol1", m.GetPath())
	if err != nil {
		t.Fatal(err)
	}
	want := volume.ReconstructedVolume{Complete: true, Spec: volume.NewSpecFromVolume(&v1.Volume{Name: "vol1",
		VolumeSource: v1.VolumeSource{NFS: &v1.NFSVolumeSource{Server: "fd00::1", Path: "/nfs/a", ReadOnly: true}}})}
	if diff := cmp.Diff(want, rebuilt); diff != "" {
		t.Errorf("rebuilt (-want +got):\n%s", diff)
	}
	calls := len(h.Fake.Calls())
	setUp(t, mounter(t, p, rebuilt.Spec, "u1"))
	if n := len(h.Fake.Calls()); n != calls {
		t.Error("what was rebuilt is not what is mounted")
	}

	// Something else is on top, or nothing is mounted at all.
	if err := h.Fake.Mount("tmpfs", m.GetPath(), "tmpfs", nil); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{m.GetPath(), filepath.Join(h.RootDir, "nothing")} {
		rebuilt, err := p.ConstructVolumeSpec(t.Context(), "vol1", path)
		if err != nil || rebuilt.Complete || !p.CanSupport(rebuilt.Spec) || rebuilt.Spec.Name() != "vol1" {
			t.Errorf("ConstructVolumeSpec(%s) = %+v, %v", path, rebuilt, err)
		}
	}
	tearDown(t, p, "vol1", "u1")
	wantGone(t, h, m.GetPath())
}

func TestNamesAndCapabilities(t *testing.T) {
	p, _ := newPlugin(t)
	for _, spec := range []*volume.Spec{inline("server", "/nfs"), persistent("server", "/nfs")} {
		if name, err := p.GetVolumeName(spec); err != nil || name != "server//nfs" {
			t.Errorf("GetVolumeName = %q, %v", name, err)
		}
		if !p.CanSupport(spec) {
			t.Error("CanSupport = false")
		}
	}
	for want, specs := range map[string][]*volume.Spec{
		"fd00::1//x":  {inline("fd00::1", "/x"), inline("[fd00::1]", "/x"), inline("FD00:0::1", "/x/"), persistent("fd00::1", "/x//")},
		"10.0.0.1//":  {inline("10.0.0.1", "/"), inline("10.0.0.1", "//")},
		"server//X/y": {inline("server", "/X/y"), inline("Server", "/X/y/")},
	} {
		for _, spec := range specs {
			if name, err := p.GetVolumeName(spec); err != nil || name != want {
				t.Errorf("GetVolumeName = %q, %v, want %q", name, err, want)
			}
		}
	}
	if name, err := p.GetVolumeName(inline("a:b", "/x")); err == nil || volume.IsUncertain(err) {
		t.Errorf("GetVolumeName of no server = %q, %v", name, err)
	}
	if got := volumesource.Describe(p, inline("fd00::1", "/nfs")); got != "[fd00::1]:/nfs" {
		t.Errorf("DescribeSource = %s", got)
	}
	for _, spec := range []*volume.Spec{nil, {}, volume.NewSpecFromVolume(&v1.Volume{}), volume.NewSpecFromPersistentVolume(&v1.PersistentVolume{}, true)} {
		if _, err := p.GetVolumeName(spec); err == nil || p.CanSupport(spec) {
			t.Errorf("%+v is taken for NFS", spec)
		}
	}
	pvPlugin, ok := volume.AsPersistentVolume(p)
	want := []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce, v1.ReadOnlyMany, v1.ReadWriteMany}
	if !ok || !slices.Equal(pvPlugin.GetAccessModes(), want) || !volume.SupportsMountOption(p) {
		t.Error("capabilities")
	}
	if refs := volume.DependsOn(p, inline("server", "/nfs"), pod("u1")); len(refs) != 0 {
		t.Errorf("depends on %v", refs)
	}
}

func TestMetrics(t *testing.T) {
	p, _ := newPlugin(t)
	m := mounter(t, p, inline("server", "/nfs"), "u1")
	setUp(t, m)
	for name, v := range map[string]volume.Volume{"mounter": m, "unmounter": unmounter(t, p, "vol1", "u1")} {
		metrics, err := v.GetMetrics(t.Context())
		if err != nil || metrics.Capacity.Sign() <= 0 {
			t.Errorf("%s: %+v, %v", name, metrics, err)
		}
	}
	tearDown(t, p, "vol1", "u1")
	if err := os.MkdirAll(m.GetPath(), 0o750); err != nil {
		t.Fatal(err)
	}
	if metrics, err := m.GetMetrics(t.Context()); !errors.Is(err, mount.ErrNotMounted) {
		t.Errorf("metrics of what is not mounted: %+v, %v", metrics, err)
	}
}
