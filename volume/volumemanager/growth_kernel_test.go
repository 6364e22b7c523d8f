package volumemanager_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/podvol/podvol/mount/host"
	"github.com/podvol/podvol/util/testenv/loopdev"
	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/volume"
)

// A file system on a disk grows under a pod that writes to it, and what was written stays.
func TestKernelFileSystemGrowsUnderItsPod(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		if !strings.HasSuffix(t.Name(), "/root") {
			return // no block devices
		}
		if _, err := exec.LookPath("mkfs.xfs"); err != nil {
			t.Log("mkfs.xfs is not there")
			return
		}
		base, err := filepath.EvalSymlinks(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		w := newWorldIn(t, base)
		w.mounter, w.resizes = host.New(host.Config{}), &resizes{store: w.store}
		disk := loopdev.New(t, 512<<20)
		claim, pv := boundPair("a", "pv-a")
		size := v1.ResourceList{v1.ResourceStorage: resource.MustParse("512Mi")}
		pv.Spec.Capacity, claim.Status.Capacity = size, size
		pv.Spec.PersistentVolumeSource = v1.PersistentVolumeSource{Local: &v1.LocalVolumeSource{Path: disk.Path, FSType: new("xfs")}}
		w.add(claim, pv)
		g := &growthWorld{world: w}
		manager, _ := w.start()
		vols, err := manager.SetUpPod(t.Context(), growthPod("one"))
		if err != nil {
			t.Fatal(err)
		}
		path, _ := vols.Path("v")
		file, err := os.Create(filepath.Join(path, "data"))
		if err != nil {
			t.Fatal(err)
		}
		write := func(text string) {
			if _, err := file.WriteString(text); err != nil {
				t.Fatal(err)
			}
		}
		write("before ")
		changed := make(chan struct{}, 8)
		defer w.store.Watch(volume.NewObjectRef("PersistentVolumeClaim", "ops-test", "a"), func(volume.ObjectRef) { changed <- struct{}{} })()
		disk.Resize(t, 1<<30)
		g.enlarge("1Gi", pending)
		for len(g.claim().Status.AllocatedResourceStatuses) > 0 {
			write("while ")
			<-changed
		}
		write("after")
		if err := file.Close(); err != nil {
			t.Fatal(err)
		}
		g.has("1Gi", "")
		var st unix.Statfs_t
		if err := unix.Statfs(path, &st); err != nil || int64(st.Blocks)*st.Bsize < 800<<20 {
			t.Errorf("it has %d MiB, %v", int64(st.Blocks)*st.Bsize>>20, err)
		}
		if data, err := os.ReadFile(filepath.Join(path, "data")); err != nil || !strings.HasPrefix(string(data), "before ") || !strings.HasSuffix(string(data), "after") {
			t.Errorf("it holds %q, %v", data, err)
		}
		mustTearDown(t, manager, growthPod("one"))
		w.assertClean()
	})
}
