package nfs_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/podmount"
	"github.com/podvol/podvol/volume/lazyunmount"
	"github.com/podvol/podvol/volume/plugins/nfs"
)

func TestFailedMount(t *testing.T) {
	for name, after := range map[string]bool{"before its effect": false, "after its effect": true} {
		t.Run(name, func(t *testing.T) {
			p, h := newPlugin(t)
			remove := h.Fake.Inject(fakemount.Fault{Match: isMount, After: after, Err: mount.ErrHelperMissing})
			m := mounter(t, p, persistent("server", "/nfs"), "u1")
			err := m.SetUp(t.Context(), volume.MounterArgs{})
			if !errors.Is(err, mount.ErrHelperMissing) || volume.IsUncertain(err) {
				t.Errorf("SetUp = %v", err)
			}
			if e, ok := errors.AsType[*mount.Error](err); !ok || e.Source != "server:/nfs" {
				t.Errorf("SetUp = %v, want the *mount.Error", err)
			}
			e, ok := errors.AsType[*volume.Error](err)
			if !ok || e.Volume != "nfs211" || e.Pod.String() != "ops-test/web" || e.Plugin != nfs.PluginName {
				t.Errorf("SetUp = %v, want whose volume it is", err)
			}
			wantGone(t, h, m.GetPath())
			remove()
			setUp(t, m)
		})
	}
}

// A share that nobody may look at, as with root squash.
func TestInaccessibleShare(t *testing.T) {
	p, h := newPlugin(t)
	export := filepath.Join(t.TempDir(), "export")
	if err := os.Mkdir(export, 0o700); err != nil {
		t.Fatal(err)
	}
	h.Fake.Serve("server:/nfs", export)
	m := mounter(t, p, inline("server", "/nfs"), "u1")
	setUp(t, m)
	// Whatever touches the share from now on finds nothing there at all.
	if err := os.Remove(export); err != nil {
		t.Fatal(err)
	}
	setUp(t, m)
	rebuilt, err := p.ConstructVolumeSpec(t.Context(), "vol1", m.GetPath())
	if err != nil || !rebuilt.Complete {
		t.Errorf("ConstructVolumeSpec = %+v, %v", rebuilt, err)
	}
	tearDown(t, p, "vol1", "u1")
	wantGone(t, h, m.GetPath())
}

func TestHungServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, h := newPlugin(t)
		never := make(chan struct{})
		hang := func(c fakemount.Call) bool { return c.Source == "dead:/nfs" }
		h.Fake.Inject(fakemount.Fault{Match: hang, Release: never})
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		start := time.Now()
		m := mounter(t, p, inline("dead", "/nfs"), "u1")
		err := m.SetUp(ctx, volume.MounterArgs{})
		if !errors.Is(err, context.DeadlineExceeded) || !volume.IsUncertain(err) || time.Since(start) != 10*time.Second {
			t.Errorf("SetUp = %v after %v", err, time.Since(start))
		}
		wantGone(t, h, m.GetPath())
		setUp(t, mounter(t, p, inline("alive", "/nfs"), "u2"))
		tearDown(t, p, "vol1", "u1")
	})
}

func TestTearDownFromADeadServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, h := newPlugin(t)
		m := mounter(t, p, inline("server", "/nfs"), "u1")
		setUp(t, m)
		never := make(chan struct{})
		h.Fake.Inject(fakemount.Fault{Match: func(c fakemount.Call) bool { return !isMount(c) && c.Rung != mount.RungLazy }, Release: never})
		start := time.Now()
		u := unmounter(t, p, "vol1", "u1")
		err := u.TearDown(t.Context())
		if _, ok := errors.AsType[*lazyunmount.Error](err); !ok || !volume.IsUncertain(err) {
			t.Errorf("TearDown = %v, want it to say that the share was detached", err)
		}
		if took := time.Since(start); took < time.Minute || took > 5*time.Minute {
			t.Errorf("TearDown took %v", took)
		}
		if err := u.TearDown(t.Context()); err != nil {
			t.Error(err)
		}
		wantGone(t, h, m.GetPath())
	})
}

func TestAnotherShareIsMounted(t *testing.T) {
	p, h := newPlugin(t)
	setUp(t, mounter(t, p, inline("server", "/nfs"), "u1"))
	readOnly := inline("server", "/nfs")
	readOnly.Volume.NFS.ReadOnly = true
	for name, spec := range map[string]*volume.Spec{
		"another path": inline("server", "/other"), "another server": inline("server2", "/nfs"), "read-only": readOnly,
	} {
		err := mounter(t, p, spec, "u1").SetUp(t.Context(), volume.MounterArgs{})
		if _, ok := errors.AsType[*podmount.OccupiedError](err); !ok || volume.IsUncertain(err) {
			t.Errorf("%s: SetUp = %v", name, err)
		}
	}
	// Neither is a FUSE file system that calls itself by the share's name.
	fuse := mounter(t, p, inline("server", "/nfs"), "u2")
	if err := os.MkdirAll(fuse.GetPath(), 0o750); err != nil {
		t.Fatal(err)
	}
	if err := h.Fake.Mount("server:/nfs", fuse.GetPath(), "fuse.sshfs", nil); err != nil {
		t.Fatal(err)
	}
	if _, ok := errors.AsType[*podmount.OccupiedError](fuse.SetUp(t.Context(), volume.MounterArgs{})); !ok {
		t.Error("a FUSE file system was taken for the share")
	}
	h.Fake.ResetCalls()
	setUp(t, mounter(t, p, inline("SERVER", "/nfs/"), "u1"))
	if calls := h.Fake.Calls(); len(calls) != 0 {
		t.Errorf("the share was mounted again: %v", calls)
	}
}

func TestTearDownNeverDeletes(t *testing.T) {
	p, h := newPlugin(t)
	m := mounter(t, p, inline("server", "/nfs"), "u1")
	if err := os.MkdirAll(m.GetPath(), 0o750); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(m.GetPath(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	setUp(t, m)
	err := unmounter(t, p, "vol1", "u1").TearDown(t.Context())
	if _, ok := errors.AsType[*podmount.NotEmptyError](err); !ok || !strings.Contains(err.Error(), "nothing was deleted") {
		t.Errorf("TearDown = %v", err)
	}
	if _, err := os.Stat(file); err != nil {
		t.Error(err)
	}
	if _, ok := entryAt(t, h, m.GetPath()); ok {
		t.Error("the share is still mounted")
	}
}
