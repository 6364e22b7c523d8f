package emptydir_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/util/kubeapi"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/fakehost"
	"github.com/podvol/podvol/volume/plugins/emptydir"
	"github.com/podvol/podvol/volume/volumesource"
)

const memory = v1.StorageMediumMemory

func newPlugin(t *testing.T) (volume.VolumePlugin, *fakehost.Host) {
	t.Helper()
	h := fakehost.New(t)
	p := emptydir.New()
	if err := p.Init(h); err != nil {
		t.Fatal(err)
	}
	return p, h
}

func spec(medium v1.StorageMedium, limit string) *volume.Spec {
	source := &v1.EmptyDirVolumeSource{Medium: medium}
	if limit != "" {
		q := resource.MustParse(limit)
		source.SizeLimit = &q
	}
	return volume.NewSpecFromVolume(&v1.Volume{Name: "cache", VolumeSource: v1.VolumeSource{EmptyDir: source}})
}

func mounter(t *testing.T, p volume.VolumePlugin, s *volume.Spec, pod *v1.Pod) volume.Mounter {
	t.Helper()
	m, err := p.NewMounter(s, pod)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func setUp(t *testing.T, m volume.Mounter, args volume.MounterArgs) {
	t.Helper()
	if err := m.SetUp(t.Context(), args); err != nil {
		t.Fatal(err)
	}
}

func tearDown(t *testing.T, p volume.VolumePlugin, pod *v1.Pod) {
	t.Helper()
	u, err := p.NewUnmounter("cache", pod.UID)
	if err != nil {
		t.Fatal(err)
	}
	if err := u.TearDown(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// modeOn is the usual mode on a medium: on a tmpfs it is sticky, as the kubelet's.
func modeOn(medium v1.StorageMedium) fs.FileMode {
	if medium == memory {
		return 0o777 | fs.ModeSticky
	}
	return 0o777
}

func TestLife(t *testing.T) {
	for _, medium := range []v1.StorageMedium{"", memory, "HugePages-2Mi"} {
		t.Run("medium "+string(medium), func(t *testing.T) {
			p, h := newPlugin(t)
			pod, other := withPages("web"), withPages("other")
			m := mounter(t, p, spec(medium, ""), pod)
			if want := filepath.Join(h.RootDir, "pods", string(pod.UID), "volumes/kubernetes.io~empty-dir/cache"); m.GetPath() != want {
				t.Errorf("GetPath = %s, want %s", m.GetPath(), want)
			}
			setUp(t, m, volume.MounterArgs{})
			info, err := os.Stat(m.GetPath())
			if err != nil || info.Mode() != fs.ModeDir|modeOn(medium) {
				t.Errorf("mode %v, %v", info.Mode(), err)
			}
			file := filepath.Join(m.GetPath(), "file")
			if err := os.WriteFile(file, []byte("data"), 0o600); err != nil {
				t.Fatal(err)
			}
			setUp(t, m, volume.MounterArgs{})
			if data, err := os.ReadFile(file); err != nil || string(data) != "data" {
				t.Errorf("after another SetUp: %q, %v", data, err)
			}
			setUp(t, mounter(t, p, spec(medium, ""), other), volume.MounterArgs{})
			tearDown(t, p, other)
			if data, err := os.ReadFile(file); err != nil || string(data) != "data" {
				t.Errorf("after the teardown of another pod: %q, %v", data, err)
			}
			tearDown(t, p, pod)
			tearDown(t, p, pod)
			h.AssertTornDown(t)
		})
	}
}

func container(limits v1.ResourceList) v1.Container {
	return v1.Container{Resources: v1.ResourceRequirements{Limits: limits}}
}

func withMemory(limit string) v1.Container {
	return container(v1.ResourceList{v1.ResourceMemory: resource.MustParse(limit)})
}

// withPages is a pod that may have huge pages.
func withPages(name string) *v1.Pod {
	pod := fakehost.Pod(name)
	pod.Spec.Containers = []v1.Container{container(v1.ResourceList{"hugepages-2Mi": resource.MustParse("4Mi")})}
	return pod
}

func TestSizeOfMemory(t *testing.T) {
	always := v1.ContainerRestartPolicyAlways
	sidecar := withMemory("64Mi")
	sidecar.RestartPolicy = &always
	quantity := func(s string) *resource.Quantity { q := resource.MustParse(s); return &q }
	tests := map[string]struct {
		limit     string
		init      []v1.Container
		main      []v1.Container
		pod       string
		desired   *resource.Quantity
		noRole    bool
		want      string
		noOptions bool
	}{
		"limit":                            {limit: "1Mi", want: "size=1048576"},
		"limit of zero is none":            {limit: "0", main: []v1.Container{withMemory("2Mi")}, want: "size=2097152"},
		"pod's memory is less":             {limit: "1Gi", main: []v1.Container{withMemory("1Mi"), withMemory("1Mi")}, want: "size=2097152"},
		"pod's memory is more":             {limit: "1Mi", main: []v1.Container{withMemory("1Gi")}, want: "size=1048576"},
		"a container without limit":        {limit: "1Gi", main: []v1.Container{withMemory("1Mi"), {}}, want: "size=1073741824"},
		"an init container without limit":  {limit: "1Gi", init: []v1.Container{{}}, main: []v1.Container{withMemory("1Mi")}, want: "size=1073741824"},
		"an init container needs most":     {init: []v1.Container{withMemory("4Mi")}, main: []v1.Container{withMemory("1Mi")}, want: "size=4194304"},
		"a sidecar counts beside the rest": {init: []v1.Container{sidecar, withMemory("1Mi")}, main: []v1.Container{withMemory("64Mi")}, want: "size=134217728"},
		"a sidecar counts beside init":     {init: []v1.Container{sidecar, withMemory("64Mi")}, main: []v1.Container{withMemory("1Mi")}, want: "size=134217728"},
		"the pod's own limit":              {main: []v1.Container{{}}, pod: "3Mi", want: "size=3145728"},
		"desired is less":                  {limit: "1Gi", desired: quantity("1Mi"), want: "size=1048576"},
		"desired is more":                  {limit: "1Mi", desired: quantity("1Gi"), want: "size=1048576"},
		"nothing but the node":             {main: []v1.Container{{}}, want: "size=8589934592"},
		"the node has less":                {limit: "1Ti", main: []v1.Container{withMemory("1Ti")}, desired: quantity("1Ti"), want: "size=8589934592"},
		"nothing and no node":              {noRole: true, noOptions: true},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			p, h := newPlugin(t)
			if test.noRole {
				h.Allocatable = nil
			}
			pod := fakehost.Pod("web")
			pod.Spec.InitContainers, pod.Spec.Containers = test.init, test.main
			if test.pod != "" {
				pod.Spec.Resources = &v1.ResourceRequirements{Limits: v1.ResourceList{v1.ResourceMemory: resource.MustParse(test.pod)}}
			}
			setUp(t, mounter(t, p, spec(memory, test.limit), pod), volume.MounterArgs{DesiredSize: test.desired})
			options := h.Fake.Calls()[0].Options
			hasSize := slices.ContainsFunc(options, func(o string) bool { return len(o) > 5 && o[:5] == "size=" })
			if hasSize == test.noOptions || !test.noOptions && !slices.Contains(options, test.want) {
				t.Errorf("options %v, want %s", options, test.want)
			}
		})
	}
}

func TestAllocatableCannotBeTold(t *testing.T) {
	p, h := newPlugin(t)
	broken := errors.New("no answer")
	h.Allocatable = brokenNode{broken}
	err := mounter(t, p, spec(memory, ""), fakehost.Pod("web")).SetUp(t.Context(), volume.MounterArgs{})
	if !errors.Is(err, broken) || volume.IsUncertain(err) {
		t.Errorf("SetUp = %v", err)
	}
	h.AssertTornDown(t)
	setUp(t, mounter(t, p, spec("", ""), fakehost.Pod("web")), volume.MounterArgs{})
	setUp(t, mounter(t, p, spec(memory, "1Mi"), fakehost.Pod("limited")), volume.MounterArgs{})
}

type brokenNode struct{ err error }

func (n brokenNode) GetAllocatable(context.Context) (v1.ResourceList, error) { return nil, n.err }

func TestHugePages(t *testing.T) {
	resources := func(names ...string) v1.Container {
		list := v1.ResourceList{}
		for _, n := range names {
			list[v1.ResourceName(n)] = resource.MustParse("1Gi")
		}
		return container(list)
	}
	tests := map[string]struct {
		medium     v1.StorageMedium
		limit      string
		containers []v1.Container
		want       []string
	}{
		"given size":            {medium: "HugePages-2Mi", containers: []v1.Container{resources("memory"), resources("hugepages-2048Ki")}, want: []string{"pagesize=2097152"}},
		"given, none requested": {medium: "HugePages-2Mi", containers: []v1.Container{resources("memory")}},
		"given, another asked":  {medium: "HugePages-2Mi", containers: []v1.Container{resources("hugepages-1Gi")}},
		"given size and limit":  {medium: "HugePages-1Gi", containers: []v1.Container{resources("hugepages-1Gi")}, limit: "2Gi", want: []string{"pagesize=1073741824", "size=2147483648"}},
		"requested size":        {medium: "HugePages", containers: []v1.Container{{}, resources("hugepages-2Mi", "memory")}, want: []string{"pagesize=2097152"}},
		"requested twice":       {medium: "HugePages", containers: []v1.Container{resources("hugepages-2Mi"), resources("hugepages-2048Ki")}, want: []string{"pagesize=2097152"}},
		"two sizes, one asked":  {medium: "HugePages-2Mi", containers: []v1.Container{resources("hugepages-2Mi", "hugepages-1Gi")}, want: []string{"pagesize=2097152"}},
		"two sizes":             {medium: "HugePages", containers: []v1.Container{resources("hugepages-2Mi"), resources("hugepages-1Gi")}},
		"no request":            {medium: "HugePages", containers: []v1.Container{resources("memory")}},
		"size that is no power": {medium: "HugePages-3Mi"},
		"no size":               {medium: "HugePages-"},
		"unknown medium":        {medium: "Tape"},
		"request of no size":    {medium: "HugePages", containers: []v1.Container{resources("hugepages-")}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			p, h := newPlugin(t)
			pod := fakehost.Pod("web")
			pod.Spec.Containers = test.containers
			m, err := p.NewMounter(spec(test.medium, test.limit), pod)
			if test.want == nil {
				if e, ok := errors.AsType[*volume.InvalidSpecError](err); !ok || e.Field == "" || volume.IsUncertain(err) {
					t.Errorf("NewMounter = %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			setUp(t, m, volume.MounterArgs{})
			call := h.Fake.Calls()[0]
			for _, o := range test.want {
				if call.FSType != "hugetlbfs" || !slices.Contains(call.Options, o) {
					t.Errorf("call %v lacks %s", call, o)
				}
			}
		})
	}
}

func TestRefusedSpecs(t *testing.T) {
	p, h := newPlugin(t)
	slash := spec("", "")
	slash.Volume.Name = "a/b"
	refused := map[string]*volume.Spec{
		"negative limit": spec("", "-1"), "negative limit of memory": spec(memory, "-1Mi"), "name": slash, "nil": nil,
		"other source": volume.NewSpecFromVolume(&v1.Volume{Name: "v"}),
	}
	if setuid := spec("", ""); kubeapi.Set(setuid.Volume.EmptyDir, "Mode", new(int32(0o4777))) {
		refused["setuid"] = setuid
	}
	for name, s := range refused {
		if _, err := p.NewMounter(s, fakehost.Pod("web")); err == nil || volume.IsUncertain(err) {
			t.Errorf("%s: NewMounter = %v", name, err)
		}
	}
	h.AssertClean(t)
}

func TestFsGroup(t *testing.T) {
	gid := int64(os.Getgid())
	for _, medium := range []v1.StorageMedium{"", memory} {
		p, _ := newPlugin(t)
		m := mounter(t, p, spec(medium, ""), fakehost.Pod("web"))
		setUp(t, m, volume.MounterArgs{FsGroup: &gid})
		if info, err := os.Stat(m.GetPath()); err != nil || info.Mode() != fs.ModeDir|fs.ModeSetgid|modeOn(medium) {
			t.Errorf("medium %q: mode %v, %v", medium, info.Mode(), err)
		}
	}
}

func TestModeOfNewerMinors(t *testing.T) {
	gid := int64(os.Getgid())
	for _, test := range []struct {
		mode int32
		gid  *int64
		want fs.FileMode
	}{
		{0o750, nil, 0o750}, {0, nil, 0}, {0o1777, nil, fs.ModeSticky | 0o777},
		{0o700, &gid, fs.ModeSetgid | 0o770}, // the group's rights come on top
	} {
		for _, medium := range []v1.StorageMedium{"", memory} {
			if medium == memory && test.mode == 0 {
				continue // a fake mount is a directory that is moved, which takes rights to it
			}
			p, h := newPlugin(t)
			s := spec(medium, "")
			if !kubeapi.Set(s.Volume.EmptyDir, "Mode", &test.mode) {
				t.Skip("this minor of k8s.io/api has no emptyDir.mode")
			}
			m := mounter(t, p, s, fakehost.Pod("web"))
			setUp(t, m, volume.MounterArgs{FsGroup: test.gid})
			if info, err := os.Stat(m.GetPath()); err != nil || info.Mode() != fs.ModeDir|test.want {
				t.Errorf("medium %q, mode %#o: %v, %v", medium, test.mode, info.Mode(), err)
			}
			tearDown(t, p, fakehost.Pod("web"))
			h.AssertTornDown(t)
		}
	}
}

func TestFailedSetUp(t *testing.T) {
	for _, after := range []bool{false, true} {
		p, h := newPlugin(t)
		h.Fake.Inject(fakemount.Fault{Match: func(c fakemount.Call) bool { return c.Op == mount.OpMount }, After: after, Err: unix.ENOMEM})
		err := mounter(t, p, spec(memory, ""), fakehost.Pod("web")).SetUp(t.Context(), volume.MounterArgs{})
		e, ok := errors.AsType[*volume.Error](err)
		if !ok || e.Volume != "cache" || e.Pod.String() != "default/web" || !errors.Is(err, unix.ENOMEM) || volume.IsUncertain(err) {
			t.Errorf("SetUp = %v", err)
		}
		h.AssertTornDown(t)
	}
}

func TestReconstruction(t *testing.T) {
	for _, medium := range []v1.StorageMedium{"", memory, "HugePages-2Mi"} {
		p, _ := newPlugin(t)
		m := mounter(t, p, spec(medium, "4Mi"), withPages("web"))
		setUp(t, m, volume.MounterArgs{})
		rebuilt, err := p.ConstructVolumeSpec(t.Context(), "cache", m.GetPath())
		if err != nil || rebuilt.Complete || rebuilt.Spec.Name() != "cache" || !p.CanSupport(rebuilt.Spec) {
			t.Fatalf("ConstructVolumeSpec = %+v, %v", rebuilt, err)
		}
		if got := rebuilt.Spec.Volume.EmptyDir.Medium; got != medium {
			t.Errorf("medium %q, want %q", got, medium)
		}
	}
}

func TestNamesAndAttributes(t *testing.T) {
	p, _ := newPlugin(t)
	s := spec("", "")
	if name, err := p.GetVolumeName(s); err != nil || name != "cache" {
		t.Errorf("GetVolumeName = %q, %v", name, err)
	}
	for _, s := range []*volume.Spec{nil, {}, volume.NewSpecFromVolume(&v1.Volume{}), volume.NewSpecFromPersistentVolume(&v1.PersistentVolume{}, true)} {
		if _, err := p.GetVolumeName(s); err == nil || p.CanSupport(s) {
			t.Errorf("%+v is taken for an emptyDir", s)
		}
	}
	for medium, want := range map[v1.StorageMedium]string{"": "disk", memory: "Memory"} {
		if got := volumesource.Describe(p, spec(medium, "")); got != want {
			t.Errorf("DescribeSource = %q, want %q", got, want)
		}
	}
	want := volume.Attributes{Managed: true, SELinuxRelabel: true}
	if got := mounter(t, p, s, fakehost.Pod("web")).GetAttributes(); got != want {
		t.Errorf("attributes %+v", got)
	}
}

func TestMetrics(t *testing.T) {
	p, _ := newPlugin(t)
	pod := fakehost.Pod("web")
	m := mounter(t, p, spec("", ""), pod)
	setUp(t, m, volume.MounterArgs{})
	if err := os.WriteFile(filepath.Join(m.GetPath(), "file"), make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	u, err := p.NewUnmounter("cache", pod.UID)
	if err != nil {
		t.Fatal(err)
	}
	for name, v := range map[string]volume.Volume{"mounter": m, "unmounter": u} {
		metrics, err := v.GetMetrics(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if used := metrics.Used.Value(); used < 1<<20 || used > 2<<20 {
			t.Errorf("%s: %d bytes used, want those of the directory alone", name, used)
		}
	}
}
