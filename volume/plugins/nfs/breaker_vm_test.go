package nfs_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/host"
	"github.com/podvol/podvol/util/testenv/nfsserver"
	"github.com/podvol/podvol/util/testenv/vmtest"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/plugins/nfs"
)

// A server falls silent, so that its packets are lost, and comes back.
func TestSilentServerOnALinuxKernel(t *testing.T) {
	packages := nfsserver.Unpack(t)
	vmtest.Run(t, func(t *testing.T) {
		one := nfsserver.Start(t, packages, nfsserver.Config{Name: "one"})
		two := nfsserver.Start(t, packages, nfsserver.Config{Name: "two"})
		one.Put("/data/who", "one")
		two.Put("/data/who", "two")
		// Patience is for machines that are emulated.
		p := nfs.New(nfs.Config{Breaker: nfs.BreakerConfig{FirstPause: 2 * time.Second, LastPause: 8 * time.Second, Patience: 10 * time.Second}})
		if err := p.Init(&volume.Host{RootDir: nfsserver.DetachBelow(t, t.TempDir()), NodeName: "n", Mounter: host.New(host.Config{})}); err != nil {
			t.Fatal(err)
		}
		of := func(s *nfsserver.Server, uid types.UID) volume.Mounter {
			return mounter(t, p, inline(s.Address(), "/data"), uid)
		}
		before, late, other := of(one, "before"), of(one, "late"), of(two, "other")
		try := func(m volume.Mounter, patience time.Duration) error {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			return m.SetUp(ctx, volume.MounterArgs{})
		}
		if err := try(before, time.Minute); err != nil {
			t.Fatal(err)
		}

		one.Drop()
		var wait sync.WaitGroup
		for _, uid := range []types.UID{"a", "b", "c"} {
			m := of(one, uid)
			wait.Go(func() {
				err := try(m, 7*time.Second)
				if e, ok := errors.AsType[*mount.Error](err); !ok || e.Cause != mount.ErrTimedOut || isServerDown(err) || volume.IsUncertain(err) {
					t.Errorf("%s: %v", uid, err)
				}
			})
		}
		wait.Wait()
		start := time.Now()
		err := try(late, time.Minute)
		t.Logf("refused after %v: %v", time.Since(start), err)
		if !isServerDown(err) || volume.IsUncertain(err) || time.Since(start) > 50*time.Second {
			t.Errorf("err = %v after %v", err, time.Since(start))
		}
		if h := health(t, p, inline(one.Address(), "/other")); h.Answers || h.Failures < 3 || !errors.Is(h.Err, mount.ErrTimedOut) {
			t.Errorf("health %+v", h)
		}
		if err := try(before, time.Minute); err != nil {
			t.Errorf("what is mounted already: %v", err)
		}
		if err := try(other, time.Minute); err != nil {
			t.Errorf("another server: %v", err)
		}
		wantShows(t, other, "two")

		one.Pass()
		start = time.Now()
		for err = try(late, time.Minute); err != nil; err = try(late, time.Minute) {
			at, ok := volume.RetryAt(err)
			if !ok || time.Since(start) > time.Minute {
				t.Fatalf("%v after the return of the server: %v", time.Since(start), err)
			}
			time.Sleep(time.Until(at))
		}
		t.Logf("mounted %v after the return of the server", time.Since(start))
		wantShows(t, late, "one")
		wantShows(t, before, "one")
		if h := health(t, p, inline(one.Address(), "/data")); !h.Answers || h.Failures != 0 {
			t.Errorf("health %+v", h)
		}
		for _, uid := range []types.UID{"before", "late", "other", "a"} {
			tearDown(t, p, "vol1", uid)
		}
	})
}

func wantShows(t *testing.T, m volume.Mounter, who string) {
	t.Helper()
	if data, err := os.ReadFile(filepath.Join(m.GetPath(), "who")); err != nil || strings.TrimSpace(string(data)) != who {
		t.Errorf("%s shows %q, %v; want %q", m.GetPath(), data, err, who)
	}
}
