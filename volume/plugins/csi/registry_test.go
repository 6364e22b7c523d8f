package csi_test

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/fakehost"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/plugins/csi"
	"github.com/podvol/podvol/volume/volumemanager"
	"github.com/podvol/podvol/volume/volumetest/csitest"
)

// lines is a log that a test can wait for.
type lines chan string

func (l lines) Enabled(context.Context, slog.Level) bool { return true }
func (l lines) WithAttrs([]slog.Attr) slog.Handler       { return l }
func (l lines) WithGroup(string) slog.Handler            { return l }
func (l lines) Handle(_ context.Context, r slog.Record) error {
	text := r.Message
	r.Attrs(func(a slog.Attr) bool { text += " " + a.String(); return true })
	l <- text
	return nil
}

// await returns the first line with these words.
func (l lines) await(t *testing.T, words string) string {
	t.Helper()
	for {
		select {
		case line := <-l:
			if strings.Contains(line, words) {
				return line
			}
		case <-time.After(time.Minute):
			t.Fatalf("the log never says %q", words)
		}
	}
}

// registry is a running plugin without fixed drivers.
type registry struct {
	*bench
	log   lines
	dir   string
	woken chan string
}

func newRegistry(t *testing.T, fixed map[string]string) *registry {
	t.Helper()
	dir := csitest.SocketDir(t)
	if fixed == nil {
		fixed = map[string]string{}
	}
	r := &registry{log: make(lines, 100), dir: filepath.Join(dir, "plugins_registry"), woken: make(chan string, 100)}
	if err := os.Mkdir(r.dir, 0o750); err != nil {
		t.Fatal(err)
	}
	r.bench = newBenchOn(t, fakehost.New(t), everything(), csi.Config{RegistryDir: r.dir, Drivers: fixed, Logger: slog.New(r.log)})
	return r
}

// run has the plugin run until the test is over, when nothing of it may be left.
func (r *registry) run() {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.plugin.Run(ctx, func(source string) { r.woken <- source }) }()
	r.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			r.t.Error(err)
		}
	})
}

func (r *registry) registrar(name string, g *csitest.Registrar) *csitest.Registrar {
	r.t.Helper()
	if g.Name == "" {
		g.Name = driverName
	}
	if err := g.Start(filepath.Join(r.dir, name)); err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(g.Kill)
	return g
}

func TestDriverThatRegistersItself(t *testing.T) {
	r := newRegistry(t, nil)
	s := pvSpec()
	if err := r.setUp(s, pod("u1"), volume.MounterArgs{}); !errors.Is(err, csi.ErrNotRegistered) || volume.IsUncertain(err) {
		t.Errorf("before: %v", err)
	}
	g := r.registrar("a-reg.sock", &csitest.Registrar{Endpoint: r.socket}) // before the plugin runs
	r.run()
	if name := <-r.woken; name != driverName {
		t.Errorf("woken for %q", name)
	}
	<-g.Told()
	if statuses := g.Statuses(); len(statuses) != 1 || statuses[0] != "registered" {
		t.Errorf("statuses %q", statuses)
	}
	r.must(r.setUp(s, pod("u1"), volume.MounterArgs{}), r.tearDown(s, "u1"))
	r.must(g.Stop())
	r.log.await(t, "no longer registered")
	if drivers := r.plugin.Drivers(); len(drivers) > 0 {
		t.Errorf("drivers %v", drivers)
	}
	// Again, in a directory of its own, made while the plugin runs.
	r.must(os.Mkdir(filepath.Join(r.dir, "sub"), 0o750))
	r.registrar("sub/b-reg.sock", &csitest.Registrar{Endpoint: r.socket})
	<-r.woken
	r.must(r.setUp(s, pod("u1"), volume.MounterArgs{}), r.tearDown(s, "u1"))
}

// A directory that somebody removes while the plugin runs, as with an older installation, is
// made again: drivers that come later find it. So it is where the plugin has looked between
// the end of the sockets and that of the directory.
func TestRemovedRegistry(t *testing.T) {
	for _, slowly := range []bool{false, true} {
		r := newRegistry(t, nil)
		r.registrar("a-reg.sock", &csitest.Registrar{Endpoint: r.socket})
		r.run()
		r.log.await(t, "is registered")
		if slowly {
			r.must(os.Remove(filepath.Join(r.dir, "a-reg.sock")))
			r.log.await(t, "no longer registered")
			r.must(os.Remove(r.dir))
		} else {
			r.must(os.RemoveAll(r.dir))
			r.log.await(t, "no longer registered")
		}
		if err := os.Mkdir(r.dir, 0o750); err != nil && !errors.Is(err, fs.ErrExist) {
			t.Fatal(err)
		}
		r.registrar("b-reg.sock", &csitest.Registrar{Endpoint: r.socket})
		r.log.await(t, "is registered")
	}
}

// During a rolling update the newest counts, and the end of the old one changes nothing.
func TestTwoRegistrationsOfOneName(t *testing.T) {
	r := newRegistry(t, nil)
	r.run()
	first := r.registrar("a", &csitest.Registrar{Endpoint: "/old.sock"})
	<-r.woken
	second := r.registrar("b", &csitest.Registrar{Endpoint: r.socket})
	<-r.woken
	want := func(socket string) {
		t.Helper()
		if d := r.plugin.Drivers(); len(d) != 1 || d[0].Socket != socket {
			t.Errorf("drivers %+v, want one at %s", d, socket)
		}
	}
	want(r.socket)
	r.must(first.Stop())
	r.log.await(t, "no longer registered")
	want(r.socket)
	third := r.registrar("c", &csitest.Registrar{Endpoint: "/new.sock"})
	<-r.woken
	want("/new.sock")
	r.must(third.Stop())
	r.log.await(t, "no longer registered")
	want(r.socket)
	r.must(second.Stop())
	r.log.await(t, "no longer registered")
	if d := r.plugin.Drivers(); len(d) > 0 {
		t.Errorf("drivers %+v", d)
	}
}

func TestRefusedRegistrations(t *testing.T) {
	r := newRegistry(t, map[string]string{"fixed.io": "/fixed.sock"})
	r.run()
	open := filepath.Join(filepath.Dir(r.dir), "open.sock")
	listener, err := net.Listen("unix", open)
	r.must(err, os.Chmod(open, 0o777))
	t.Cleanup(func() { listener.Close() })
	for name, tc := range map[string]struct {
		registrar *csitest.Registrar
		why       string
	}{
		"device":   {&csitest.Registrar{Type: "DevicePlugin"}, "DevicePlugin"},
		"name":     {&csitest.Registrar{Name: "../x"}, "no name of a driver"},
		"version0": {&csitest.Registrar{Versions: []string{"0.3.0", "2.0"}}, "none is 1.x"},
		"versions": {&csitest.Registrar{Versions: []string{}}, "none is 1.x"},
		"fixed":    {&csitest.Registrar{Name: "fixed.io"}, "is configured"},
		"relative": {&csitest.Registrar{Endpoint: "a/b"}, "no absolute path"},
		"open":     {&csitest.Registrar{Endpoint: open}, "used by everybody"},
	} {
		t.Run(name, func(t *testing.T) {
			g := r.registrar(name, tc.registrar)
			<-g.Told()
			if statuses := g.Statuses(); !strings.Contains(statuses[0], tc.why) {
				t.Errorf("statuses %q, want %q", statuses, tc.why)
			}
			if err := g.Stop(); err != nil {
				t.Error(err)
			}
		})
	}
	if d := r.plugin.Drivers(); len(d) != 1 || d[0].Socket != "/fixed.sock" {
		t.Errorf("drivers %+v", d)
	}
}

// A socket of before a reboot holds nothing up: the next one at its path counts at once.
func TestStaleSocket(t *testing.T) {
	r := newRegistry(t, nil)
	g := r.registrar("a", &csitest.Registrar{Endpoint: r.socket})
	g.Kill() // its socket stays
	r.must(os.Symlink(filepath.Join(r.dir, "a"), filepath.Join(r.dir, "link")), os.WriteFile(filepath.Join(r.dir, "file"), nil, 0o600))
	r.run()
	if line := r.log.await(t, "is not registered"); !strings.Contains(line, "/a") {
		t.Errorf("the log says %q", line)
	}
	r.must(g.Start(filepath.Join(r.dir, "a")))
	<-r.woken
	r.registrar(".hidden", &csitest.Registrar{Name: "hidden.io"})
	r.registrar("b", &csitest.Registrar{Name: "b.io"})
	for name := range r.woken {
		if name == "b.io" {
			break
		}
		if name != driverName {
			t.Errorf("%s is registered", name)
		}
	}
	if d := r.plugin.Drivers(); len(d) != 2 {
		t.Errorf("drivers %+v", d)
	}
}

// Sockets that others could have made are not asked.
func TestSocketsOfOthers(t *testing.T) {
	r := newRegistry(t, nil)
	r.registrar("a", &csitest.Registrar{Endpoint: r.socket})
	r.must(os.Chmod(filepath.Join(r.dir, "a"), 0o777))
	r.registrar("b", &csitest.Registrar{Endpoint: r.socket})
	r.must(os.Link(filepath.Join(r.dir, "b"), filepath.Join(filepath.Dir(r.dir), "second")))
	r.run()
	for range 2 {
		if line := r.log.await(t, "is not registered"); !strings.Contains(line, "everybody") && !strings.Contains(line, "2 names") {
			t.Errorf("the log says %q", line)
		}
	}
	if _, err := csi.New(csi.Config{RegistryDir: "relative"}); err == nil {
		t.Error("a relative directory is configured")
	}
}

// patient is the plugin whose failed staging is tried again in an hour.
type patient struct{ *csi.Plugin }

func (p patient) NewDeviceMounter() (volume.DeviceMounter, error) {
	m, err := p.Plugin.NewDeviceMounter()
	return patientMounter{m}, err
}

type patientMounter struct{ volume.DeviceMounter }

func (m patientMounter) MountDevice(ctx context.Context, s *volume.Spec, devicePath, path string, args volume.DeviceMounterArgs) error {
	if err := m.DeviceMounter.MountDevice(ctx, s, devicePath, path, args); err != nil {
		return inAnHour{err}
	}
	return nil
}

type inAnHour struct{ error }

func (e inAnHour) Unwrap() error    { return e.error }
func (inAnHour) RetryAt() time.Time { return time.Now().Add(time.Hour) }

// The manager runs the plugin: a pod that waits for a driver is set up once the driver has
// registered itself, by that and by nothing else: its own next attempt is an hour away.
func TestManagerWakesVolumesOfANewDriver(t *testing.T) {
	r := newRegistry(t, nil)
	store := objects.NewStore()
	pv := pvSpec().PersistentVolume
	pv.UID, pv.Status.Phase = "pv-uid", v1.VolumeBound
	pv.Spec.ClaimRef = &v1.ObjectReference{Namespace: "shop", Name: "data", UID: "claim-uid"}
	claim := &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "data", UID: "claim-uid"}}
	claim.Spec.VolumeName, claim.Status.Phase = "pv1", v1.ClaimBound
	r.must(store.Load(t.Context(), 0, pv, claim))
	p, err := csi.New(csi.Config{RegistryDir: r.dir})
	r.must(err)
	manager, err := volumemanager.New(volumemanager.Config{RootDir: r.host.RootDir, NodeName: "node1", Objects: store, Plugins: []volume.VolumePlugin{patient{p}}, Mounter: r.host.Fake})
	r.must(err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- manager.Run(ctx) }()
	web := pod("u1")
	web.Spec.Containers = []v1.Container{{Name: "c", VolumeMounts: []v1.VolumeMount{{Name: "data", MountPath: "/data"}}}}
	web.Spec.Volumes = []v1.Volume{{Name: "data", VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}}}
	if _, err := manager.SetUpPod(ctx, web); !errors.Is(err, csi.ErrNotRegistered) {
		t.Errorf("before: %v", err)
	}
	states := make(chan volumemanager.VolumeState, 100)
	stop := manager.Subscribe(func(s volumemanager.VolumeStatus) { states <- s.State })
	r.registrar("a", &csitest.Registrar{Endpoint: r.socket})
	for <-states != volumemanager.StateMounted {
	}
	stop()
	r.must(manager.TearDownPod(ctx, "u1"))
	cancel()
	r.must(<-done, p.Close())
	r.wantNothing()
}
