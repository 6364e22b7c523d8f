package nfs

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/recyclerpod"
)

func archiving() Config {
	return Config{Recycle: RecycleConfig{Embedded: EmbeddedRecycling{
		Enabled: true, Action: RecycleArchive, ArchiveShare: "/exports", ArchiveDir: "old/archive",
	}}}
}

func TestEmbeddedRecyclerArchives(t *testing.T) {
	// In real time a slow disk has it ask again: an answer is good for a second.
	synctest.Test(t, func(t *testing.T) {
		p, fake, _, asked := newEmbedded(t, archiving())
		share := t.TempDir()
		fake.Serve("10.0.0.1:/exports", share)
		write(t, share, "pv1/a", "pv1/.hidden", "pv1/d/b", "pv2/kept")
		spec := releasedSpec(func(pv *v1.PersistentVolume) { pv.Spec.NFS.Path = "/exports/pv1" })
		heard, err := recycle(t, p, spec)
		archive := "old/archive/pv1-" + recyclerpod.ReleaseID(spec.PersistentVolume)
		if err != nil || !heard.contain("10.0.0.1:/exports/"+archive) || !heard.contain("3 entries moved") {
			t.Errorf("%q, %v", heard, err)
		}
		wantFiles(t, share, archive+"/.hidden", archive+"/a", archive+"/d/b", "pv2/kept")
		if info, err := os.Stat(filepath.Join(share, "old")); err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("the archive is open to others: %v, %v", info.Mode(), err)
		}
		if n := asked.asked.Load(); n != 2 {
			t.Errorf("VerifyReleased was asked %d times", n)
		}
		workIsGone(t, p, fake)

		// A volume that the server exports from elsewhere is not the directory of
		// that name.
		elsewhere := t.TempDir()
		fake.Serve("10.0.0.1:/exports/pv2", elsewhere)
		write(t, elsewhere, "kept")
		_, err = recycle(t, p, releasedSpec(func(pv *v1.PersistentVolume) { pv.Spec.NFS.Path = "/exports/pv2" }))
		if err == nil || !strings.Contains(err.Error(), "not the same directory") {
			t.Errorf("Recycle = %v", err)
		}
		wantFiles(t, elsewhere, "kept")
		workIsGone(t, p, fake)
	})
}

func TestArchiveIsNeverSeenByTheNextClaim(t *testing.T) {
	for _, path := range []string{"/exports", "/", "/other/pv1", "/exports/old", "/exports/old/archive", "/exports/old/archive/pv0"} {
		p, fake, _, _ := newEmbedded(t, archiving())
		_, err := recycle(t, p, releasedSpec(func(pv *v1.PersistentVolume) { pv.Spec.NFS.Path = path }))
		if _, ok := errors.AsType[*volume.InvalidSpecError](err); !ok || len(fake.Calls()) > 0 {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// Whoever can write into the share does not choose where the archive is.
func TestArchiveIsNotReachedThroughLinks(t *testing.T) {
	p, fake, _, _ := newEmbedded(t, archiving())
	share := t.TempDir()
	fake.Serve("10.0.0.1:/exports", share)
	write(t, share, "pv1/kept", "pv2/x")
	if err := os.Symlink("pv2", filepath.Join(share, "old")); err != nil {
		t.Fatal(err)
	}
	_, err := recycle(t, p, releasedSpec(func(pv *v1.PersistentVolume) { pv.Spec.NFS.Path = "/exports/pv1" }))
	if err == nil {
		t.Error("a link was followed")
	}
	wantFiles(t, share, "old", "pv1/kept", "pv2/x")
}

// Nor does whoever made the directory first, or may write in it.
func TestArchiveIsNotInSomebodysDirectory(t *testing.T) {
	p, fake, _, _ := newEmbedded(t, archiving())
	share := t.TempDir()
	fake.Serve("10.0.0.1:/exports", share)
	write(t, share, "pv1/kept", "old/archive/x")
	if err := os.Chmod(filepath.Join(share, "old"), 0o777); err != nil {
		t.Fatal(err)
	}
	_, err := recycle(t, p, releasedSpec(func(pv *v1.PersistentVolume) { pv.Spec.NFS.Path = "/exports/pv1" }))
	if err == nil || !strings.Contains(err.Error(), "chmod go-w") {
		t.Errorf("Recycle = %v", err)
	}
	wantFiles(t, share, "old/archive/x", "pv1/kept")
	workIsGone(t, p, fake)
}
