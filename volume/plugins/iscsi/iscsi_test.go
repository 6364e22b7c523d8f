package iscsi_test

import (
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/format"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/fakehost"
	"github.com/podvol/podvol/volume/plugins/iscsi"
)

// bench is a node with the plugin, and a target whose disks are the directory disk.
type bench struct {
	t      *testing.T
	host   *fakehost.Host
	nodes  *targets
	plugin *hosted
	disk   string
}

func newBench(t *testing.T) *bench {
	b := &bench{t: t, host: fakehost.New(t), nodes: newTargets(), disk: t.TempDir()}
	b.plugin = newHosted(b.nodes)
	b.must(b.plugin.Init(b.host))
	return b
}

func (b *bench) must(errs ...error) {
	b.t.Helper()
	if err := errors.Join(errs...); err != nil {
		b.t.Fatal(err)
	}
}

// pv is a PersistentVolume of LUN 3.
func (b *bench) pv(name string, change ...func(*v1.PersistentVolume)) *volume.Spec {
	pv := &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}}
	pv.Spec.ISCSI = &v1.ISCSIPersistentVolumeSource{TargetPortal: "192.0.2.1", IQN: iqnOf(b.disk), Lun: 3}
	for _, f := range change {
		f(pv)
	}
	return volume.NewSpecFromPersistentVolume(pv, false)
}

func (b *bench) devicePath(s *volume.Spec) string {
	b.t.Helper()
	m, err := b.plugin.NewDeviceMounter()
	b.must(err)
	path, err := m.GetDeviceMountPath(s)
	b.must(err)
	return path
}

func (b *bench) mount(s *volume.Spec) error {
	m, err := b.plugin.NewDeviceMounter()
	b.must(err)
	return m.MountDevice(b.t.Context(), s, "", b.devicePath(s), volume.DeviceMounterArgs{})
}

func (b *bench) unmount(s *volume.Spec) error {
	m, err := b.plugin.NewDeviceUnmounter()
	b.must(err)
	return m.UnmountDevice(b.t.Context(), b.devicePath(s))
}

// The names are those that a kubelet of the same volumes gives.
func TestNames(t *testing.T) {
	b := newBench(t)
	for name, tc := range map[string]struct {
		change func(*v1.ISCSIPersistentVolumeSource)
		volume string
		path   string
	}{
		"default port": {func(*v1.ISCSIPersistentVolumeSource) {}, "10.0.0.1:iqn.2001-04.com.example:storage:3", "iface-default/10.0.0.1:3260-iqn.2001-04.com.example:storage-lun-3"},
		"port": {func(s *v1.ISCSIPersistentVolumeSource) { s.TargetPortal, s.ISCSIInterface = "10.0.0.1:3261", "iser" }, "10.0.0.1:3261:iqn.2001-04.com.example:storage:3",
			"iface-iser/10.0.0.1:3261-iqn.2001-04.com.example:storage-lun-3"},
		"IPv6": {func(s *v1.ISCSIPersistentVolumeSource) { s.TargetPortal = "[2001:db8::1]:3260" }, "[2001:db8::1]:3260:iqn.2001-04.com.example:storage:3",
			"iface-default/[2001:db8::1]:3260-iqn.2001-04.com.example:storage-lun-3"},
		"initiator": {func(s *v1.ISCSIPersistentVolumeSource) { s.InitiatorName = new("iqn.1996-04.de.suse:host1") }, "10.0.0.1:iqn.2001-04.com.example:storage:3",
			"iface-10.0.0.1:3260:pv/10.0.0.1:3260-iqn.2001-04.com.example:storage-lun-3"},
	} {
		t.Run(name, func(t *testing.T) {
			s := b.pv("pv", func(pv *v1.PersistentVolume) {
				pv.Spec.ISCSI = &v1.ISCSIPersistentVolumeSource{TargetPortal: "10.0.0.1", IQN: "iqn.2001-04.com.example:storage", Lun: 3}
				tc.change(pv.Spec.ISCSI)
			})
			got, err := b.plugin.GetVolumeName(s)
			if got != tc.volume || err != nil {
				t.Errorf("the name is %q, %v", got, err)
			}
			if want := filepath.Join(b.host.RootDir, "plugins/kubernetes.io/iscsi", tc.path); b.devicePath(s) != want {
				t.Errorf("the path is %q, want %q", b.devicePath(s), want)
			}
		})
	}
}

func TestHostileManifests(t *testing.T) {
	long := strings.Repeat("x", 4096)
	for name, change := range map[string]func(*v1.ISCSIPersistentVolumeSource){
		"no portal":            func(s *v1.ISCSIPersistentVolumeSource) { s.TargetPortal = "" },
		"portal with newline":  func(s *v1.ISCSIPersistentVolumeSource) { s.TargetPortal = "10.0.0.1\nx" },
		"portal as option":     func(s *v1.ISCSIPersistentVolumeSource) { s.TargetPortal = "--help" },
		"portal with a path":   func(s *v1.ISCSIPersistentVolumeSource) { s.TargetPortal = "../../etc" },
		"long portal":          func(s *v1.ISCSIPersistentVolumeSource) { s.TargetPortal = long },
		"no port":              func(s *v1.ISCSIPersistentVolumeSource) { s.TargetPortal = "10.0.0.1:" },
		"large port":           func(s *v1.ISCSIPersistentVolumeSource) { s.TargetPortal = "10.0.0.1:65536" },
		"zone":                 func(s *v1.ISCSIPersistentVolumeSource) { s.TargetPortal = "[fe80::1%a/b]:3260" },
		"second portal":        func(s *v1.ISCSIPersistentVolumeSource) { s.Portals = []string{"10.0.0.2", "a b"} },
		"many portals":         func(s *v1.ISCSIPersistentVolumeSource) { s.Portals = make([]string, 1000) },
		"target with ..":       func(s *v1.ISCSIPersistentVolumeSource) { s.IQN = "iqn.2001-04.com.example:a..b" },
		"target with slash":    func(s *v1.ISCSIPersistentVolumeSource) { s.IQN = "iqn.2001-04.com.example:a/b" },
		"target with newline":  func(s *v1.ISCSIPersistentVolumeSource) { s.IQN = "iqn.2001-04.com.example:a\n" },
		"no iSCSI name":        func(s *v1.ISCSIPersistentVolumeSource) { s.IQN = "-T" },
		"long target":          func(s *v1.ISCSIPersistentVolumeSource) { s.IQN = "iqn.2001-04.com.example:" + long },
		"negative LUN":         func(s *v1.ISCSIPersistentVolumeSource) { s.Lun = -1 },
		"large LUN":            func(s *v1.ISCSIPersistentVolumeSource) { s.Lun = 16384 },
		"interface with ..":    func(s *v1.ISCSIPersistentVolumeSource) { s.ISCSIInterface = "../x" },
		"interface ..":         func(s *v1.ISCSIPersistentVolumeSource) { s.ISCSIInterface = ".." },
		"long interface":       func(s *v1.ISCSIPersistentVolumeSource) { s.ISCSIInterface = long },
		"initiator":            func(s *v1.ISCSIPersistentVolumeSource) { s.InitiatorName = new("iqn.2001-04.com.example:a\nb") },
		"portal with a target": func(s *v1.ISCSIPersistentVolumeSource) { s.TargetPortal = "a-iqn.2001-04.com:3260" },
		"no secret":            func(s *v1.ISCSIPersistentVolumeSource) { s.SessionCHAPAuth = true },
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			s := b.pv("pv", func(pv *v1.PersistentVolume) { change(pv.Spec.ISCSI) })
			m, err := b.plugin.NewDeviceMounter()
			b.must(err)
			err = m.MountDevice(t.Context(), s, "", filepath.Join(b.host.RootDir, "plugins/x"), volume.DeviceMounterArgs{})
			invalid, ok := errors.AsType[*volume.InvalidSpecError](err)
			if !ok || volume.IsUncertain(err) || !strings.HasPrefix(invalid.Field, "iscsi.") || len(err.Error()) > 1000 {
				t.Errorf("MountDevice = %v", err)
			}
			if _, err := m.GetDeviceMountPath(s); err == nil {
				t.Error("there is a path for it")
			}
			if len(b.nodes.logins) > 0 {
				t.Error("there was a login")
			}
			b.host.AssertClean(t)
		})
	}
}

// mountBeside mounts a volume, of which the record would be hidden, up to the mount itself.
func (b *bench) mountBeside(s *volume.Spec) error {
	b.plugin.binder.nothing = true
	return b.mount(s)
}

func TestSecretsAreReadAtEachLogin(t *testing.T) {
	b := newBench(t)
	s := b.pv("pv", func(pv *v1.PersistentVolume) {
		pv.Spec.ISCSI.SessionCHAPAuth, pv.Spec.ISCSI.SecretRef = true, &v1.SecretReference{Namespace: "ns", Name: "chap"}
	})
	secret := func(password string) *v1.Secret {
		return &v1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "chap"}, Data: map[string][]byte{
			"node.session.auth.username": []byte("node"), "node.session.auth.password": []byte(password), "other": []byte("x\ny")}}
	}
	for _, password := range []string{"first password", "second password"} {
		b.host.Add(secret(password))
		b.must(b.mount(s), b.unmount(s))
		if got := b.nodes.logins[len(b.nodes.logins)-1]; got.Password != password || got.Username != "node" {
			t.Errorf("logged in with %+v", got)
		}
	}
	for _, bad := range []string{"", " x", "line\nline", strings.Repeat("x", 256)} {
		b.host.Add(secret(bad))
		err := b.mount(s)
		if _, ok := errors.AsType[*volume.InvalidSpecError](err); !ok || bad != "" && strings.Contains(err.Error(), bad) {
			t.Errorf("password %.20q: %v", bad, err)
		}
	}
	b.host.AssertClean(t)
}

// An inline volume's secret is in its pod's namespace, so that the pod's own set-up logs in.
func TestSecretOfAPod(t *testing.T) {
	b := newBench(t)
	b.host.Add(&v1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "chap"}, Data: map[string][]byte{
		"node.session.auth.username": []byte("node"), "node.session.auth.password": []byte("password")}})
	v := v1.Volume{Name: "vol", VolumeSource: v1.VolumeSource{ISCSI: &v1.ISCSIVolumeSource{TargetPortal: "192.0.2.1", IQN: iqnOf(b.disk), SessionCHAPAuth: true,
		SecretRef: &v1.LocalObjectReference{Name: "chap"}}}}
	s := volume.NewSpecFromVolume(&v)
	b.must(b.mount(s))
	if len(b.nodes.logins) > 0 {
		t.Error("there was a login without a pod")
	}
	m, err := b.plugin.NewMounter(s, fakehost.Pod("a", v))
	b.must(err)
	b.must(m.SetUp(t.Context(), volume.MounterArgs{}), m.SetUp(t.Context(), volume.MounterArgs{}))
	if len(b.nodes.logins) != 1 || b.nodes.logins[0].Password != "password" {
		t.Errorf("logins: %v", b.nodes.logins)
	}
	if err := b.unmount(s); !errors.Is(err, volume.ErrInUse) {
		t.Errorf("UnmountDevice below a pod = %v", err)
	}
	u, err := b.plugin.NewUnmounter("vol", fakehost.Pod("a").UID)
	b.must(err)
	b.must(u.TearDown(t.Context()), b.unmount(s))
	if open := b.nodes.open(); len(open) > 0 {
		t.Errorf("sessions are left: %v", open)
	}
}

// Two volumes of one disk, and a third that has it as a device, keep it until the last goes.
func TestOneDiskOfSeveralVolumes(t *testing.T) {
	b := newBench(t)
	first := b.pv("first")
	second := b.pv("second", func(pv *v1.PersistentVolume) { pv.Spec.ISCSI.InitiatorName = new("iqn.2026-01.com.example:node") })
	block := b.pv("block", func(pv *v1.PersistentVolume) { pv.Spec.VolumeMode = new(v1.PersistentVolumeBlock) })
	mapper, err := b.plugin.NewBlockVolumeMapper(block, fakehost.Pod("a"))
	b.must(err)
	global, err := mapper.GetGlobalMapPath(block)
	b.must(err)
	_, err = mapper.SetUpDevice(t.Context())
	b.must(err, b.mount(first), b.mount(second), b.unmount(first), b.unmount(second))
	if len(b.nodes.open()) != 1 {
		t.Error("the disk of the block volume is gone")
	}
	spec, err := b.plugin.ConstructBlockVolumeSpec(t.Context(), fakehost.Pod("a").UID, "block", "")
	if err != nil || !spec.IsBlock() {
		t.Errorf("%+v, %v", spec, err)
	}
	unmapper, err := b.plugin.NewBlockVolumeUnmapper("block", fakehost.Pod("a").UID)
	b.must(err)
	b.must(unmapper.TearDownDevice(t.Context(), global, ""))
	if open := b.nodes.open(); len(open) > 0 {
		t.Errorf("sessions are left: %v", open)
	}
	b.host.AssertClean(t)
}

// What was staged is not another disk by the same name.
func TestAnotherDiskIsRefused(t *testing.T) {
	for name, change := range map[string]func(*targets){
		"another disk":   func(n *targets) { n.id = "naa.6002" },
		"a smaller disk": func(n *targets) { n.size = 1 << 30 },
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			s := b.pv("pv", func(pv *v1.PersistentVolume) { pv.Spec.VolumeMode = new(v1.PersistentVolumeBlock) })
			mapper, err := b.plugin.NewBlockVolumeMapper(s, fakehost.Pod("a"))
			b.must(err)
			_, err = mapper.SetUpDevice(t.Context())
			b.must(err)
			change(b.nodes)
			if path, err := mapper.MapPodDevice(t.Context()); !errors.Is(err, iscsi.ErrAnotherDisk) || path != "" {
				t.Errorf("MapPodDevice = %q, %v", path, err)
			}
			for range 2 { // trying again does not forget the first one
				if _, err := mapper.SetUpDevice(t.Context()); !errors.Is(err, iscsi.ErrAnotherDisk) || !volume.IsUncertain(err) {
					t.Errorf("SetUpDevice = %v", err)
				}
			}
		})
	}
}

func TestFailuresLeaveNothing(t *testing.T) {
	refused := errors.New("refused")
	for name, fail := range map[string]func(*bench){
		"login":  func(b *bench) { b.nodes.refuse = refused },
		"format": func(b *bench) { b.plugin.binder.fail = &format.Error{Err: refused} },
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			fail(b)
			if err := b.mount(b.pv("pv")); !errors.Is(err, refused) || volume.IsUncertain(err) {
				t.Errorf("MountDevice = %v", err)
			}
			if open := b.nodes.open(); len(open) > 0 {
				t.Errorf("sessions are left: %v", open)
			}
			b.host.AssertClean(t)
		})
	}
	b := newBench(t)
	b.plugin.binder.fail = &format.Error{Err: refused, Uncertain: true}
	if err := b.mount(b.pv("pv")); !volume.IsUncertain(err) {
		t.Errorf("a mkfs that goes on is certain: %v", err)
	}
}

func TestReadOnly(t *testing.T) {
	b := newBench(t)
	v := v1.Volume{Name: "vol", VolumeSource: v1.VolumeSource{ISCSI: &v1.ISCSIVolumeSource{TargetPortal: "192.0.2.1", IQN: iqnOf(b.disk), ReadOnly: true}}}
	reader := volume.NewSpecFromVolume(&v)
	b.must(b.mount(reader))
	all := b.host.Mounts(t)
	if i := slices.IndexFunc(all, func(e mount.Entry) bool { return e.Target == b.devicePath(reader) }); i < 0 || !all[i].ReadOnly() {
		t.Errorf("the device is not mounted read-only: %+v", all)
	}
	writes := v.DeepCopy()
	writes.ISCSI.ReadOnly = false
	m, err := b.plugin.NewMounter(volume.NewSpecFromVolume(writes), fakehost.Pod("a", *writes))
	b.must(err)
	if err := m.SetUp(t.Context(), volume.MounterArgs{}); !errors.Is(err, volume.ErrInUse) {
		t.Errorf("a writer beside a reader: %v", err)
	}
	b.must(b.unmount(reader))
}

func TestNodeExpand(t *testing.T) {
	b := newBench(t)
	s := b.pv("pv")
	b.must(b.mount(s))
	at := volume.NodeResizeOptions{VolumeSpec: s, DeviceMountPath: b.devicePath(s), NewSize: resource.MustParse("1Ti")}
	if done, err := b.plugin.NodeExpand(t.Context(), at); !done || err != nil {
		t.Errorf("NodeExpand = %v, %v", done, err)
	}
	at.NewSize = resource.MustParse("2Ti")
	if done, err := b.plugin.NodeExpand(t.Context(), at); done || err == nil || volume.IsUncertain(err) || errors.Is(err, volume.ErrResizeInfeasible) {
		t.Errorf("NodeExpand beyond the disk = %v, %v", done, err)
	}
	b.must(b.unmount(s))
}

// A block volume has no file system that would be another one.
func TestNodeExpandOfAnotherDisk(t *testing.T) {
	b := newBench(t)
	s := b.pv("pv", asDevice)
	unmap, err := b.setUpDevice(s)
	b.must(err)
	at := volume.NodeResizeOptions{VolumeSpec: s, NewSize: resource.MustParse("1Ti")}
	b.nodes.id = "naa.6002"
	if done, err := b.plugin.NodeExpand(t.Context(), at); done || !errors.Is(err, iscsi.ErrAnotherDisk) || volume.IsUncertain(err) {
		t.Errorf("NodeExpand = %v, %v", done, err)
	}
	b.nodes.id = ""
	if done, err := b.plugin.NodeExpand(t.Context(), at); !done || err != nil {
		t.Errorf("NodeExpand = %v, %v", done, err)
	}
	b.must(unmap())
}

// In a cluster a volume waits for the attach/detach controller; detaching waits for the node.
func TestAttaching(t *testing.T) {
	b := newBench(t)
	s := b.pv("pv")
	if attaches, err := b.plugin.CanAttach(t.Context(), s); attaches || err != nil {
		t.Errorf("without a cluster: %v, %v", attaches, err)
	}
	b.must(b.mount(s))
	if err := b.plugin.DetachSpec(t.Context(), s, b.host.GetNodeName()); !errors.Is(err, volume.ErrInUse) {
		t.Errorf("DetachSpec of what is mounted = %v", err)
	}
	b.must(b.plugin.DetachSpec(t.Context(), s, "another node"), b.unmount(s), b.plugin.DetachSpec(t.Context(), s, b.host.GetNodeName()))
	// A device that no pod has, yet, and a disk that is about to be mounted.
	device := b.pv("device", asDevice)
	unmap, err := b.setUpDevice(device)
	b.must(err)
	for _, of := range []*volume.Spec{device, s} {
		if err := b.plugin.DetachSpec(t.Context(), of, b.host.GetNodeName()); !errors.Is(err, volume.ErrInUse) {
			t.Errorf("DetachSpec of a staged device = %v", err)
		}
	}
	b.must(unmap(), b.plugin.DetachSpec(t.Context(), device, b.host.GetNodeName()), b.mountBeside(s))
	if err := b.plugin.DetachSpec(t.Context(), s, b.host.GetNodeName()); !errors.Is(err, volume.ErrInUse) {
		t.Errorf("DetachSpec of a disk that is logged in to = %v", err)
	}
	b.must(b.unmount(s), b.plugin.DetachSpec(t.Context(), s, b.host.GetNodeName()))
}

// One disk by two paths would be mounted twice, each with its own cache.
func TestADiskInUseByAnotherPathIsRefused(t *testing.T) {
	b := newBench(t)
	b.nodes.used = "/dev/sdz"
	if err := b.mount(b.pv("pv")); !errors.Is(err, volume.ErrInUse) || volume.IsUncertain(err) {
		t.Errorf("MountDevice = %v", err)
	}
	if open := b.nodes.open(); len(open) > 0 {
		t.Errorf("sessions are left: %v", open)
	}
	b.host.AssertClean(t)
}
