package rbd_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/podvol/podvol/mount/host"
	"github.com/podvol/podvol/util/testenv/cephcluster"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/fakehost"
	"github.com/podvol/podvol/volume/plugins/rbd"
	"github.com/podvol/podvol/volume/plugins/rbd/internal/krbd"
)

// machine is a node of a real cluster, in a virtual machine.
type machine struct {
	*testing.T
	cluster cephcluster.Cluster
	host    *fakehost.Host
	plugin  volume.VolumePlugin
}

func (m *machine) must(errs ...error) {
	m.Helper()
	if err := errors.Join(errs...); err != nil {
		m.Fatal(err)
	}
}

// restart gives the node a new plugin.
func (m *machine) restart() {
	m.plugin = rbd.New(rbd.Config{})
	m.must(m.plugin.Init(m.host))
}

func (m *machine) pv(image string, change ...func(*v1.PersistentVolume)) *volume.Spec {
	pv := &v1.PersistentVolume{}
	pv.Name = image
	pv.Spec.RBD = &v1.RBDPersistentVolumeSource{CephMonitors: []string{cephcluster.Monitor}, RBDImage: image, SecretRef: &v1.SecretReference{Namespace: "default", Name: "ceph"}}
	for _, f := range change {
		f(pv)
	}
	return volume.NewSpecFromPersistentVolume(pv, false)
}

func (m *machine) place(s *volume.Spec) string {
	p, _ := volume.AsDeviceMountable(m.plugin)
	d, err := p.NewDeviceMounter()
	m.must(err)
	path, err := d.GetDeviceMountPath(s)
	m.must(err)
	return path
}

func (m *machine) mount(ctx context.Context, s *volume.Spec) error {
	p, _ := volume.AsDeviceMountable(m.plugin)
	d, err := p.NewDeviceMounter()
	m.must(err)
	return d.MountDevice(ctx, s, "", m.place(s), volume.DeviceMounterArgs{})
}

func (m *machine) unmount(s *volume.Spec) {
	m.Helper()
	p, _ := volume.AsDeviceMountable(m.plugin)
	d, err := p.NewDeviceUnmounter()
	m.must(err, d.UnmountDevice(m.Context(), m.place(s)))
}

func (m *machine) setUp(s *volume.Spec, pod string) string {
	m.Helper()
	p, err := m.plugin.NewMounter(s, fakehost.Pod(pod))
	m.must(err, p.SetUp(m.Context(), volume.MounterArgs{}))
	return p.GetPath()
}

func (m *machine) tearDown(s *volume.Spec, pod string) {
	m.Helper()
	u, err := m.plugin.NewUnmounter(s.Name(), fakehost.Pod(pod).UID)
	m.must(err, u.TearDown(m.Context()))
}

// mapped are the images that the kernel has.
func (m *machine) mapped() int {
	all, err := os.ReadDir("/sys/bus/rbd/devices")
	m.must(err)
	return len(all)
}

// Real images, by Debian's kernel.
func TestImagesOfAClusterInAMachine(t *testing.T) {
	cephcluster.Run(t, func(t *testing.T, c cephcluster.Cluster) {
		m := &machine{T: t, cluster: c, host: fakehost.NewOnKernel(t, host.New(host.Config{}))}
		m.host.Add(secret("ceph", c.Key), secret("wrong", key))
		m.restart()
		c.Do(t, "rbd", "create", "--size", "64M", "disk")
		t.Run("file system", m.testFileSystem)
		t.Run("device", m.testDevice)
		t.Run("refused", m.testRefused)
		t.Run("locked", m.testLocked)
		if n := m.mapped(); n != 0 {
			t.Errorf("%d images are mapped", n)
		}
		m.host.AssertNothingMounted(t)
	})
}

func (m *machine) in(t *testing.T) *machine { return &machine{t, m.cluster, m.host, m.plugin} }

func (m *machine) testFileSystem(t *testing.T) {
	m = m.in(t)
	s := m.pv("disk")
	m.must(m.mount(t.Context(), s))
	dir := m.setUp(s, "a")
	m.must(os.WriteFile(filepath.Join(dir, "file"), []byte("data"), 0o600))
	m.restart()
	m.must(m.mount(t.Context(), s))
	if data, err := os.ReadFile(filepath.Join(m.setUp(s, "b"), "file")); string(data) != "data" || err != nil {
		t.Errorf("the other pod reads %q, %v", data, err)
	}
	if n := m.mapped(); n != 1 {
		t.Errorf("%d images are mapped", n)
	}
	for _, file := range []string{"/proc/self/mountinfo", "/proc/keys", "/sys/bus/rbd/devices/0/config_info", m.place(s) + ".json"} {
		if text, err := os.ReadFile(file); err != nil || strings.Contains(string(text), m.cluster.Key) {
			t.Errorf("%s has the key, or %v", file, err)
		}
	}
	m.tearDown(s, "a")
	m.tearDown(s, "b")
	m.unmount(s)
	if n := m.mapped(); n != 0 {
		t.Errorf("%d images are mapped", n)
	}
	m.grow(s)
	readOnly := m.pv("disk", func(pv *v1.PersistentVolume) { pv.Spec.RBD.ReadOnly = true })
	m.must(m.mount(t.Context(), readOnly))
	if data, err := os.ReadFile(filepath.Join(m.setUp(readOnly, "c"), "file")); string(data) != "data" || err != nil {
		t.Errorf("read-only: %q, %v", data, err)
	}
	m.tearDown(readOnly, "c")
	m.unmount(readOnly)
}

// grow grows the image while no node has it, and the file system under its next pod.
func (m *machine) grow(s *volume.Spec) {
	m.cluster.Do(m, "rbd", "resize", "--size", "96M", "disk")
	m.must(m.mount(m.Context(), s))
	dir := m.setUp(s, "c")
	p, _ := m.plugin.(volume.NodeExpandableVolumePlugin)
	o := volume.NodeResizeOptions{VolumeSpec: s, DeviceMountPath: m.place(s), NewSize: resource.MustParse("1Gi")}
	if _, err := p.NodeExpand(m.Context(), o); err == nil || volume.IsUncertain(err) {
		m.Errorf("an image that has not grown: %v", err)
	}
	o.NewSize = resource.MustParse("96Mi")
	var before, after unix.Statfs_t
	m.must(unix.Statfs(dir, &before))
	_, err := p.NodeExpand(m.Context(), o)
	m.must(err, unix.Statfs(dir, &after))
	if after.Blocks <= before.Blocks {
		m.Errorf("%d blocks became %d", before.Blocks, after.Blocks)
	}
	m.tearDown(s, "c")
	m.unmount(s)
}

func (m *machine) testDevice(t *testing.T) {
	m = m.in(t)
	m.cluster.Do(t, "rbd", "create", "--size", "8M", "device")
	s := m.pv("device", block)
	p, _ := volume.AsBlock(m.plugin)
	b, err := p.NewBlockVolumeMapper(s, fakehost.Pod("a"))
	m.must(err)
	_, err = b.SetUpDevice(t.Context())
	m.must(err)
	path, err := b.MapPodDevice(t.Context())
	m.must(err)
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	m.must(err)
	_, err = f.Write(make([]byte, 4096))
	m.must(err, f.Sync())
	u, err := p.NewBlockVolumeUnmapper(s.Name(), fakehost.Pod("a").UID)
	m.must(err)
	place, err := b.GetGlobalMapPath(s)
	m.must(err)
	if err := u.TearDownDevice(t.Context(), place, ""); !errors.Is(err, volume.ErrInUse) {
		t.Errorf("unmapped while it is open: %v", err)
	}
	m.must(f.Close(), u.TearDownDevice(t.Context(), place, ""))
}

func (m *machine) testRefused(t *testing.T) {
	m = m.in(t)
	m.cluster.Do(t, "rbd", "create", "--size", "8M", "--image-feature", "layering,exclusive-lock,journaling", "journaled")
	m.cluster.Do(t, "rbd", "create", "--size", "8M", "--image-feature", "layering", "lockless")
	for name, test := range map[string]struct {
		image  string
		change func(*v1.PersistentVolume)
		cause  error
		words  string
	}{
		"a feature":     {"journaled", func(*v1.PersistentVolume) {}, krbd.ErrFeatures, "rbd feature disable rbd/journaled journaling"},
		"no lock":       {"lockless", func(*v1.PersistentVolume) {}, krbd.ErrNoLock, "rbd feature enable rbd/lockless exclusive-lock"},
		"no image":      {"none", func(*v1.PersistentVolume) {}, krbd.ErrNoImage, "rbd info rbd/none"},
		"no pool":       {"disk", func(pv *v1.PersistentVolume) { pv.Spec.RBD.RBDPool = "none" }, krbd.ErrNoImage, "none/disk"},
		"another key":   {"disk", func(pv *v1.PersistentVolume) { pv.Spec.RBD.SecretRef.Name = "wrong" }, krbd.ErrDenied, "client.admin"},
		"no such user":  {"disk", func(pv *v1.PersistentVolume) { pv.Spec.RBD.RadosUser = "nobody" }, krbd.ErrDenied, "client.nobody"},
		"no answer yet": {"disk", func(pv *v1.PersistentVolume) { pv.Spec.RBD.CephMonitors = []string{cephcluster.Silent} }, context.DeadlineExceeded, ""},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
		s := m.pv(test.image, test.change)
		err := m.mount(ctx, s)
		cancel()
		advice := ""
		if f, ok := errors.AsType[*volume.Failure](err); ok {
			advice = f.Advice()
		}
		isSilent := test.words == ""
		if !errors.Is(err, test.cause) || volume.IsUncertain(err) != isSilent || !strings.Contains(err.Error()+advice, test.words) || strings.Contains(err.Error(), m.cluster.Key) {
			t.Errorf("%s: %v", name, err)
		}
		m.unmount(s) // which waits for a call that was given up
	}
	if n := m.mapped(); n != 0 {
		t.Errorf("%d images are mapped", n)
	}
}

// An image that another client has is not to be had, and its mapping is left alone.
func (m *machine) testLocked(t *testing.T) {
	m = m.in(t)
	other := &krbd.Client{}
	token := strings.Repeat("a", 32)
	_, err := other.Map(t.Context(), krbd.Request{Monitors: cephcluster.Monitor, User: "admin", Key: m.cluster.Key, Pool: "rbd", Image: "disk", Token: token})
	m.must(err)
	s := m.pv("disk")
	err = m.mount(t.Context(), s)
	if !errors.Is(err, volume.ErrInUse) || volume.IsUncertain(err) {
		t.Errorf("mounted beside another: %v", err)
	}
	m.unmount(s)
	if _, mapped, err := other.Find(token); !mapped || err != nil {
		t.Errorf("the other's mapping: %v, %v", mapped, err)
	}
	m.must(other.Unmap(t.Context(), token), m.mount(t.Context(), s))
	m.unmount(s)
}
