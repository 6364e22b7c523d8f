package rbd_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/fakehost"
	"github.com/podvol/podvol/volume/plugins/rbd"
	"github.com/podvol/podvol/volume/plugins/rbd/internal/krbd"
)

// bench is a node with the plugin, and a cluster with one image, which is the directory disk.
type bench struct {
	t       *testing.T
	host    *fakehost.Host
	cluster *cluster
	plugin  *hosted
	image   string
}

func newBench(t *testing.T) *bench {
	b := &bench{t: t, host: fakehost.New(t), cluster: newCluster()}
	b.image = b.cluster.nameOf(t.TempDir())
	b.host.Add(secret("ceph", key), secret("other", otherKey))
	b.restart()
	return b
}

// restart gives the node a new plugin, which knows what is on disk.
func (b *bench) restart() {
	b.plugin = newHosted(b.cluster, rbd.Config{})
	b.must(b.plugin.Init(b.host))
}

func (b *bench) must(errs ...error) {
	b.t.Helper()
	if err := errors.Join(errs...); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) pv(change ...func(*v1.PersistentVolume)) *volume.Spec {
	pv := &v1.PersistentVolume{}
	pv.Name = "pv"
	pv.Spec.RBD = &v1.RBDPersistentVolumeSource{CephMonitors: []string{"192.0.2.1"}, RBDImage: b.image, SecretRef: &v1.SecretReference{Namespace: "default", Name: "ceph"}}
	for _, f := range change {
		f(pv)
	}
	return volume.NewSpecFromPersistentVolume(pv, false)
}

func block(pv *v1.PersistentVolume) { pv.Spec.VolumeMode = new(v1.PersistentVolumeBlock) }

func (b *bench) inline(secret string) *volume.Spec {
	s := &v1.RBDVolumeSource{CephMonitors: []string{"192.0.2.1"}, RBDImage: b.image, SecretRef: &v1.LocalObjectReference{Name: secret}}
	return volume.NewSpecFromVolume(&v1.Volume{Name: "v", VolumeSource: v1.VolumeSource{RBD: s}})
}

func (b *bench) devicePath(s *volume.Spec) string {
	b.t.Helper()
	m, err := b.plugin.NewDeviceMounter()
	b.must(err)
	path, err := m.GetDeviceMountPath(s)
	b.must(err)
	return path
}

func (b *bench) mount(ctx context.Context, s *volume.Spec) error {
	m, err := b.plugin.NewDeviceMounter()
	b.must(err)
	return m.MountDevice(ctx, s, "", b.devicePath(s), volume.DeviceMounterArgs{})
}

func (b *bench) unmount(s *volume.Spec) error {
	m, err := b.plugin.NewDeviceUnmounter()
	b.must(err)
	return m.UnmountDevice(b.t.Context(), b.devicePath(s))
}

func (b *bench) setUp(s *volume.Spec, pod string) (volume.Mounter, error) {
	m, err := b.plugin.NewMounter(s, fakehost.Pod(pod))
	b.must(err)
	return m, m.SetUp(b.t.Context(), volume.MounterArgs{})
}

func (b *bench) tearDown(s *volume.Spec, pod string) {
	b.t.Helper()
	m, err := b.plugin.NewUnmounter(s.Name(), fakehost.Pod(pod).UID)
	b.must(err, m.TearDown(b.t.Context()))
}

// wantGone fails the test if something is left.
func (b *bench) wantGone() {
	b.t.Helper()
	if n := b.cluster.mapped(); n != 0 {
		b.t.Errorf("%d images are mapped", n)
	}
	b.host.AssertClean(b.t)
}

func TestHostileManifests(t *testing.T) {
	long := strings.Repeat("x", 4096)
	for name, change := range map[string]func(*v1.RBDPersistentVolumeSource){
		"no monitor":             func(s *v1.RBDPersistentVolumeSource) { s.CephMonitors = nil },
		"many monitors":          func(s *v1.RBDPersistentVolumeSource) { s.CephMonitors = make([]string, 1000) },
		"monitor with options":   func(s *v1.RBDPersistentVolumeSource) { s.CephMonitors = []string{"10.0.0.1 name=admin"} },
		"monitors in one":        func(s *v1.RBDPersistentVolumeSource) { s.CephMonitors = []string{"10.0.0.1,10.0.0.2"} },
		"pool with a blank":      func(s *v1.RBDPersistentVolumeSource) { s.RBDPool = "a b" },
		"pool with a path":       func(s *v1.RBDPersistentVolumeSource) { s.RBDPool = "../a" },
		"pool with a namespace":  func(s *v1.RBDPersistentVolumeSource) { s.RBDPool = "a/b" },
		"long pool":              func(s *v1.RBDPersistentVolumeSource) { s.RBDPool = long },
		"no image":               func(s *v1.RBDPersistentVolumeSource) { s.RBDImage = "" },
		"image with a blank":     func(s *v1.RBDPersistentVolumeSource) { s.RBDImage = "a b" },
		"image with a newline":   func(s *v1.RBDPersistentVolumeSource) { s.RBDImage = "a\nb" },
		"image ..":               func(s *v1.RBDPersistentVolumeSource) { s.RBDImage = ".." },
		"image with a snapshot":  func(s *v1.RBDPersistentVolumeSource) { s.RBDImage = "a@b" },
		"image -":                func(s *v1.RBDPersistentVolumeSource) { s.RBDImage = "-" },
		"long image":             func(s *v1.RBDPersistentVolumeSource) { s.RBDImage = long },
		"user with options":      func(s *v1.RBDPersistentVolumeSource) { s.RadosUser = "a,noshare" },
		"user with its type":     func(s *v1.RBDPersistentVolumeSource) { s.RadosUser = "client.admin" },
		"keyring elsewhere":      func(s *v1.RBDPersistentVolumeSource) { s.SecretRef, s.Keyring = nil, "/etc/shadow" },
		"keyring that climbs":    func(s *v1.RBDPersistentVolumeSource) { s.SecretRef, s.Keyring = nil, "/etc/ceph/../shadow" },
		"secret of no namespace": func(s *v1.RBDPersistentVolumeSource) { s.SecretRef.Namespace = "" },
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			s := b.pv(func(pv *v1.PersistentVolume) { change(pv.Spec.RBD) })
			m, err := b.plugin.NewDeviceMounter()
			b.must(err)
			err = m.MountDevice(t.Context(), s, "", filepath.Join(b.host.GetPluginDir(rbd.PluginName), "mounts/a-image-b"), volume.DeviceMounterArgs{})
			invalid, ok := errors.AsType[*volume.InvalidSpecError](err)
			if !ok || volume.IsUncertain(err) || !strings.HasPrefix(invalid.Field, "rbd.") || len(err.Error()) > 1000 {
				t.Errorf("MountDevice = %v", err)
			}
			if len(b.cluster.requests) > 0 {
				t.Error("something was mapped")
			}
			b.host.AssertClean(t)
		})
	}
}

// The key is for the kernel alone, and the record, which is written before the image is mapped,
// tells its mapping.
func TestRecordIsWrittenBefore(t *testing.T) {
	b := newBench(t)
	s := b.pv(func(pv *v1.PersistentVolume) { pv.Spec.RBD.RadosUser = "web" })
	var before string
	b.cluster.added = func(context.Context) error {
		text, err := os.ReadFile(b.devicePath(s) + ".json")
		before = string(text)
		return err
	}
	b.must(b.mount(t.Context(), s))
	r := b.cluster.requests[0]
	if r.Key != key || r.User != "web" || r.Pool != "rbd" || r.Image != b.image || r.Monitors != "192.0.2.1:6789" || r.ReadOnly || !krbd.IsToken(r.Token) {
		t.Errorf("the request is %+v", r)
	}
	if !strings.Contains(before, r.Token) || strings.Contains(before, key) {
		t.Errorf("the record is %s", before)
	}
	if err := b.mount(t.Context(), s); err != nil || len(b.cluster.requests) != 1 {
		t.Errorf("mounted again: %v, %d requests", err, len(b.cluster.requests))
	}
	b.must(b.unmount(s), b.unmount(s))
	b.wantGone()
}

// A process that ends anywhere leaves what the next one uses, or gives back.
func TestEndedProcesses(t *testing.T) {
	died := errors.New("the process has ended")
	for name, again := range map[string]bool{"mounted again": true, "unmounted": false} {
		for _, isMapped := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				b := newBench(t)
				s := b.pv()
				b.cluster.added = func(context.Context) error { return died }
				if !isMapped {
					b.cluster.added, b.cluster.refuse = nil, died
				}
				ctx, cancel := context.WithCancel(t.Context())
				cancelled := b.cluster.added
				if isMapped {
					b.cluster.added = func(c context.Context) error { cancel(); return cancelled(c) }
				}
				err := b.mount(ctx, s)
				if !errors.Is(err, died) || !volume.IsUncertain(err) && isMapped {
					t.Fatalf("mounted: %v", err)
				}
				cancel()
				b.cluster.added, b.cluster.refuse = nil, nil
				b.restart()
				if again {
					b.must(b.mount(t.Context(), s))
					if n := b.cluster.mapped(); n != 1 {
						t.Errorf("%d images are mapped", n)
					}
				}
				b.must(b.unmount(s))
				b.wantGone()
			})
		}
	}
}

// After a boot the record is there, and nothing is mapped: a failure leaves neither.
func TestFailureAfterABoot(t *testing.T) {
	b := newBench(t)
	ctx, cancel := context.WithCancel(t.Context())
	b.cluster.added = func(context.Context) error { cancel(); return errors.New("the process has ended") }
	if err := b.mount(ctx, b.pv()); err == nil || b.cluster.mapped() != 1 {
		t.Fatalf("mounted: %v, %d images are mapped", err, b.cluster.mapped())
	}
	clear(b.cluster.mappings)
	b.restart()
	b.cluster.refuse = volume.NothingDone(errors.New("no cluster"))
	if err := b.mount(t.Context(), b.pv()); err == nil || volume.IsUncertain(err) {
		t.Errorf("mounted: %v", err)
	}
	b.wantGone()
}

// Whether an image is mapped cannot be told for a moment: a mapping that is there stays.
func TestMappingThatCannotBeSeen(t *testing.T) {
	unseen := errors.New("too many open files")
	b := newBench(t)
	ctx, cancel := context.WithCancel(t.Context())
	b.cluster.added = func(context.Context) error { cancel(); return errors.New("the process has ended") }
	if err := b.mount(ctx, b.pv()); err == nil || b.cluster.mapped() != 1 {
		t.Fatalf("mounted: %v, %d images are mapped", err, b.cluster.mapped())
	}
	b.restart()
	b.cluster.added, b.cluster.unseen = nil, unseen
	if err := b.mount(t.Context(), b.pv()); !errors.Is(err, unseen) || b.cluster.mapped() != 1 {
		t.Errorf("mounted: %v, %d images are mapped", err, b.cluster.mapped())
	}
	b.must(b.mount(t.Context(), b.pv()), b.unmount(b.pv()))

	s := b.pv(block)
	m, err := b.plugin.NewBlockVolumeMapper(s, fakehost.Pod("a"))
	b.must(err)
	_, err = m.SetUpDevice(t.Context())
	b.must(err)
	b.cluster.unseen = unseen
	if _, err := m.SetUpDevice(t.Context()); !errors.Is(err, unseen) || b.cluster.mapped() != 1 {
		t.Errorf("set up: %v, %d images are mapped", err, b.cluster.mapped())
	}
	u, err := b.plugin.NewBlockVolumeUnmapper("pv", fakehost.Pod("a").UID)
	path := filepath.Join(b.host.GetPluginDir(rbd.PluginName), "volumeDevices", filepath.Base(b.devicePath(s)))
	b.must(err, u.TearDownDevice(t.Context(), path, ""))
	b.wantGone()
}

// A failed mount leaves no mapping.
func TestFailedMountUnmaps(t *testing.T) {
	b := newBench(t)
	b.plugin.binder.fail = errors.New("not blank")
	if err := b.mount(t.Context(), b.pv()); err == nil || volume.IsUncertain(err) {
		t.Errorf("mounted: %v", err)
	}
	b.wantGone()
}

func TestInlineVolumesNeedTheSameKey(t *testing.T) {
	b := newBench(t)
	first := b.inline("ceph")
	b.must(b.mount(t.Context(), first))
	if n := b.cluster.mapped(); n != 0 {
		t.Fatal("it was mapped before the pod's key was known")
	}
	_, err := b.setUp(first, "a")
	b.must(err)
	_, err = b.setUp(b.inline("ceph"), "b")
	b.must(err)
	if _, err := b.setUp(b.inline("other"), "c"); !errors.Is(err, volume.ErrInUse) || volume.IsUncertain(err) || strings.Contains(err.Error(), otherKey) {
		t.Errorf("with another key: %v", err)
	}
	if _, err := b.setUp(b.inline("none"), "d"); err == nil {
		t.Error("a pod without a key has it")
	}
	if n := b.cluster.mapped(); n != 1 {
		t.Errorf("%d images are mapped", n)
	}
	if err := b.unmount(first); !errors.Is(err, volume.ErrInUse) {
		t.Errorf("unmounted under pods: %v", err)
	}
	b.tearDown(first, "a")
	b.tearDown(first, "b")
	b.must(b.unmount(first))
	if _, err := os.Lstat(b.host.GetPluginDir(rbd.PluginName)); b.cluster.mapped() != 0 || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%d images are mapped, %v", b.cluster.mapped(), err)
	}
}

// One image is a file system's or a device, read-only or not.
func TestOneUseAtATime(t *testing.T) {
	b := newBench(t)
	device := b.pv(block)
	m, err := b.plugin.NewBlockVolumeMapper(device, fakehost.Pod("a"))
	b.must(err)
	_, err = m.SetUpDevice(t.Context())
	b.must(err)
	readOnly := b.pv(func(pv *v1.PersistentVolume) { pv.Spec.RBD.ReadOnly = true })
	for name, s := range map[string]*volume.Spec{"file system": b.pv(), "read-only": readOnly} {
		if err := b.mount(t.Context(), s); !errors.Is(err, volume.ErrInUse) || volume.IsUncertain(err) {
			t.Errorf("%s beside a device: %v", name, err)
		}
	}
	b.must(b.unmount(b.pv())) // which is not mounted, and leaves the device
	if path, err := m.MapPodDevice(t.Context()); err != nil || path != b.cluster.dirs[b.image] {
		t.Errorf("the device is %q, %v", path, err)
	}
	u, err := b.plugin.NewBlockVolumeUnmapper("pv", fakehost.Pod("a").UID)
	b.must(err)
	path, err := m.GetGlobalMapPath(device)
	b.must(err, u.TearDownDevice(t.Context(), path, ""))
	b.must(b.mount(t.Context(), readOnly))
	if _, err := b.setUp(b.pv(), "w"); !errors.Is(err, volume.ErrInUse) {
		t.Errorf("a writer beside readers: %v", err)
	}
	if r := b.cluster.requests[len(b.cluster.requests)-1]; !r.ReadOnly {
		t.Error("it was mapped to be written to")
	}
	b.must(b.unmount(readOnly))
	b.wantGone()
}

// The key of a mapped image may change or vanish: the next agent takes the disk over, and only an
// image that is mapped anew needs a key.
func TestMappedDeviceNeedsNoKey(t *testing.T) {
	for name, change := range map[string]func(*bench){
		"another key": func(b *bench) { b.host.Add(secret("ceph", otherKey)) },
		"no secret":   func(b *bench) { b.host.Delete(volume.NewObjectRef("Secret", "default", "ceph")) },
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			s := b.pv(block)
			setUp := func(s *volume.Spec) error {
				m, err := b.plugin.NewBlockVolumeMapper(s, fakehost.Pod("a"))
				b.must(err)
				_, err = m.SetUpDevice(t.Context())
				return err
			}
			b.must(setUp(s))
			change(b)
			b.restart()
			b.must(setUp(s))
			if n := len(b.cluster.requests); n != 1 {
				t.Errorf("%d requests to map the image", n)
			}
			readOnly := b.pv(block, func(pv *v1.PersistentVolume) { pv.Spec.RBD.ReadOnly = true })
			if err := setUp(readOnly); err == nil || volume.IsUncertain(err) {
				t.Errorf("read-only beside a writer: %v", err)
			}
			clear(b.cluster.mappings) // a boot
			err := setUp(s)
			if name == "no secret" && err == nil || name == "another key" && (err != nil || b.cluster.requests[1].Key != otherKey) {
				t.Errorf("after a boot: %v", err)
			}
			u, err := b.plugin.NewBlockVolumeUnmapper("pv", fakehost.Pod("a").UID)
			path := filepath.Join(b.host.GetPluginDir(rbd.PluginName), "volumeDevices", filepath.Base(b.devicePath(s)))
			b.must(err, u.TearDownDevice(t.Context(), path, ""))
			b.wantGone()
		})
	}
}

func TestGrowth(t *testing.T) {
	b := newBench(t)
	s := b.pv()
	b.must(b.mount(t.Context(), s))
	o := volume.NodeResizeOptions{VolumeSpec: s, DeviceMountPath: b.devicePath(s), NewSize: resource.MustParse("2Ti")}
	if _, err := b.plugin.NodeExpand(t.Context(), o); err == nil || volume.IsUncertain(err) || len(b.plugin.binder.resized) > 0 {
		t.Errorf("an image that has not grown: %v", err)
	}
	b.cluster.size = 2 << 40
	if grown, err := b.plugin.NodeExpand(t.Context(), o); !grown || err != nil || len(b.plugin.binder.resized) != 1 {
		t.Errorf("%v, %v", grown, err)
	}
	b.must(b.unmount(s))
	b.wantGone()
}

// Images of the same name in two clusters are two.
func TestVolumesAreKnownByTheirCluster(t *testing.T) {
	b := newBench(t)
	other := b.pv(func(pv *v1.PersistentVolume) { pv.Spec.RBD.CephMonitors = []string{"192.0.2.2"} })
	name, err := b.plugin.GetVolumeName(b.pv())
	otherName, otherErr := b.plugin.GetVolumeName(other)
	b.must(err, otherErr)
	if name == otherName || b.devicePath(b.pv()) == b.devicePath(other) || name != "192.0.2.1:6789:rbd/"+b.image {
		t.Errorf("%q, %q", name, otherName)
	}
}

func TestBrokenRecord(t *testing.T) {
	b := newBench(t)
	s := b.pv()
	file := b.devicePath(s) + ".json"
	b.must(os.MkdirAll(filepath.Dir(file), 0o750))
	for _, text := range []string{"", "{", "{}", `{"Token":"../x"}`, `{"Token":1}`} {
		b.must(os.WriteFile(file, []byte(text), 0o600))
		if err := b.mount(t.Context(), s); err == nil || volume.IsUncertain(err) || !strings.Contains(err.Error(), file) {
			t.Errorf("%q: %v", text, err)
		}
		if err := b.unmount(s); err == nil || !strings.Contains(err.Error(), file) {
			t.Errorf("unmount with %q: %v", text, err)
		}
	}
	b.must(os.Remove(file), b.unmount(s))
	b.wantGone()
}

func FuzzSource(f *testing.F) {
	f.Add("10.0.0.1:6789", "rbd", "image", "admin")
	f.Add("[::1]:1", "a-image-b", "c", "")
	f.Add("a b", "../x", "a@b", "client.x")
	f.Fuzz(func(t *testing.T, monitor, pool, image, user string) {
		b := newBench(t)
		s := b.pv(func(pv *v1.PersistentVolume) {
			r := pv.Spec.RBD
			r.CephMonitors, r.RBDPool, r.RBDImage, r.RadosUser = []string{monitor}, pool, image, user
		})
		m, err := b.plugin.NewDeviceMounter()
		b.must(err)
		path, err := m.GetDeviceMountPath(s)
		if err != nil {
			if _, ok := errors.AsType[*volume.InvalidSpecError](err); !ok {
				t.Errorf("%v", err)
			}
			return
		}
		if filepath.Dir(path) != filepath.Join(b.host.GetPluginDir(rbd.PluginName), "mounts") || len(filepath.Base(path)) > 200 {
			t.Errorf("the path is %q", path)
		}
		if strings.ContainsAny(pool+image+user, " ,/\n\t=") {
			t.Errorf("taken: %q %q %q", pool, image, user)
		}
	})
}
