package nfs_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/plugins/nfs"
)

func isServerDown(err error) bool {
	_, down := errors.AsType[*nfs.ServerDownError](err)
	return down
}

func health(t *testing.T, p volume.VolumePlugin, spec *volume.Spec) volume.SourceHealth {
	t.Helper()
	h, ok := volume.HealthOf(p, spec)
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
		remove := h.Fake.Inject(mount.Fault{
			Match: func(c mount.Call) bool { return isMount(c) && c.Source != "alive:/nfs" }, Release: make(chan struct{}),
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
			remove := h.Fake.Inject(mount.Fault{Match: isMount, Err: cause})
			if err := mounter(t, p, inline("server", "/nfs"), "u1").SetUp(t.Context(), volume.MounterArgs{}); isServerDown(err) || !errors.Is(err, cause) {
				t.Errorf("mount %d: %v", n, err)
			}
			remove()
		}
	})
}

// What a firewall does to the services of NFSv3 is nothing to NFSv4.
func TestServicesOfOneServer(t *testing.T) {
	p, h := newPlugin(t)
	remove := h.Fake.Inject(mount.Fault{Match: isMount, Err: mount.ErrTimedOut})
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
}

func TestHealthOfNoServer(t *testing.T) {
	p, _ := newPlugin(t)
	for _, spec := range []*volume.Spec{{}, inline("", "/nfs"), inline("server", "nfs")} {
		if h, ok := volume.HealthOf(p, spec); ok {
			t.Errorf("%+v", h)
		}
	}
}
