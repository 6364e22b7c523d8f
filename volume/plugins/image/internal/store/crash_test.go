package store_test

import (
	"archive/tar"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/podvol/podvol/util/testenv/calltrace"
	"github.com/podvol/podvol/util/testenv/ociimage"
	"github.com/podvol/podvol/util/testenv/testtool"
	"github.com/podvol/podvol/volume/plugins/image/internal/oci"
	"github.com/podvol/podvol/volume/plugins/image/internal/store"
)

const crashDirVar = "PODVOL_IMAGE_CRASH_DIR"

// site is a directory with a layout and a store.
type site string

func (s site) layout() oci.Layout { return oci.Layout{Dir: filepath.Join(string(s), "layout")} }

func (s site) root() string { return filepath.Join(string(s), "store") }

func (s site) open() *store.Store {
	return &store.Store{Dir: filepath.Join(s.root(), "image"), Limits: store.Limits{Bytes: 1 << 20, Entries: 100, Layers: 10},
		Mounted: func() ([]string, error) { return nil, nil }}
}

// use pulls the image, and records its use.
func (s site) use(ctx context.Context, st *store.Store) (store.Image, error) {
	ref, err := oci.Parse("r.test/web:1")
	if err != nil {
		return store.Image{}, err
	}
	unlock, err := st.Lock(ctx)
	if err != nil {
		return store.Image{}, err
	}
	defer unlock()
	found, err := oci.Resolve(ctx, s.layout(), ref, oci.Platform{})
	if err != nil {
		return store.Image{}, err
	}
	image, err := st.Pull(ctx, s.layout(), ref, found)
	if err == nil {
		err = st.AddName(ctx, image, ref.String(), store.Everyone)
	}
	if err == nil {
		err = st.Use(image, ref.At(image.Digest).String(), "uid", "v")
	}
	return image, err
}

func (s site) release(ctx context.Context, st *store.Store) error {
	released := st.Release(ctx, "uid", "v")
	_, err := st.Collect(ctx)
	return errors.Join(released, err)
}

// TestCrashScenario is what TestKilledAtEverySystemCall starts.
func TestCrashScenario(t *testing.T) {
	s := site(os.Getenv(crashDirVar))
	if s == "" {
		return
	}
	st := s.open()
	if _, err := s.use(t.Context(), st); err != nil {
		t.Fatal(err)
	}
	if err := s.release(t.Context(), st); err != nil {
		t.Fatal(err)
	}
}

// assertWhole looks whether an image that counts as complete is.
func assertWhole(t *testing.T, st *store.Store, when string) (has bool) {
	t.Helper()
	ref, err := oci.Parse("r.test/web:1")
	if err != nil {
		t.Fatal(err)
	}
	image, has, err := st.Find(ref)
	if err != nil {
		t.Fatal(err)
	}
	if !has {
		return false
	}
	for name, want := range map[string]string{"d/a": "1", "d/b": "2", "c": "3"} {
		if got, err := os.ReadFile(filepath.Join(st.ImageDir(image.Digest), name)); err != nil || string(got) != want {
			t.Errorf("%s: %s is %q, %v", when, name, got, err)
		}
	}
	return true
}

// A process that pulls, uses and removes an image is killed before or after each call that
// changes something. What is complete for the next one is whole, and in the end nothing is left.
func TestKilledAtEverySystemCall(t *testing.T) {
	every := 1
	if testtool.Shortened() {
		every = 7
	}
	var images ociimage.Registry
	images.Add("web:1", ociimage.Layer{Entries: []ociimage.Entry{{Name: "d/", Type: tar.TypeDir}, {Name: "d/a", Content: "1"}, {Name: "d/b", Content: "1"}}},
		ociimage.Layer{Entries: []ociimage.Entry{{Name: "d/b", Content: "2"}, {Name: "c", Content: "3"}}})
	n := 1
	for ; killOnce(t, &images, calltrace.Point{N: n, After: n/every%2 == 0}); n += every {
		if t.Failed() {
			return
		}
	}
	t.Logf("killed at %d of %d system calls", n/every, n)
	if n < 40 {
		t.Errorf("the scenario has only %d system calls that change something", n)
	}
}

func killOnce(t *testing.T, images *ociimage.Registry, at calltrace.Point) (killed bool) {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	s := site(dir)
	images.WriteLayout(t, s.layout().Dir, "r.test")
	if err := os.Mkdir(s.root(), 0o700); err != nil {
		t.Fatal(err)
	}
	killed, call := calltrace.Process{Args: []string{"-test.run=^TestCrashScenario$", "-test.timeout=5m"}, Env: []string{crashDirVar + "=" + dir}}.RunUntil(t, at, calltrace.ChangesBelow(s.root()))
	defer func() {
		if t.Failed() {
			t.Logf("killed %v: %s", at, call)
		}
	}()
	st := s.open()
	whole := assertWhole(t, st, "after the kill")
	if _, ref, err := st.Used("uid", "v"); err != nil || ref != "" && !whole {
		t.Errorf("after the kill %q is used, and not there: %v", ref, err)
	}
	if _, err := s.use(t.Context(), st); err != nil {
		t.Fatal(err)
	}
	if !assertWhole(t, st, "pulled again") {
		t.Error("the image that was pulled is not found")
	}
	if err := s.release(t.Context(), st); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(s.root()); err != nil && !errors.Is(err, fs.ErrNotExist) || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	return killed
}
