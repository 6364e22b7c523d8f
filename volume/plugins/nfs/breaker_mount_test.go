package nfs_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/plugins/nfs"
	"github.com/podvol/podvol/volume/volumesource"
)

func isServerDown(err error) bool {
	_, down := errors.AsType[*nfs.ServerDownError](err)
	return down
}

func health(t *testing.T, p volume.VolumePlugin, spec *volume.Spec) volumesource.Health {
	t.Helper()
	h, ok := volumesource.HealthOf(p, spec)
	if !ok {
		t.Fatal("the plugin keeps no book of its servers")
	}
	return h
}

func TestSilentServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, h := newPlugin(t)
		mounted := mounter(t, p, inline("fd00::1", "/nfs"), "u0")
		setUp(t, mounted)
		remove := h.Fake.Inject(fakemount.Fault{
			Match: func(c fakemount.Call) bool { return isMount(c) && c.Source != "alive:/nfs" }, Release: make(chan struct{}),
		})
		start := time.Now()
		for _, server := range []string{"fd00::1", "FD00::1", "[fd00:0:0::1]"} {
			m := mounter(t, p, inline(server, "/nfs"), "u1")
			short, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			err := m.SetUp(short, volume.MounterArgs{})
			cancel()
			if isServerDown(err) || !errors.Is(err, context.DeadlineExceeded) {
				t.Fatalf("SetUp = %v", err)
			}
			wantGone(t, h, m.GetPath())
		}
		h.Fake.ResetCalls()
		refusedAt := time.Now()
		another := mounter(t, p, inline("fd00::1", "/another"), "u2")
		err := another.SetUp(t.Context(), volume.MounterArgs{})
		if !isServerDown(err) || volume.IsUncertain(err) || !errors.Is(err, mount.ErrTimedOut) || time.Since(refusedAt) > 0 {
			t.Errorf("SetUp = %v after %v", err, time.Since(refusedAt))
		}
		if e, ok := errors.AsType[*volume.Error](err); !ok || e.Volume != "vol1" || e.PodUID != "u2" {
			t.Errorf("SetUp = %v, want whose volume it is", err)
		}
		wantGone(t, h, another.GetPath())
		if calls := h.Fake.Calls(); len(calls) != 0 {
			t.Errorf("the server was asked: %v", calls)
		}
		got := health(t, p, inline("FD00::1", "/third"))
		if got.Source != "fd00::1" || got.Answers || got.Failures != 3 || !got.Since.Equal(start) || !errors.Is(got.Err, mount.ErrTimedOut) {
			t.Errorf("health %+v", got)
		}

		// All else goes on as ever.
		setUp(t, mounted)
		setUp(t, mounter(t, p, inline("alive", "/nfs"), "u3"))
		if got := health(t, p, inline("alive", "/nfs")); !got.Answers || got.Source != "alive" || got.Failures != 0 {
			t.Errorf("health %+v", got)
		}
		tearDown(t, p, "vol1", "u0")
		tearDown(t, p, "vol1", "u3")
		tearDown(t, p, "vol1", "u1") // was never mounted
		if time.Since(refusedAt) > 0 {
			t.Errorf("it took %v", time.Since(refusedAt))
		}

		remove()
		time.Sleep(time.Until(got.RetryAt))
		setUp(t, another)
		if got := health(t, p, inline("fd00::1", "/nfs")); !got.Answers || got.Failures != 0 {
			t.Errorf("health %+v", got)
		}
		tearDown(t, p, "vol1", "u2")
	})
}

// A server that says no is alive.
func TestServerThatDenies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, h := newPlugin(t)
		for n, cause := range []mount.Cause{mount.ErrTimedOut, mount.ErrTimedOut, mount.ErrAccessDenied, mount.ErrTimedOut, mount.ErrTimedOut, mount.ErrNoSuchExport, mount.ErrTimedOut} {
			remove := h.Fake.Inject(fakemount.Fault{Match: isMount, Err: cause})
			if err := mounter(t, p, inline("server", "/nfs"), "u1").SetUp(t.Context(), volume.MounterArgs{}); isServerDown(err) || !errors.Is(err, cause) {
				t.Errorf("mount %d: %v", n, err)
			}
			remove()
		}
	})
}

// What a firewall does to the services of NFSv3 is nothing to NFSv4.
func TestServicesOfOneServer(t *testing.T) {
	// In real time the server may be tried again meanwhile.
	synctest.Test(t, func(t *testing.T) {
		p, h := newPlugin(t)
		remove := h.Fake.Inject(fakemount.Fault{Match: isMount, Err: mount.ErrTimedOut})
		old := persistent("server", "/nfs")
		old.PersistentVolume.Spec.MountOptions = []string{"nfsvers=3"}
		for range 3 {
			if err := mounter(t, p, old, "u1").SetUp(t.Context(), volume.MounterArgs{}); isServerDown(err) || err == nil {
				t.Fatal(err)
			}
		}
		remove()
		if err := mounter(t, p, old, "u1").SetUp(t.Context(), volume.MounterArgs{}); !isServerDown(err) {
			t.Errorf("SetUp = %v", err)
		}
		setUp(t, mounter(t, p, persistent("server", "/nfs"), "u2"))
		if got := health(t, p, old); got.Answers || got.Source != "server (vers=3)" {
			t.Errorf("health %+v", got)
		}
		tearDown(t, p, "nfs211", "u2")
	})
}

// The options of inline volumes are a policy's and their pods', and so is where
// they lead: no volume is refused as of a server that is said to answer.
func TestHealthOfInlineVolumes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, h := newPluginWith(t, nfs.ServerPolicy{Server: "*", Allow: []string{"port=2050"}, Defaults: []string{"vers=3"}})
		remove := h.Fake.Inject(fakemount.Fault{Match: isMount, Err: mount.ErrTimedOut})
		defer remove()
		fail := func(server string, pod *v1.Pod, times int) {
			m, err := p.NewMounter(inline(server, "/nfs"), pod)
			if err != nil {
				t.Fatal(err)
			}
			for range times {
				if err := m.SetUp(t.Context(), volume.MounterArgs{}); isServerDown(err) || err == nil {
					t.Fatalf("SetUp = %v", err)
				}
			}
			time.Sleep(time.Second)
		}
		wants := func(server, source string, answers bool, failures int) {
			t.Helper()
			got := health(t, p, inline(server, "/another"))
			if got.Source != source || got.Answers != answers || got.Failures != failures || (got.Err == nil) != (failures == 0) {
				t.Errorf("health %+v", got)
			}
		}
		ported := annotated(optionsOfVol1, "port=2050")
		fail("other", pod("u1"), 3)
		wants("server", "server", true, 0)
		fail("Server", ported, 1)
		wants("server", "server (port=2050,vers=3)", true, 1)
		fail("server", pod("u1"), 2)
		wants("SERVER", "server (vers=3)", true, 2)
		fail("server", ported, 2)
		wants("server", "server (port=2050,vers=3)", false, 3)
		fail("server", pod("u1"), 1)
		wants("server", "server (vers=3)", false, 3) // which is refused for longer
		if got := health(t, p, persistent("server", "/nfs")); !got.Answers || got.Source != "server" {
			t.Errorf("of a PersistentVolume without these options: %+v", got)
		}
	})
}

// Without a policy for its server an inline volume has no options, and what
// others' lead to is nothing to it.
func TestHealthOfInlineVolumesWithoutPolicy(t *testing.T) {
	p, h := newPluginWith(t, nfs.ServerPolicy{Server: "files", Defaults: []string{"vers=3"}})
	remove := h.Fake.Inject(fakemount.Fault{Match: isMount, Err: mount.ErrTimedOut})
	defer remove()
	old := persistent("server", "/nfs", func(pv *v1.PersistentVolume) { pv.Spec.MountOptions = []string{"vers=3"} })
	for range 3 {
		if err := mounter(t, p, old, "u1").SetUp(t.Context(), volume.MounterArgs{}); err == nil {
			t.Fatal("it was mounted")
		}
	}
	if got := health(t, p, inline("server", "/nfs")); !got.Answers || got.Source != "server" {
		t.Errorf("health %+v", got)
	}
	if got := health(t, p, old); got.Answers {
		t.Errorf("health %+v", got)
	}
}

func TestHealthOfNoServer(t *testing.T) {
	p, _ := newPlugin(t)
	for _, spec := range []*volume.Spec{{}, inline("", "/nfs"), inline("server", "nfs")} {
		if h, ok := volumesource.HealthOf(p, spec); ok {
			t.Errorf("%+v", h)
		}
	}
}
