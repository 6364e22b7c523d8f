package volumemanager_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/volumemanager"
)

func TestVolumesWithoutRecordAreNotTakenOver(t *testing.T) {
	const pod = "pods/uid-web/"
	for name, tc := range map[string]struct {
		make    func(w *world) error
		refused bool
	}{
		"contents": {func(w *world) error {
			dir := filepath.Join(w.root, pod+"volumes/kubernetes.io~nfs/v")
			return errors.Join(os.MkdirAll(dir, 0o750), os.WriteFile(filepath.Join(dir, "data"), nil, 0o600))
		}, true},
		"mount": {func(w *world) error {
			dir := filepath.Join(w.root, pod+"volumes/kubernetes.io~nfs/v")
			return errors.Join(os.MkdirAll(dir, 0o750), mount.Mount(t.Context(), w.fake, mount.Request{Source: "10.0.0.1:/nfs", Target: dir, FSType: "nfs"}))
		}, true},
		"marks": {func(w *world) error {
			marks := filepath.Join(w.root, pod+"plugins/kubernetes.io~nfs/v")
			return errors.Join(os.MkdirAll(filepath.Join(w.root, pod+"volumes/kubernetes.io~nfs/v"), 0o750),
				os.MkdirAll(marks, 0o750), os.WriteFile(filepath.Join(marks, "ready"), nil, 0o600))
		}, true},
		"file": {func(w *world) error {
			dir := filepath.Join(w.root, pod+"volumes/kubernetes.io~nfs")
			return errors.Join(os.MkdirAll(dir, 0o750), os.WriteFile(filepath.Join(dir, "v"), nil, 0o600))
		}, true},
		"an empty directory": {func(w *world) error {
			return os.MkdirAll(filepath.Join(w.root, pod+"volumes/kubernetes.io~nfs/v"), 0o750)
		}, false},
		"another volume": {func(w *world) error {
			return os.MkdirAll(filepath.Join(w.root, pod+"volumes/kubernetes.io~nfs/w/data"), 0o750)
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			manager, _ := w.start()
			if err := tc.make(w); err != nil {
				t.Fatal(err)
			}
			before := len(w.fake.Calls())
			_, err := manager.SetUpPod(t.Context(), newPod("web", nfsVolume("v", "10.0.0.1")))
			unrecorded, refused := errors.AsType[*volume.Failure](err)
			if refused != tc.refused || (err != nil) != tc.refused || refused && !errors.Is(err, volumemanager.ErrNoRecord) {
				t.Fatalf("err = %v", err)
			}
			if !refused {
				return
			}
			if _, err := os.Lstat(unrecorded.Subject); err != nil {
				t.Errorf("what was found is gone: %v", err)
			}
			if err := manager.TearDownPod(t.Context(), "uid-web"); err != nil {
				t.Error(err)
			}
			if _, err := os.Lstat(unrecorded.Subject); err != nil || len(w.records()) > 0 || len(w.fake.Calls()) != before {
				t.Errorf("it was touched: %v, %v, %v", err, w.records(), w.fake.Calls())
			}
		})
	}
}
