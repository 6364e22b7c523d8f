package image_test

import (
	"archive/tar"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/mount/host"
	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/util/testenv/ociimage"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/fakehost"
	"github.com/podvol/podvol/volume/plugins/image"
)

// What a pod sees can be neither changed nor run, whatever bits the image has, and pods and
// images share the files.
func TestKernelShowsImages(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		var images ociimage.Registry
		run := ociimage.Entry{Name: "bin/run", Content: "#!/bin/sh\n", Mode: 0o6755}
		images.Add("one:1", ociimage.Layer{Entries: []ociimage.Entry{{Name: "bin/", Type: tar.TypeDir}, run, {Name: "sh", Type: tar.TypeSymlink, Link: "/bin/sh"}}})
		images.Add("two:1", ociimage.Layer{Entries: []ociimage.Entry{{Name: "bin/", Type: tar.TypeDir}, run, {Name: "sh", Type: tar.TypeSymlink, Link: "/bin/sh"}}},
			ociimage.Layer{Entries: []ociimage.Entry{{Name: "two"}}})
		layout := t.TempDir()
		images.WriteLayout(t, layout, "r.test")
		n := &node{Host: fakehost.NewOnKernel(t, host.New(host.Config{})), config: image.Config{Layouts: []string{layout}, ReservePercent: -1, UnusedBytes: -1, UnusedFor: -1}}
		n.restart(t)
		one, two, again := fakehost.Pod("one"), fakehost.Pod("two"), fakehost.Pod("again")
		at := n.mustSetUp(t, one, "v", "r.test/one:1", v1.PullNever)
		beside := n.mustSetUp(t, two, "v", "r.test/two:1", v1.PullNever)
		n.mustSetUp(t, again, "v", "r.test/one:1", v1.PullNever)

		var s, b unix.Stat_t
		if err := errors.Join(unix.Stat(filepath.Join(at, "bin/run"), &s), unix.Stat(filepath.Join(beside, "bin/run"), &b)); err != nil || s.Mode&0o7777 != 0o755 || s.Ino != b.Ino {
			t.Errorf("mode %o, inodes %d and %d: %v", s.Mode, s.Ino, b.Ino, err)
		}
		if err := os.WriteFile(filepath.Join(at, "new"), nil, 0o600); !errors.Is(err, unix.EROFS) {
			t.Errorf("writing: %v", err)
		}
		if err := unix.Exec(filepath.Join(at, "bin/run"), []string{"run"}, nil); !errors.Is(err, unix.EACCES) {
			t.Errorf("running: %v", err)
		}
		var f unix.Statfs_t
		const want = unix.ST_RDONLY | unix.ST_NOSUID | unix.ST_NODEV | unix.ST_NOEXEC
		if err := unix.Statfs(at, &f); err != nil || f.Flags&want != want {
			t.Errorf("flags %x, %v", f.Flags, err)
		}

		n.restart(t)
		u, err := n.plugin.NewUnmounter("v", one.UID)
		if err != nil {
			t.Fatal(err)
		}
		rebuilt, err := n.plugin.ConstructVolumeSpec(t.Context(), "v", at)
		if err != nil || rebuilt.Complete || rebuilt.Spec.Volume.Image.Reference == "" {
			t.Errorf("ConstructVolumeSpec = %+v, %v", rebuilt, err)
		}
		if err := u.TearDown(t.Context()); err != nil {
			t.Fatal(err)
		}
		m, err := n.plugin.NewMounter(volume.NewSpecFromVolume(&v1.Volume{Name: "v", VolumeSource: v1.VolumeSource{Image: &v1.ImageVolumeSource{Reference: "r.test/one:1"}}}), again)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(filepath.Join(m.GetPath(), "bin/run")); err != nil {
			t.Errorf("the other pod of the image: %v", err)
		}
		n.tearDown(t, two, "v")
		n.tearDown(t, again, "v")
		n.AssertTornDown(t)
	})
}
