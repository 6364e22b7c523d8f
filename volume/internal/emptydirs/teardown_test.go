package emptydirs_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/volume/internal/emptydirs"
)

func TestTearDownKeepsWhatIsMountedBelow(t *testing.T) {
	b := newBench(t)
	b.setUp(emptydirs.Options{})
	file := b.write("file")
	nested := filepath.Join(b.dir, "nested")
	if err := os.Mkdir(nested, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := b.fake.Mount("tmpfs", nested, "tmpfs", nil); err != nil {
		t.Fatal(err)
	}
	precious := b.write("nested/precious")
	err := emptydirs.TearDown(t.Context(), b.v, b.dir, false, nil)
	e, ok := errors.AsType[*emptydirs.NestedMountError](err)
	if !ok || !slices.Equal(e.Mounts, []string{nested}) || !strings.Contains(err.Error(), nested) {
		t.Errorf("TearDown = %v", err)
	}
	b.wantData(file)
	b.wantData(precious)
	b.wantReady(true, false)
	if err := b.fake.Unmount(nested); err != nil {
		t.Fatal(err)
	}
	b.tearDown(false)
	b.wantNothing()
}

func TestTearDownTakesEveryMountOff(t *testing.T) {
	b := newBench(t)
	b.setUp(emptydirs.Options{Medium: memory})
	if err := b.fake.Mount("tmpfs", b.dir, "tmpfs", nil); err != nil {
		t.Fatal(err)
	}
	b.wantMounts(2)
	b.tearDown(false)
	b.wantNothing()
}

func TestTearDownWhileBusy(t *testing.T) {
	b := newBench(t)
	b.setUp(emptydirs.Options{Medium: memory})
	file := b.write("file")
	remove := b.fake.Inject(fakemount.Fault{Err: unix.EBUSY})
	if err := emptydirs.TearDown(t.Context(), b.v, b.dir, false, nil); !errors.Is(err, unix.EBUSY) {
		t.Errorf("TearDown = %v", err)
	}
	b.wantData(file)
	remove()
	b.tearDown(false)
	b.wantNothing()
}

func TestInterruptedTearDownIsFinished(t *testing.T) {
	b := newBench(t)
	b.setUp(emptydirs.Options{})
	// A crash after the rename, before the contents were gone; then the same
	// pod again.
	b.write("old/file")
	doomed := filepath.Join(filepath.Dir(b.dir), "deleting~vol")
	if err := os.Rename(b.dir, doomed); err != nil {
		t.Fatal(err)
	}
	b.setUp(emptydirs.Options{})
	if entries, err := os.ReadDir(b.dir); err != nil || len(entries) != 0 {
		t.Errorf("the new volume holds %v (%v)", entries, err)
	}
	b.write("new")
	b.tearDown(false)
	b.wantNothing()
}

func TestTearDownOfALeftoverByItsOwnName(t *testing.T) {
	b := newBench(t)
	b.v.Name = "deleting~vol"
	b.dir = b.v.GetPath()
	b.write("old/file")
	b.tearDown(false)
	entries, err := os.ReadDir(filepath.Dir(b.dir))
	if err != nil || len(entries) != 0 {
		t.Errorf("left: %v (%v)", entries, err)
	}
}

func TestTearDownStopsWithItsContext(t *testing.T) {
	b := newBench(t)
	b.setUp(emptydirs.Options{})
	b.write("file")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := emptydirs.TearDown(ctx, b.v, b.dir, false, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("TearDown = %v", err)
	}
	b.tearDown(false)
	b.wantNothing()
}

func TestTearDownRemovesLinksNotTheirTargets(t *testing.T) {
	b := newBench(t)
	b.setUp(emptydirs.Options{})
	outside := filepath.Join(t.TempDir(), "outside")
	if err := os.WriteFile(outside, []byte("data"), 0o644); err != nil {
		t.Fatal(err)
	}
	for name, target := range map[string]string{"file": outside, "dir": filepath.Dir(outside)} {
		if err := os.Symlink(target, filepath.Join(b.dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	b.tearDown(false)
	b.wantNothing()
	b.wantData(outside)
}
