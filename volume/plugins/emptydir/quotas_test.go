package emptydir_test

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/podvol/podvol/util/projectquota"
	"github.com/podvol/podvol/util/testenv/fakequota"
	"github.com/podvol/podvol/util/testenv/testtool"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/fakehost"
	"github.com/podvol/podvol/volume/plugins/emptydir"
	"github.com/podvol/podvol/volume/podcheck"
)

// quotaNode is a node whose disk has project quotas.
type quotaNode struct {
	*fakehost.Host
	t      *testing.T
	disk   *fakequota.FileSystem
	plugin volume.VolumePlugin
}

func newQuotaNode(t *testing.T) *quotaNode {
	h := fakehost.New(t)
	n := &quotaNode{Host: h, t: t, disk: &fakequota.FileSystem{Root: h.RootDir, State: filepath.Join(t.TempDir(), "state")}}
	n.restart()
	return n
}

func (n *quotaNode) restart() {
	n.t.Helper()
	n.plugin = emptydir.NewWith(n.disk)
	testtool.Must(n.t, n.plugin.Init(n.Host))
}

func (n *quotaNode) wantLimits(want ...int64) {
	n.t.Helper()
	limits, err := n.disk.Limits()
	testtool.Must(n.t, err)
	if got := slices.Sorted(maps.Values(limits)); !slices.Equal(got, want) {
		n.t.Errorf("limits %v, want %v", got, want)
	}
}

func (n *quotaNode) shortfalls(s *volume.Spec, pod *v1.Pod) (messages []string) {
	for _, f := range podcheck.Shortfalls(n.plugin, s, pod) {
		messages = append(messages, f.Reason+" "+f.Message)
	}
	return messages
}

func TestLimitOnDisk(t *testing.T) {
	n := newQuotaNode(t)
	web, other := fakehost.Pod("web"), fakehost.Pod("other")
	m := mounter(t, n.plugin, spec("", "1Mi"), web)
	setUp(t, m, volume.MounterArgs{})
	setUp(t, mounter(t, n.plugin, spec("", "2Mi"), other), volume.MounterArgs{})
	setUp(t, mounter(t, n.plugin, spec("", "0"), fakehost.Pod("unlimited")), volume.MounterArgs{})
	setUp(t, mounter(t, n.plugin, spec(memory, "4Mi"), fakehost.Pod("memory")), volume.MounterArgs{})
	n.wantLimits(1<<20, 2<<20)
	if got := n.shortfalls(spec("", "1Mi"), web); got != nil {
		t.Errorf("shortfalls %q", got)
	}
	testtool.WriteFile(t, "data", m.GetPath(), "file")
	n.restart()
	setUp(t, mounter(t, n.plugin, spec("", "1Mi"), web), volume.MounterArgs{})
	n.wantLimits(1<<20, 2<<20)
	tearDown(t, n.plugin, web)
	n.wantLimits(2 << 20)
	tearDown(t, n.plugin, other)
	tearDown(t, n.plugin, other)
	n.wantLimits()
	records, err := os.ReadDir(filepath.Join(n.GetPluginDir(emptydir.PluginName), "projects"))
	if err != nil || len(records) > 0 {
		t.Errorf("records %v are left (%v)", records, err)
	}
}

// What cannot be limited is set up, and the pod is told why.
func TestNoLimitOnDisk(t *testing.T) {
	n := newQuotaNode(t)
	n.disk.Before = func(string, uint32) error { return unix.ENOSYS }
	s, pod := spec("", "1Mi"), fakehost.Pod("web")
	m := mounter(t, n.plugin, s, pod)
	setUp(t, m, volume.MounterArgs{})
	got := n.shortfalls(s, pod)
	if len(got) != 1 || !strings.HasPrefix(got[0], `SizeLimitNotEnforced sizeLimit 1Mi of volume "cache" is not enforced`) || !strings.Contains(got[0], unix.ENOSYS.Error()) {
		t.Errorf("shortfalls %q", got)
	}
	// The disk has quotas now. But the volume's files do not count.
	testtool.WriteFile(t, "data", m.GetPath(), "file")
	n.disk.Before = nil
	n.restart()
	setUp(t, mounter(t, n.plugin, s, pod), volume.MounterArgs{})
	if got := n.shortfalls(s, pod); len(got) != 1 || !strings.Contains(got[0], projectquota.ErrNotEmpty.Error()) {
		t.Errorf("shortfalls %q", got)
	}
	tearDown(t, n.plugin, pod)
	setUp(t, mounter(t, n.plugin, s, pod), volume.MounterArgs{})
	n.wantLimits(1 << 20)
	if got := n.shortfalls(s, pod); got != nil {
		t.Errorf("shortfalls %q", got)
	}
}

func TestWithoutQuotas(t *testing.T) {
	p := emptydir.NewWithoutQuotas()
	testtool.Must(t, p.Init(fakehost.New(t)))
	s, pod := spec("", "1Mi"), fakehost.Pod("web")
	setUp(t, mounter(t, p, s, pod), volume.MounterArgs{})
	if got := podcheck.Shortfalls(p, s, pod); len(got) != 1 || !strings.Contains(got[0].Message, "the node's agent sets none") {
		t.Errorf("shortfalls %v", got)
	}
	tearDown(t, p, pod)
}

// A set-up that fails leaves neither a directory nor a project.
func TestFailedLimit(t *testing.T) {
	for _, op := range []string{"Usage", "SetProject", "SetLimit"} {
		n := newQuotaNode(t)
		failed := false
		n.disk.Before = func(at string, _ uint32) error {
			if at == op && !failed {
				failed = true
				return unix.EIO
			}
			return nil
		}
		m := mounter(t, n.plugin, spec("", "1Mi"), fakehost.Pod("web"))
		if err := m.SetUp(t.Context(), volume.MounterArgs{}); !errors.Is(err, unix.EIO) || volume.IsUncertain(err) {
			t.Errorf("%s: SetUp = %v", op, err)
		}
		if _, err := os.Lstat(m.GetPath()); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: the directory is left: %v", op, err)
		}
		n.wantLimits()
		setUp(t, m, volume.MounterArgs{})
		n.wantLimits(1 << 20)
	}
}

// A limit that fails for once changes nothing of a volume in use.
func TestFailedLimitOfAVolumeInUse(t *testing.T) {
	n := newQuotaNode(t)
	m := mounter(t, n.plugin, spec("", "1Mi"), fakehost.Pod("web"))
	setUp(t, m, volume.MounterArgs{})
	testtool.Must(t, os.Chmod(m.GetPath(), 0o700))
	n.disk.Before = func(op string, _ uint32) error {
		if op == "Usage" {
			return unix.EIO
		}
		return nil
	}
	if err := m.SetUp(t.Context(), volume.MounterArgs{}); !errors.Is(err, unix.EIO) {
		t.Errorf("SetUp = %v", err)
	}
	n.disk.Before = nil
	setUp(t, m, volume.MounterArgs{})
	if info, err := os.Stat(m.GetPath()); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("its mode is %v (%v), not the pod's own any more", info.Mode(), err)
	}
}

// A volume that cannot be removed stays limited.
func TestFailedTearDownKeepsTheLimit(t *testing.T) {
	n := newQuotaNode(t)
	pod := fakehost.Pod("web")
	m := mounter(t, n.plugin, spec("", "1Mi"), pod)
	setUp(t, m, volume.MounterArgs{})
	nested := testtool.MkdirAll(t, m.GetPath(), "nested")
	testtool.Must(t, n.Fake.Mount("tmpfs", nested, "tmpfs", nil))
	u, err := n.plugin.NewUnmounter("cache", pod.UID)
	testtool.Must(t, err)
	if err := u.TearDown(t.Context()); err == nil {
		t.Error("it was removed below a mount")
	}
	n.wantLimits(1 << 20)
	testtool.Must(t, n.Fake.Unmount(nested))
	tearDown(t, n.plugin, pod)
	n.wantLimits()
}

// A limited volume whose set-up fails later gives its project back.
func TestFailedAfterTheLimit(t *testing.T) {
	n := newQuotaNode(t)
	pod := fakehost.Pod("web")
	m := mounter(t, n.plugin, spec("", "1Mi"), pod)
	blocking := testtool.WriteFile(t, "", testtool.MkdirAll(t, n.GetPodPluginDir(pod.UID, emptydir.PluginName)), "cache")
	if err := m.SetUp(t.Context(), volume.MounterArgs{}); err == nil {
		t.Fatal("its marker could be written")
	}
	n.wantLimits()
	testtool.Must(t, os.Remove(blocking))
	setUp(t, m, volume.MounterArgs{})
	n.wantLimits(1 << 20)
}

// The file system's count is relied on only where no process of the pod can change it.
func TestMetricsByQuota(t *testing.T) {
	n := newQuotaNode(t)
	for _, hostUsers := range []*bool{nil, new(true), new(false)} {
		pod := fakehost.Pod("web")
		pod.Spec.HostUsers = hostUsers
		m := mounter(t, n.plugin, spec("", "1Mi"), pod)
		setUp(t, m, volume.MounterArgs{})
		testtool.WriteFile(t, "data", m.GetPath(), "file")
		asked := false
		n.disk.Before = func(op string, _ uint32) error { asked = asked || op == "Usage"; return nil }
		metrics, err := m.GetMetrics(t.Context())
		testtool.Must(t, err)
		if isolated := hostUsers != nil && !*hostUsers; asked != isolated || metrics.InodesUsed.Value() != 2 || metrics.Used.Value() == 0 {
			t.Errorf("hostUsers %v: %v inodes, %v bytes; the file system was asked: %v", hostUsers, metrics.InodesUsed, metrics.Used, asked)
		}
		n.disk.Before = nil
		tearDown(t, n.plugin, pod)
	}
	pod := fakehost.Pod("unlimited")
	pod.Spec.HostUsers = new(false)
	m := mounter(t, n.plugin, spec("", ""), pod)
	setUp(t, m, volume.MounterArgs{})
	if metrics, err := m.GetMetrics(t.Context()); err != nil || metrics.InodesUsed.Value() != 1 {
		t.Errorf("of a volume without a project: %+v, %v", metrics, err)
	}
}

// A stranger who gives files of its own the volume's project does not get its pod evicted.
func TestMetricsOfAForgedCount(t *testing.T) {
	n := newQuotaNode(t)
	for _, further := range []v1.ResourceList{nil, {v1.ResourceEphemeralStorage: resource.MustParse("1Gi")}} {
		pod := fakehost.Pod("victim")
		pod.Spec.HostUsers = new(false)
		pod.Spec.Containers = []v1.Container{{Resources: v1.ResourceRequirements{Limits: further}}}
		m := mounter(t, n.plugin, spec("", "1Mi"), pod)
		setUp(t, m, volume.MounterArgs{})
		theirs := testtool.MkdirAll(t, n.RootDir, "theirs")
		limits, err := n.disk.Limits()
		testtool.Must(t, err)
		for id := range limits {
			d, err := os.Open(theirs)
			testtool.Must(t, err)
			testtool.Must(t, errors.Join(n.disk.SetProject(d, projectquota.Project{ID: id, Inherits: true}), d.Close()))
		}
		size := 2 << 20
		if further != nil {
			size /= 4
		}
		testtool.WriteFile(t, strings.Repeat("x", size), theirs, "file")
		if metrics, err := m.GetMetrics(t.Context()); err != nil || metrics.InodesUsed.Value() != 1 || metrics.Used.Value() >= 1<<20 {
			t.Errorf("further limits %v: %+v, %v", further, metrics, err)
		}
		testtool.Must(t, os.RemoveAll(theirs))
		tearDown(t, n.plugin, pod)
	}
}
