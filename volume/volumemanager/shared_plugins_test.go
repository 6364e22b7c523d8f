package volumemanager_test

import (
	"errors"
	"os"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/plugins"
	"github.com/podvol/podvol/volume/volumemanager"
)

// A manager whose plugins another one has taken over mounts nothing below the other's
// root directory, whichever plugin it is. Who has them by then goes on.
func TestPluginsOfAnotherManagerByNow(t *testing.T) {
	for _, source := range []v1.VolumeSource{
		{EmptyDir: &v1.EmptyDirVolumeSource{}},
		{ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: v1.LocalObjectReference{Name: "none"}, Optional: new(true)}},
		{HostPath: &v1.HostPathVolumeSource{Path: t.TempDir()}},
		{NFS: &v1.NFSVolumeSource{Server: "nfs", Path: "/exports"}},
	} {
		all := plugins.All()
		manager := func() (*world, *volumemanager.Manager) {
			w := newWorld(t)
			w.plugins = func() []volume.VolumePlugin { return all }
			m, _ := w.start()
			return w, m
		}
		pod := func(name string) *v1.Pod { return newPod(name, v1.Volume{Name: "v", VolumeSource: source}) }
		_, first := manager()
		if _, err := first.SetUpPod(t.Context(), pod("before")); err != nil {
			t.Fatal(err)
		}
		other, second := manager()
		_, err := first.SetUpPod(t.Context(), pod("late"))
		if !errors.Is(err, volume.ErrSharedPlugin) || volume.IsUncertain(err) {
			t.Errorf("%v: %v", source, err)
		}
		if entries, err := os.ReadDir(other.root + "/pods"); err == nil && len(entries) > 0 {
			t.Errorf("%v: below the other root directory is %v", source, entries)
		}
		if _, err := second.SetUpPod(t.Context(), pod("theirs")); err != nil {
			t.Errorf("%v: the other manager: %v", source, err)
		}
	}
}
