package csi_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/plugins/csi"
	"github.com/podvol/podvol/volume/volumetest/csitest"
)

func isDoubtful(code codes.Code) bool {
	switch code {
	case codes.Canceled, codes.DeadlineExceeded, codes.Unavailable, codes.ResourceExhausted, codes.Aborted:
		return true
	}
	return false
}

// The table of codes: in doubt everything stays for the teardown, else nothing is left.
func TestEveryCode(t *testing.T) {
	for code := codes.Canceled; code <= codes.Unauthenticated; code++ {
		for _, method := range []string{"NodeStageVolume", "NodePublishVolume"} {
			t.Run(method+"/"+code.String(), func(t *testing.T) {
				b := newBench(t, everything(), csi.Config{})
				s := pvSpec()
				remove := b.driver.Inject(csitest.Fault{Match: csitest.Method(method), Err: status.Error(code, "injected")})
				err := b.setUp(s, pod("u1"), volume.MounterArgs{})
				remove()
				if status.Code(err) != code || !strings.Contains(err.Error(), "injected") {
					t.Errorf("%v", err)
				}
				wantUncertain(t, err, isDoubtful(code))
				place := b.devicePath(s)
				if method == "NodePublishVolume" {
					place = b.mounter(s, pod("u1")).GetPath()
				}
				_, statErr := os.Lstat(filepath.Join(filepath.Dir(place), "vol_data.json"))
				if (statErr == nil) != isDoubtful(code) {
					t.Errorf("vol_data.json: %v", statErr)
				}
				b.driver.ResetCalls()
				b.must(b.tearDown(s, "u1"))
				want := []string{}
				if isDoubtful(code) && method == "NodePublishVolume" {
					want = append(want, "NodeUnpublishVolume")
				}
				if isDoubtful(code) || method == "NodePublishVolume" {
					want = append(want, "NodeUnstageVolume")
				}
				b.wantMethods(want...)
				b.wantNothing()
			})
		}
	}
}

// What an earlier call may have left is undone, whatever a later one answers.
func TestDoubtStays(t *testing.T) {
	for name, second := range map[string]func(*bench){
		"refused": func(b *bench) {
			b.driver.Inject(csitest.Fault{Match: csitest.Method("NodeStageVolume"), Nth: 1, Err: status.Error(codes.Internal, "no")})
		},
		"not sent": func(b *bench) { b.kill() },
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, everything(), csi.Config{})
			s := pvSpec()
			remove := b.driver.Inject(csitest.Fault{Match: csitest.Method("NodeStageVolume"), After: true, Err: status.Error(codes.DeadlineExceeded, "late")})
			wantUncertain(t, b.setUp(s, pod("u1"), volume.MounterArgs{}), true)
			remove()
			second(b)
			if err := b.setUp(s, pod("u1"), volume.MounterArgs{}); err == nil {
				t.Fatal("the second call succeeds")
			}
			if name == "not sent" {
				b.again()
			}
			b.driver.ResetCalls()
			b.must(b.tearDown(s, "u1"))
			b.wantMethods("NodeUnstageVolume")
			b.wantNothing()
		})
	}
}

// A teardown that fails keeps its state, and succeeds later.
func TestTearDownFails(t *testing.T) {
	for _, method := range []string{"NodeUnpublishVolume", "NodeUnstageVolume"} {
		for _, after := range []bool{false, true} {
			for _, code := range []codes.Code{codes.Internal, codes.DeadlineExceeded} {
				b := newBench(t, everything(), csi.Config{})
				s := pvSpec()
				b.must(b.setUp(s, pod("u1"), volume.MounterArgs{}))
				remove := b.driver.Inject(csitest.Fault{Match: csitest.Method(method), After: after, Err: status.Error(code, "injected")})
				for range 2 {
					wantUncertain(t, b.tearDown(s, "u1"), true)
				}
				remove()
				b.must(b.tearDown(s, "u1"))
				b.wantNothing()
			}
		}
	}
}

// The driver is killed during each call, before and after its effect.
func TestDriverKilledDuringEachCall(t *testing.T) {
	ephemeral := csi.Config{Defaults: map[string]storagev1.CSIDriverSpec{driverName: {VolumeLifecycleModes: []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecycleEphemeral}, PodInfoOnMount: new(true)}}}
	republished := csi.Config{Defaults: map[string]storagev1.CSIDriverSpec{driverName: {RequiresRepublish: new(true)}}, Republish: time.Nanosecond}
	life := []string{"NodeStageVolume", "NodePublishVolume", "NodeUnpublishVolume", "NodeUnstageVolume"}
	for name, tc := range map[string]struct {
		config  csi.Config
		spec    *volume.Spec
		live    func(*bench, *volume.Spec) error
		methods []string
		nth     int
	}{
		"file system":  {spec: pvSpec(), live: (*bench).measuredLife, methods: append([]string{"NodeExpandVolume", "NodeGetVolumeStats"}, life...), nth: 1},
		"inline":       {config: ephemeral, spec: inlineSpec(), live: (*bench).plainLife, methods: []string{"NodePublishVolume", "NodeUnpublishVolume"}, nth: 1},
		"block":        {spec: pvSpec(func(pv *v1.PersistentVolume) { pv.Spec.VolumeMode = new(v1.PersistentVolumeBlock) }), live: (*bench).blockLife, methods: life, nth: 1},
		"republishing": {config: republished, spec: pvSpec(), live: (*bench).republishedLife, methods: []string{"NodePublishVolume"}, nth: 2},
	} {
		for _, method := range tc.methods {
			for _, after := range []bool{false, true} {
				dc := everything()
				if tc.spec.IsBlock() {
					dc.Disk = csitest.File
				}
				b := newBench(t, dc, tc.config)
				remove := b.driver.Inject(csitest.Fault{Match: csitest.Method(method), Nth: tc.nth, After: after, Hook: b.driver.Kill})
				err := tc.live(b, tc.spec)
				remove()
				if slices.Contains(life, method) {
					wantUncertain(t, err, true)
				}
				if !errors.Is(err, csi.ErrNoAnswer) {
					t.Errorf("%s, %s: %v", name, method, err)
				}
				b.again()
				b.must(tc.live(b, tc.spec))
				b.wantNothing()
			}
		}
	}
}

func (b *bench) plainLife(s *volume.Spec) error {
	if err := b.setUp(s, pod("u1"), volume.MounterArgs{}); err != nil {
		return err
	}
	return b.tearDown(s, "u1")
}

// measuredLife has the volume grow, and tell its numbers.
func (b *bench) measuredLife(s *volume.Spec) error {
	err := b.setUp(s, pod("u1"), volume.MounterArgs{})
	m := b.mounter(s, pod("u1"))
	if err == nil {
		_, err = b.plugin.NodeExpand(b.t.Context(), volume.NodeResizeOptions{VolumeSpec: s, DeviceMountPath: m.GetPath(), DeviceStagePath: b.devicePath(s), NewSize: resource.MustParse("1Mi")})
	}
	if err == nil {
		_, err = m.GetMetrics(b.t.Context())
	}
	if err == nil {
		err = b.tearDown(s, "u1")
	}
	return err
}

// republishedLife publishes the volume a second time.
func (b *bench) republishedLife(s *volume.Spec) error {
	err := b.setUp(s, pod("u1"), volume.MounterArgs{})
	if err == nil {
		err = b.mounter(s, pod("u1")).SetUp(b.t.Context(), volume.MounterArgs{})
	}
	if err == nil {
		err = b.tearDown(s, "u1")
	}
	return err
}

func (b *bench) blockLife(s *volume.Spec) error {
	err := b.mapDevice(s, "u1")
	u, newErr := b.plugin.NewBlockVolumeUnmapper(s.Name(), "u1")
	b.must(newErr)
	if err == nil {
		err = u.UnmapPodDevice(b.t.Context())
	}
	if err == nil {
		err = u.TearDownDevice(b.t.Context(), "", "")
	}
	return err
}

// A driver that hangs costs its caller no more than the limit, and one call a volume.
func TestHangingDriver(t *testing.T) {
	b := newBench(t, everything(), csi.Config{})
	s, other := pvSpec(), pvSpec(func(pv *v1.PersistentVolume) { pv.Name, pv.Spec.CSI.VolumeHandle = "pv2", "h2" })
	began := make(chan struct{})
	remove := b.driver.Inject(csitest.Fault{Match: func(c csitest.Call) bool { return c.Method == "NodeStageVolume" && c.Volume == "h1" },
		Hook: func() { close(began) }, Release: make(chan struct{})})
	ctx, cancel := context.WithCancel(t.Context())
	m, err := b.plugin.NewDeviceMounter()
	b.must(err)
	path := b.devicePath(s)
	done := make(chan error, 1)
	go func() { done <- m.MountDevice(ctx, s, "", path, volume.DeviceMounterArgs{}) }()
	<-began
	b.must(b.setUp(other, pod("u1"), volume.MounterArgs{}), b.tearDown(other, "u1"))
	drivers := b.plugin.Drivers()
	if len(drivers) != 1 || len(drivers[0].Calls) != 1 || drivers[0].Calls[0].Volume != "h1" || !drivers[0].Connected || len(drivers[0].Capabilities) != 7 {
		t.Errorf("drivers %+v", drivers)
	}
	// A second call for the volume is not sent.
	short, end := context.WithCancel(t.Context())
	end()
	wantUncertain(t, m.MountDevice(short, s, "", path, volume.DeviceMounterArgs{}), false)
	cancel()
	wantUncertain(t, <-done, true)
	remove()
	b.must(b.setUp(s, pod("u1"), volume.MounterArgs{}), b.tearDown(s, "u1"))
	b.wantNothing()
}

// A driver comes back with another version and other capabilities, which are asked for
// once in each life.
func TestAnotherLifeOfTheDriver(t *testing.T) {
	b := newBench(t, everything(), csi.Config{})
	s := pvSpec()
	b.must(b.setUp(s, pod("u1"), volume.MounterArgs{}), b.tearDown(s, "u1"))
	if n := len(b.driver.CallsOf("NodeGetCapabilities")); n != 1 {
		t.Errorf("the capabilities were asked for %d times", n)
	}
	b.kill()
	b.driver.Configure(func(c *csitest.Config) { c.Capabilities.Stage, c.Version = false, "2.0.0" })
	wantUncertain(t, b.setUp(s, pod("u1"), volume.MounterArgs{}), false)
	if health, known := b.plugin.SourceHealth(s); !known || health.Answers || health.Failures == 0 || !errors.Is(health.Err, csi.ErrUnreachable) {
		t.Errorf("health %+v, %v", health, known)
	}
	b.again()
	b.driver.ResetCalls()
	b.must(b.setUp(s, pod("u1"), volume.MounterArgs{}), b.tearDown(s, "u1"))
	b.wantMethods("NodePublishVolume", "NodeUnpublishVolume")
	if d := b.plugin.Drivers(); d[0].Version != "2.0.0" || d[0].Failures != 0 {
		t.Errorf("drivers %+v", d)
	}
	if health, _ := b.plugin.SourceHealth(s); !health.Answers {
		t.Errorf("health %+v", health)
	}
	b.wantNothing()
}

// An inline volume of a driver that is told nothing of pods is refused, and the error says why.
func TestInlineVolumeWithoutPodInfo(t *testing.T) {
	b := newBench(t, everything(), csi.Config{Defaults: map[string]storagev1.CSIDriverSpec{driverName: {
		VolumeLifecycleModes: []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecycleEphemeral}}}})
	err := b.setUp(inlineSpec(), pod("u1"), volume.MounterArgs{})
	if wantUncertain(t, err, false); !errors.Is(err, csi.ErrRefused) || !strings.Contains(err.Error(), "podInfoOnMount") {
		t.Errorf("%v", err)
	}
	b.wantNothing()
}

// Secrets are in no error, whatever the driver says.
func TestSecretsAreInNoError(t *testing.T) {
	b := newBench(t, everything(), csi.Config{})
	b.host.Add(&v1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "safe", Name: "s"}, Data: map[string][]byte{"user": []byte("canary"), "password": []byte("canary-and-more")}})
	ref := &v1.SecretReference{Namespace: "safe", Name: "s"}
	s := pvSpec(func(pv *v1.PersistentVolume) {
		pv.Spec.CSI.NodeStageSecretRef, pv.Spec.CSI.NodePublishSecretRef = ref, ref
	})
	for _, method := range []string{"NodeStageVolume", "NodePublishVolume"} {
		remove := b.driver.Inject(csitest.Fault{Match: csitest.Method(method), Err: status.Error(codes.Internal, "log in\nas canary with canary-and-more "+strings.Repeat("x", 5000))})
		err := b.setUp(s, pod("u1"), volume.MounterArgs{})
		remove()
		if err == nil || strings.Contains(err.Error(), "canary") || !strings.Contains(err.Error(), "log in as *** with ***") || len(err.Error()) > 4000 {
			t.Errorf("%v", err)
		}
	}
	b.must(b.tearDown(s, "u1"))
}

// A driver may repeat a secret of an earlier call when it is asked for a volume's health, or undoes
// what the call has done, which takes no secret.
func TestSecretsOfEarlierCallsAreInNoMessage(t *testing.T) {
	dc := everything()
	dc.Capabilities.Health = true
	b := newBench(t, dc, csi.Config{})
	for _, name := range []string{"stage", "publish"} {
		b.host.Add(&v1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "safe", Name: name}, Data: map[string][]byte{"password": []byte("canary-of-" + name)}})
	}
	s := pvSpec(func(pv *v1.PersistentVolume) {
		pv.Spec.CSI.NodeStageSecretRef = &v1.SecretReference{Namespace: "safe", Name: "stage"}
		pv.Spec.CSI.NodePublishSecretRef = &v1.SecretReference{Namespace: "safe", Name: "publish"}
	})
	b.must(b.setUp(s, pod("u1"), volume.MounterArgs{}))
	const says, clean = "no login by canary-of-stage and canary-of-publish", "no login by *** and ***"
	b.driver.Configure(func(c *csitest.Config) {
		c.VolumeHealth = map[string][]*spec.VolumeHealth_VolumeHealthEntry{s.PersistentVolume.Spec.CSI.VolumeHandle: {wrong(spec.VolumeHealthErrorType_INACCESSIBLE, "", says)}}
	})
	m, err := b.mounter(s, pod("u1")).GetMetrics(t.Context())
	if err != nil || m.Condition == nil || m.Condition.Message != "Inaccessible: "+clean {
		t.Errorf("its health is %+v, %v", m, err)
	}
	remove := b.driver.Inject(csitest.Fault{Match: csitest.Method("NodeUnpublishVolume"), Err: status.Error(codes.Internal, says)})
	if err := b.tearDown(s, "u1"); err == nil || !strings.Contains(err.Error(), clean) {
		t.Errorf("the teardown says %v", err)
	}
	remove()
	b.must(b.tearDown(s, "u1"))
}

// A caller that stops while a driver hangs says that the call is under way, and why it stopped.
func TestAWaitThatIsEndedSaysSo(t *testing.T) {
	b := newBench(t, everything(), csi.Config{})
	s := pvSpec()
	b.must(b.setUp(s, pod("u1"), volume.MounterArgs{}))
	ctx, cancel := context.WithCancelCause(t.Context())
	release := make(chan struct{})
	remove := b.driver.Inject(csitest.Fault{Match: csitest.Method("NodeUnpublishVolume"), Hook: func() { cancel(errors.New("terminated signal\nreceived")) }, Release: release})
	u, err := b.plugin.NewUnmounter(s.Name(), "u1")
	if err != nil {
		t.Fatal(err)
	}
	err = u.TearDown(ctx)
	want := "the wait for driver " + driverName + " was ended (terminated signal received), and its call NodeUnpublishVolume of volume \"h1\" was still under way"
	if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "tried again") || !errors.Is(err, csi.ErrNoAnswer) || !errors.Is(err, context.Cause(ctx)) {
		t.Errorf("%v, want %q", err, want)
	}
	wantUncertain(t, err, true)
	close(release)
	remove()
	b.must(b.tearDown(s, "u1"))
}

// Names and paths of a registration or a flag break no line of a message, and the cause has a word.
func TestAMessageIsOneLine(t *testing.T) {
	bad := "/run/" + strings.Repeat("x", 4096) + "\n/s"
	p, err := csi.New(csi.Config{Drivers: map[string]string{driverName: bad}})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	_, asked := csi.AskName(t.Context(), bad)
	for cause, word := range map[error]string{p.Connect(t.Context(), driverName): "DriverUnreachable", p.Connect(t.Context(), "other.io"): "DriverNotRegistered"} {
		if told, ok := errors.AsType[volume.WordedCause](cause); !ok || told.CauseWord() != word {
			t.Errorf("the word of %v is not %s", cause, word)
		}
	}
	for _, err := range []error{p.Connect(t.Context(), driverName), p.Connect(t.Context(), strings.Repeat("a\n", 2048)), asked} {
		if err == nil || strings.Contains(err.Error(), "\n") || len(err.Error()) > 3000 {
			t.Errorf("%.300q", err)
		}
	}
}

func TestBadInput(t *testing.T) {
	b := newBench(t, everything(), csi.Config{})
	for _, name := range []string{"", "..", "a/b", "../x", "a\nb", "a..b", "-a", strings.Repeat("a", 64)} {
		s := pvSpec(func(pv *v1.PersistentVolume) { pv.Spec.CSI.Driver = name })
		_, err := b.plugin.NewMounter(s, pod("u1"))
		wantUncertain(t, err, false)
		if _, err := b.plugin.GetVolumeName(s); err == nil {
			t.Errorf("driver %q is accepted", name)
		}
		if _, err := csi.New(csi.Config{Drivers: map[string]string{name: "/s"}}); err == nil {
			t.Errorf("driver %q is configured", name)
		}
	}
	for _, handle := range []string{"", "a\nb", "a\x00", "\xff", strings.Repeat("a", 4096)} {
		_, err := b.plugin.NewMounter(pvSpec(func(pv *v1.PersistentVolume) { pv.Spec.CSI.VolumeHandle = handle }), pod("u1"))
		wantUncertain(t, err, false)
	}
	for _, handle := range []string{"../../etc", "/a/b/c", "..", strings.Repeat("ü", 2000)} {
		s := pvSpec(func(pv *v1.PersistentVolume) { pv.Spec.CSI.VolumeHandle = handle })
		b.must(b.setUp(s, pod("u1"), volume.MounterArgs{}), b.tearDown(s, "u1"))
	}
	for _, fsType := range []string{"../x", "ext4\n", "ext4 -F", "-t", ".", "ext4;", strings.Repeat("x", 65)} {
		_, err := b.plugin.NewMounter(pvSpec(func(pv *v1.PersistentVolume) { pv.Spec.CSI.FSType = fsType }), pod("u1"))
		if wantUncertain(t, err, false); err == nil || !strings.Contains(err.Error(), "csi.fsType") {
			t.Errorf("file system %q: %v", fsType, err)
		}
	}
	if _, err := csi.New(csi.Config{Drivers: map[string]string{"a": "relative"}}); err == nil {
		t.Error("a relative socket is configured")
	}
	if _, err := csi.New(csi.Config{CallTimeout: -1}); err == nil {
		t.Error("a negative time is configured")
	}
	block := pvSpec(func(pv *v1.PersistentVolume) { pv.Spec.VolumeMode = new(v1.PersistentVolumeBlock) })
	if _, err := b.plugin.NewMounter(block, pod("u1")); err == nil {
		t.Error("a block volume is mounted")
	}
	if _, err := b.plugin.NewBlockVolumeMapper(pvSpec(), pod("u1")); err == nil {
		t.Error("a file system is mapped")
	}
	mapper, err := b.plugin.NewBlockVolumeMapper(block, pod("u1"))
	b.must(err)
	_, err = mapper.SetUpDevice(t.Context())
	if wantUncertain(t, err, false); !errors.Is(err, csi.ErrRefused) {
		t.Errorf("a device of a driver without: %v", err)
	}
	b.driver.Configure(func(c *csitest.Config) { c.Disk = csitest.Loop })
	err = b.setUp(pvSpec(func(pv *v1.PersistentVolume) { pv.Spec.CSI.VolumeHandle, pv.Spec.CSI.FSType = "h3", "papyrus" }), pod("u1"), volume.MounterArgs{})
	if wantUncertain(t, err, false); !errors.Is(err, csi.ErrRefused) || !strings.Contains(err.Error(), `"papyrus"`) {
		t.Errorf("an unknown file system: %v", err)
	}
	b.wantNothing()
}

// A driver gets no kind of volume that its CSIDriver object does not list: without an object,
// or a list, persistent ones alone.
func TestLifecycleModes(t *testing.T) {
	const persistent, ephemeral = storagev1.VolumeLifecyclePersistent, storagev1.VolumeLifecycleEphemeral
	for name, tc := range map[string]struct {
		object  bool
		modes   []storagev1.VolumeLifecycleMode
		refused *volume.Spec
	}{
		"no object":       {refused: inlineSpec()},
		"no list":         {object: true, refused: inlineSpec()},
		"persistent only": {true, []storagev1.VolumeLifecycleMode{persistent}, inlineSpec()},
		"ephemeral only":  {true, []storagev1.VolumeLifecycleMode{ephemeral}, pvSpec()},
		"both":            {object: true, modes: []storagev1.VolumeLifecycleMode{persistent, ephemeral}},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, everything(), csi.Config{})
			if tc.object {
				b.object(storagev1.CSIDriverSpec{PodInfoOnMount: new(true), VolumeLifecycleModes: tc.modes})
			}
			for _, s := range []*volume.Spec{pvSpec(), inlineSpec()} {
				err := b.setUp(s, pod("u1"), volume.MounterArgs{})
				if tc.refused == nil || tc.refused.Name() != s.Name() {
					b.must(err, b.tearDown(s, "u1"))
					continue
				}
				invalid, ok := errors.AsType[*volume.InvalidSpecError](err)
				if wantUncertain(t, err, false); !ok || !strings.Contains(invalid.Error(), "volumeLifecycleModes") {
					t.Errorf("%s: %v", s.Name(), err)
				}
			}
			b.wantNothing()
		})
	}
}
