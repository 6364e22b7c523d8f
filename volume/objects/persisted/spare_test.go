package persisted_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/util/durable"
	"github.com/podvol/podvol/util/testenv/pvbuild"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/objects/persisted"
)

// fullDisk has no room but what the directory's files give up.
type fullDisk struct {
	persisted.DurableDisk
	had int64
}

func (d *fullDisk) WriteFile(path string, data []byte, perm fs.FileMode) error {
	if sizeOf(filepath.Dir(path)) >= d.had {
		return &durable.Error{Op: "write", Path: path, Err: unix.ENOSPC}
	}
	return d.DurableDisk.WriteFile(path, data, perm)
}

func sizeOf(dir string) (size int64) {
	files, err := os.ReadDir(dir)
	if err != nil {
		return 0
	}
	for _, file := range files {
		if info, err := file.Info(); err == nil {
			size += info.Size()
		}
	}
	return size
}

// Nothing can be made on a full disk, but claims can be deleted from it, which
// makes room: that must not need any first.
func TestClaimsCanBeDeletedFromAFullDisk(t *testing.T) {
	dir := pvbuild.MemoryDir(t)
	r, err := persisted.Open(t.Context(), objects.NewStore(), dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Create(t.Context(), pvbuild.NewClaim("data", "1Gi", func(c *v1.PersistentVolumeClaim) { c.Finalizers = []string{"kubernetes.io/pvc-protection"} })); err != nil {
		t.Fatal(err)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if r, err = persisted.OpenOn(t.Context(), objects.NewStore(), dir, &fullDisk{had: sizeOf(dir)}); err != nil {
		t.Fatalf("the records of a full disk cannot be read: %v", err)
	}
	if _, err := r.Create(t.Context(), pvbuild.NewClaim("other", "1Gi")); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("what is kept for deletions is given to what is made: %v", err)
	}
	ref := volume.NewObjectRef("PersistentVolumeClaim", "ops", "data")
	if err := r.Delete(t.Context(), ref, objects.Preconditions{}); err != nil {
		t.Fatal(err)
	}
	claim, err := objects.Get[*v1.PersistentVolumeClaim](t.Context(), r, ref)
	if err != nil {
		t.Fatal(err)
	}
	claim = claim.DeepCopy()
	claim.Finalizers = nil
	if _, err := r.Update(t.Context(), claim); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Get(t.Context(), ref); !errors.Is(err, volume.ErrNotFound) {
		t.Errorf("the claim is still there: %v", err)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if r, err = persisted.Open(t.Context(), objects.NewStore(), dir); err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if got := sizeOf(dir); got < 256<<10 {
		t.Errorf("%d bytes are kept for the next time", got)
	}
}
