package store_test

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/podvol/podvol/util/testenv/ociimage"
	"github.com/podvol/podvol/volume/plugins/image/internal/oci"
	"github.com/podvol/podvol/volume/plugins/image/internal/store"
)

// Processes that share the directory, and pulls from several repositories, make the same layer
// and image at once. None of them takes away what another has just made.
func TestMadeAtOnce(t *testing.T) {
	dir := t.TempDir()
	s := site(dir)
	var images ociimage.Registry
	images.Add("web:1", ociimage.Layer{Entries: []ociimage.Entry{{Name: "d/a", Content: "1"}, {Name: "d/b", Content: "2"}, {Name: "c", Content: "3"}}})
	images.WriteLayout(t, s.layout().Dir, "r.test")
	named, err := oci.Parse("r.test/web:1")
	if err != nil {
		t.Fatal(err)
	}
	found, err := oci.Resolve(t.Context(), s.layout(), named, oci.Platform{})
	if err != nil {
		t.Fatal(err)
	}
	for round := range 20 {
		root := filepath.Join(dir, fmt.Sprint("store", round))
		var pulls sync.WaitGroup
		for i := range 8 {
			pulls.Go(func() {
				st := s.open()
				st.Dir = root
				if err := pullAndRead(t, st, s.layout(), oci.Reference{Domain: "r.test", Path: fmt.Sprint("p", i), Tag: "1"}, found); err != nil {
					t.Errorf("round %d, pull %d: %v", round, i, err)
				}
			})
		}
		pulls.Wait()
	}
}

func pullAndRead(t *testing.T, st *store.Store, from oci.Fetcher, ref oci.Reference, found oci.Image) error {
	unlock, err := st.Lock(t.Context())
	if err != nil {
		return err
	}
	defer unlock()
	image, err := st.Pull(t.Context(), from, ref, found)
	for _, name := range []string{"d/a", "d/b", "c"} {
		if err == nil {
			_, err = os.Stat(filepath.Join(st.ImageDir(image.Digest), name))
		}
	}
	return err
}
