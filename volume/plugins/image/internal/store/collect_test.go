package store_test

import (
	"archive/tar"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/podvol/podvol/util/testenv/ociimage"
	"github.com/podvol/podvol/volume/plugins/image/internal/oci"
	"github.com/podvol/podvol/volume/plugins/image/internal/store"
)

// twoTrees has two images of one layer with three directories, of which the other layers are empty.
func twoTrees(t *testing.T) site {
	t.Helper()
	s := site(t.TempDir())
	var images ociimage.Registry
	base := ociimage.Layer{Entries: []ociimage.Entry{{Name: "a/", Type: tar.TypeDir}, {Name: "a/b/", Type: tar.TypeDir}, {Name: "c/f", Content: "f"}}}
	images.Add("web:1", base)
	images.Add("other:1", base, ociimage.Layer{Entries: []ociimage.Entry{{Name: "g"}}})
	images.WriteLayout(t, s.layout().Dir, "r.test")
	return s
}

func (s site) pullOther(t *testing.T, st *store.Store) string {
	t.Helper()
	unlock, err := st.Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	ref := oci.Reference{Domain: "r.test", Path: "other", Tag: "1"}
	found, err := oci.Resolve(t.Context(), s.layout(), ref, oci.Platform{})
	if err != nil {
		t.Fatal(err)
	}
	image, err := st.Pull(t.Context(), s.layout(), ref, found)
	if err != nil {
		t.Fatal(err)
	}
	return st.ImageDir(image.Digest)
}

// The tree of an image takes room, also where a pod uses all of its layers by another image.
func TestUnusedTreesCount(t *testing.T) {
	for budget, stays := range map[int64]bool{3*4096 - 1: false, 3 * 4096: true} {
		s := twoTrees(t)
		st := s.open()
		st.Limits.UnusedBytes = budget
		if _, err := s.use(t.Context(), st); err != nil {
			t.Fatal(err)
		}
		tree := s.pullOther(t, st)
		if _, err := st.Collect(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(filepath.Join(tree, "a/b")); (err == nil) != stays {
			t.Errorf("with %d bytes: %v", budget, err)
		}
	}
}

// Where nothing unused is kept, images without bytes and directories are not either.
func TestEmptyImagesGo(t *testing.T) {
	s := site(t.TempDir())
	var images ociimage.Registry
	images.Add("other:1", ociimage.Layer{Entries: []ociimage.Entry{{Name: "f"}}})
	images.WriteLayout(t, s.layout().Dir, "r.test")
	st := s.open()
	s.pullOther(t, st)
	if _, err := st.Collect(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(s.root()); err == nil {
		t.Error("it stays")
	}
}

// What a clock that was wrong has dated to a time to come is not kept until then.
func TestTimesToCome(t *testing.T) {
	s := twoTrees(t)
	st := s.open()
	st.Limits.UnusedFor = time.Hour
	tree := s.pullOther(t, st)
	if _, err := st.Collect(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(tree); err != nil {
		t.Errorf("soon after its use: %v", err)
	}
	synctest.Test(t, func(t *testing.T) { // where it is the year 2000
		if _, err := st.Collect(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
	if _, err := os.Stat(tree); err == nil {
		t.Error("it stays")
	}
}

// An image is known by its mount, when the record of its use is lost, also where a container
// has a directory "images" of it.
func TestMountedBySubPath(t *testing.T) {
	for _, below := range []string{"", "/images/f", "/a/images/b/c"} {
		s := twoTrees(t)
		st := s.open()
		tree := s.pullOther(t, st)
		st.Mounted = func() ([]string, error) { return []string{"/srv/images/x", tree + below}, nil }
		if _, err := st.Collect(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(tree); err != nil {
			t.Errorf("mounted with %q: %v", below, err)
		}
	}
}

// While a pull goes on nothing is removed, and it is looked again soon.
func TestPullsAreNotDisturbed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := site(t.TempDir())
		st := s.open()
		unlock, err := st.Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		making := filepath.Join(st.Dir, "tmp", "layers-1")
		if err := os.Mkdir(making, 0o700); err != nil {
			t.Fatal(err)
		}
		next, err := st.Collect(t.Context())
		if _, gone := os.Stat(making); err != nil || gone != nil || time.Until(next) != time.Minute {
			t.Errorf("during a pull: %v, %v, next at %v", err, gone, next)
		}
		unlock()
		next, err = st.Collect(t.Context())
		if _, gone := os.Stat(making); err != nil || gone == nil || !next.IsZero() {
			t.Errorf("after the pull: %v, it is there: %v, next at %v", err, gone == nil, next)
		}
	})
}
