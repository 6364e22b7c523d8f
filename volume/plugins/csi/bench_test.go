package csi_test

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/fakehost"
	"github.com/podvol/podvol/volume/plugins/csi"
	"github.com/podvol/podvol/volume/volumetest/csitest"
)

const driverName = csitest.DefaultName

// bench is a node with the plugin and a driver.
type bench struct {
	t      *testing.T
	host   *fakehost.Host
	driver *csitest.Driver
	plugin *csi.Plugin
	socket string
	config csi.Config
	// objects are CSIDriver objects and VolumeAttachments by their names; an error is what
	// a look-up gives.
	drivers     map[string]any
	attachments map[string]any
}

func newBench(t *testing.T, dc csitest.Config, c csi.Config) *bench {
	t.Helper()
	return newBenchOn(t, fakehost.New(t), dc, c)
}

func newBenchOn(t *testing.T, host *fakehost.Host, dc csitest.Config, c csi.Config) *bench {
	t.Helper()
	b := &bench{t: t, host: host, config: c, drivers: map[string]any{}, attachments: map[string]any{}}
	dc.Dir, dc.Mounter, dc.CreateOnUse = t.TempDir(), host.GetMounter(), true
	b.driver = csitest.New(dc)
	t.Cleanup(func() {
		if err := b.driver.Close(); err != nil {
			t.Error(err)
		}
		if broken := b.driver.Violations(); len(broken) > 0 {
			t.Errorf("rules of the specification were broken: %q", broken)
		}
	})
	b.start()
	b.restart()
	return b
}

// start starts the driver on a new socket.
func (b *bench) start() {
	b.t.Helper()
	b.socket = filepath.Join(csitest.SocketDir(b.t), "csi.sock")
	b.again()
}

// again starts the driver on its socket, once the plugin has noticed the end of the last.
func (b *bench) again() {
	b.t.Helper()
	if b.plugin != nil {
		b.must(b.plugin.AwaitEnd(b.t.Context(), driverName))
	}
	if err := b.driver.Start(b.socket); err != nil {
		b.t.Fatal(err)
	}
}

// kill kills the driver, and waits until the plugin has noticed.
func (b *bench) kill() {
	b.t.Helper()
	b.driver.Kill()
	b.must(b.plugin.AwaitEnd(b.t.Context(), driverName))
}

// restart makes a new plugin, as a new process does.
func (b *bench) restart() {
	b.t.Helper()
	c := b.config
	if c.Drivers == nil {
		c.Drivers = map[string]string{driverName: b.socket}
	}
	p, err := csi.New(c)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { p.Close() })
	if err := p.Init(b.host); err != nil {
		b.t.Fatal(err)
	}
	b.plugin = p
}

// object gives the driver an object. Roles are given with the first.
func (b *bench) object(spec storagev1.CSIDriverSpec) {
	d := &storagev1.CSIDriver{Spec: spec}
	d.Name = driverName
	b.drivers[driverName] = d
	b.host.CSIDrivers = lookUp{b.drivers, b.attachments}
}

// lookUp is the roles of the plugin's objects.
type lookUp struct{ drivers, attachments map[string]any }

func found[T any](in map[string]any, name string) (*T, error) {
	switch o := in[name].(type) {
	case *T:
		return o, nil
	case error:
		return nil, o
	}
	return nil, volume.ErrNotFound
}

func (l lookUp) GetCSIDriver(_ context.Context, name string) (*storagev1.CSIDriver, error) {
	return found[storagev1.CSIDriver](l.drivers, name)
}

func (l lookUp) GetVolumeAttachment(_ context.Context, name string) (*storagev1.VolumeAttachment, error) {
	return found[storagev1.VolumeAttachment](l.attachments, name)
}

// pvSpec is a PersistentVolume with handle h1.
func pvSpec(change ...func(*v1.PersistentVolume)) *volume.Spec {
	pv := &v1.PersistentVolume{}
	pv.Name = "pv1"
	pv.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}
	pv.Spec.CSI = &v1.CSIPersistentVolumeSource{Driver: driverName, VolumeHandle: "h1"}
	for _, c := range change {
		c(pv)
	}
	return volume.NewSpecFromPersistentVolume(pv, false)
}

func inlineSpec() *volume.Spec {
	return volume.NewSpecFromVolume(&v1.Volume{Name: "scratch", VolumeSource: v1.VolumeSource{CSI: &v1.CSIVolumeSource{Driver: driverName}}})
}

func pod(uid types.UID) *v1.Pod {
	p := &v1.Pod{}
	p.Name, p.Namespace, p.UID = "web", "shop", uid
	p.Spec.ServiceAccountName = "seller"
	return p
}

func (b *bench) devicePath(s *volume.Spec) string {
	b.t.Helper()
	m, err := b.plugin.NewDeviceMounter()
	if err != nil {
		b.t.Fatal(err)
	}
	path, err := m.GetDeviceMountPath(s)
	if err != nil {
		b.t.Fatal(err)
	}
	return path
}

func (b *bench) mountDevice(s *volume.Spec, args volume.DeviceMounterArgs) error {
	b.t.Helper()
	m, err := b.plugin.NewDeviceMounter()
	if err != nil {
		b.t.Fatal(err)
	}
	return m.MountDevice(b.t.Context(), s, "", b.devicePath(s), args)
}

func (b *bench) unmountDevice(s *volume.Spec) error {
	b.t.Helper()
	u, err := b.plugin.NewDeviceUnmounter()
	if err != nil {
		b.t.Fatal(err)
	}
	return u.UnmountDevice(b.t.Context(), b.devicePath(s))
}

func (b *bench) mounter(s *volume.Spec, p *v1.Pod) volume.Mounter {
	b.t.Helper()
	m, err := b.plugin.NewMounter(s, p)
	if err != nil {
		b.t.Fatal(err)
	}
	return m
}

// setUp does what a node does: it stages and publishes.
func (b *bench) setUp(s *volume.Spec, p *v1.Pod, args volume.MounterArgs) error {
	b.t.Helper()
	if stages, err := b.plugin.CanDeviceMount(s); err != nil {
		b.t.Fatal(err)
	} else if stages {
		if err := b.mountDevice(s, volume.DeviceMounterArgs{FsGroup: args.FsGroup, SELinuxLabel: args.SELinuxLabel}); err != nil {
			return err
		}
	}
	return b.mounter(s, p).SetUp(b.t.Context(), args)
}

func (b *bench) tearDown(s *volume.Spec, uid types.UID) error {
	b.t.Helper()
	u, err := b.plugin.NewUnmounter(s.Name(), uid)
	if err != nil {
		b.t.Fatal(err)
	}
	if err := u.TearDown(b.t.Context()); err != nil {
		return err
	}
	if stages, err := b.plugin.CanDeviceMount(s); err != nil || !stages {
		return err
	}
	return b.unmountDevice(s)
}

func (b *bench) must(errs ...error) {
	b.t.Helper()
	for i, err := range errs {
		if err != nil {
			b.t.Fatalf("step %d: %v", i, err)
		}
	}
}

// wantNothing is what there must be after the last teardown.
func (b *bench) wantNothing() {
	b.t.Helper()
	b.host.AssertNothingMounted(b.t)
	if staged, published := b.driver.Staged(), b.driver.Published(); len(staged)+len(published) > 0 {
		b.t.Errorf("the driver has staged %v, published %v", staged, published)
	}
	err := filepath.WalkDir(b.host.RootDir, func(path string, e fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err == nil && path == filepath.Join(b.host.RootDir, "podvol") { // the manager's
			return filepath.SkipDir
		}
		if err == nil && (!e.IsDir() || e.Name() == "globalmount" || e.Name() == "mount" || e.Name() == "pv1") {
			b.t.Errorf("%s is left", path)
		}
		return err
	})
	if err != nil {
		b.t.Error(err)
	}
}

// methods are the calls of the Node service that change something or depend on the volume.
func (b *bench) methods() (names []string) {
	for _, c := range b.driver.Calls() {
		if strings.HasPrefix(c.Method, "Node") && c.Method != "NodeGetCapabilities" {
			names = append(names, c.Method)
		}
	}
	return names
}

func (b *bench) wantMethods(want ...string) {
	b.t.Helper()
	if got := b.methods(); !slices.Equal(got, want) {
		b.t.Errorf("calls %v, want %v", got, want)
	}
}

func lastRequest[R any](b *bench, method string) R {
	b.t.Helper()
	calls := b.driver.CallsOf(method)
	if len(calls) == 0 {
		b.t.Fatalf("no call of %s", method)
	}
	r, ok := calls[len(calls)-1].Request.(R)
	if !ok {
		b.t.Fatalf("%s is %T", method, calls[len(calls)-1].Request)
	}
	return r
}

func everything() csitest.Config {
	return csitest.Config{Capabilities: csitest.AllCapabilities()}
}

func wantUncertain(t *testing.T, err error, want bool) {
	t.Helper()
	if err == nil || volume.IsUncertain(err) != want {
		t.Errorf("%v: uncertain %v, want %v", err, volume.IsUncertain(err), want)
	}
}
