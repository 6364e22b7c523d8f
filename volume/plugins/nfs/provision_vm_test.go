package nfs_test

import (
	"context"
	"errors"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/host"
	"github.com/podvol/podvol/util/testenv/nfsserver"
	"github.com/podvol/podvol/util/testenv/vmtest"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/plugins/nfs"
)

// realPlugin mounts with the machine's own kernel.
func realPlugin(t *testing.T) volume.VolumePlugin {
	t.Helper()
	p := nfs.New(nfs.Config{ForceAfter: 2 * time.Second, LazyAfter: 4 * time.Second})
	released := &releases{}
	released.yes.Store(math.MaxInt32)
	if err := p.Init(&volume.Host{RootDir: nfsserver.DetachBelow(t, t.TempDir()), NodeName: "n", Mounter: host.New(host.Config{}), Releases: released}); err != nil {
		t.Fatal(err)
	}
	return p
}

// realWishes are for a share of the server, by one version of the protocol.
func realWishes(s *nfsserver.Server, share, version, claim string, change ...func(*volume.VolumeOptions)) volume.VolumeOptions {
	return wishes(claim, append([]func(*volume.VolumeOptions){
		parameter("server", s.Address()), parameter("share", share), parameter("subDir", "${pvc.metadata.namespace}/${pvc.metadata.name}"),
		func(o *volume.VolumeOptions) { o.MountOptions = []string{"vers=" + version, "nolock"} },
	}, change...)...)
}

func TestProvisioningOnRealShares(t *testing.T) {
	packages := nfsserver.Unpack(t)
	vmtest.Run(t, func(t *testing.T) {
		exports := []nfsserver.Export{{Path: "/data"}, {Path: "/squashed", RootSquash: true}, {Path: "/ro", ReadOnly: true}}
		s := nfsserver.Start(t, packages, nfsserver.Config{Name: "one", Exports: exports})
		for _, version := range []string{"3", "4.2"} {
			t.Run("version "+version, func(t *testing.T) { provisionForReal(t, s, version) })
		}
		t.Run("ganesha", func(t *testing.T) {
			provisionForReal(t, nfsserver.Start(t, packages, nfsserver.Config{Kind: nfsserver.Ganesha, Name: "other"}), "4.2")
		})
		t.Run("refusals", func(t *testing.T) { refusedForReal(t, s) })
		t.Run("silent", func(t *testing.T) { deadForReal(t, s) })
	})
}

func provisionForReal(t *testing.T, s *nfsserver.Server, version string) {
	begun := time.Now()
	p, peer := realPlugin(t), realPlugin(t)
	pv := mustProvision(t, p, realWishes(s, "/data", version, "one", parameter("mountPermissions", "2770")))
	if info, err := os.Stat(s.Path("/data/ops/one")); err != nil || info.Mode() != fs.ModeDir|fs.ModeSetgid|0o770 {
		t.Errorf("the directory is %v, %v", info, err)
	}
	archived := mustProvision(t, peer, realWishes(s, "/data", version, "two", parameter("onDelete", "archive")))
	s.Put("/data/ops/one/deep/er/file", "x")
	s.Put("/data/ops/two/file", "x")
	for _, q := range []volume.VolumePlugin{p, peer} { // the same again, from another node as well
		mustProvision(t, q, realWishes(s, "/data", version, "one", parameter("mountPermissions", "2770")))
	}
	_, err := provision(peer, realWishes(s, "/data", version, "one", func(o *volume.VolumeOptions) { o.PVName = "pvc-other" }))
	if occupied, ok := errors.AsType[*nfs.ShareError](err); !ok || occupied.Cause != nfs.ErrOccupied || occupied.Owner.Volume != pv.Name {
		t.Errorf("another volume's path: %v", err)
	}
	if err := os.MkdirAll(s.Path("/data/ops/foreign"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := provision(p, realWishes(s, "/data", version, "foreign")); !errors.Is(err, nfs.ErrOccupied) {
		t.Errorf("a foreign directory: %v", err)
	}
	crafted := pv.DeepCopy()
	crafted.Spec.NFS.Path = "/data/ops/foreign"
	if err := deletePV(p, crafted); !errors.Is(err, nfs.ErrOccupied) {
		t.Errorf("deleting a foreign directory: %v", err)
	}
	for range 2 {
		for _, pv := range []*v1.PersistentVolume{pv, archived} {
			if err := deletePV(peer, pv); err != nil {
				t.Errorf("Delete: %v", err)
			}
		}
	}
	if got, want := shown(t, s.Path("/data")), "ops ops/archived-two ops/archived-two/file ops/foreign"; got != want {
		t.Errorf("left %q, want %q", got, want)
	}
	if err := os.RemoveAll(s.Path("/data/ops")); err != nil {
		t.Fatal(err)
	}
	t.Logf("took %v", time.Since(begun).Round(time.Millisecond))
}

func refusedForReal(t *testing.T, s *nfsserver.Server) {
	p := realPlugin(t)
	_, err := provision(p, realWishes(s, "/ro", "4.2", "data"))
	if !errors.Is(err, unix.EROFS) || !strings.Contains(err.Error(), "export it rw") {
		t.Errorf("read-only: %v", err)
	}
	// Root is nobody there, and the share is root's.
	if err := os.Chmod(s.Path("/squashed"), 0o755); err != nil {
		t.Fatal(err)
	}
	_, err = provision(p, realWishes(s, "/squashed", "4.2", "data"))
	if !errors.Is(err, unix.EACCES) || !strings.Contains(err.Error(), "no_root_squash") {
		t.Errorf("root squashed: %v", err)
	}
	// It can be nobody's.
	if err := os.Chown(s.Path("/squashed"), 65534, 65534); err != nil {
		t.Fatal(err)
	}
	pv := mustProvision(t, p, realWishes(s, "/squashed", "4.2", "data"))
	s.Put("/squashed/ops/data/file", "of root, in nobody's directory")
	// Its users' root is nobody too, and can close it.
	if err := os.Chmod(s.Path("/squashed/ops/data"), 0); err != nil {
		t.Fatal(err)
	}
	if err := deletePV(p, pv); err != nil {
		t.Errorf("Delete: %v", err)
	}
	if got := shown(t, s.Path("/squashed")); got != "" {
		t.Errorf("left %q", got)
	}
}

// A server that falls silent in the middle costs the caller its context and
// some seconds; afterwards it goes on where it was.
func deadForReal(t *testing.T, s *nfsserver.Server) {
	p := realPlugin(t)
	pv := mustProvision(t, p, realWishes(s, "/data", "4.2", "data"))
	for i := range 300 {
		s.Put(filepath.Join("/data/ops/data", strings.Repeat("d/", i%7), "file"+strings.Repeat("x", i)[:min(i, 200)]), "x")
	}
	able, _ := volume.AsDeletable(p)
	d, err := able.NewDeleter(volume.NewSpecFromPersistentVolume(pv, false))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 6*time.Second)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- d.Delete(ctx) }()
	s.Drop()
	// It may come before the deletion has mounted the share, which then says so.
	if err := <-done; !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, mount.ErrTimedOut) {
		t.Errorf("Delete on a silent server: %v", err)
	}
	s.Pass()
	if err := deletePV(p, pv); err != nil {
		t.Errorf("Delete when it answers again: %v", err)
	}
	if got := shown(t, s.Path("/data")); got != "" {
		t.Errorf("left %q", got)
	}
}
