package volumemanager

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/plugins"
)

// Without its record a volume is not touched, and with a record that cannot
// be removed it is not gone.
func TestRecordsThatCannotBeWritten(t *testing.T) {
	fake := fakemount.New()
	defer fake.Close()
	manager, err := New(Config{
		RootDir: filepath.Join(t.TempDir(), "root"), NodeName: "n", Objects: objects.NewStore(), Plugins: plugins.All(), Mounter: fake,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- manager.Run(ctx) }()
	share := v1.Volume{Name: "v", VolumeSource: v1.VolumeSource{NFS: &v1.NFSVolumeSource{Server: "10.0.0.1", Path: "/nfs"}}}
	pod := func(uid types.UID) *v1.Pod {
		return &v1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: uid},
			Spec:       v1.PodSpec{Volumes: []v1.Volume{share}, Containers: []v1.Container{{Name: "c", VolumeMounts: []v1.VolumeMount{{Name: "v", MountPath: "/v"}}}}},
		}
	}
	if _, err := manager.SetUpPod(ctx, pod("uid-1")); err != nil {
		t.Fatal(err)
	}
	if err := manager.records.Close(); err != nil {
		t.Fatal(err)
	}
	fake.ResetCalls()
	if _, err := manager.SetUpPod(ctx, pod("uid-2")); !errors.Is(err, os.ErrClosed) {
		t.Errorf("set-up without a record: %v", err)
	}
	if calls := fake.Calls(); len(calls) != 0 {
		t.Errorf("the mounter was called: %v", calls)
	}
	if err := manager.TearDownPod(ctx, "uid-1"); !errors.Is(err, os.ErrClosed) {
		t.Errorf("tear-down that leaves its record: %v", err)
	}
	rows := manager.Explain()
	if len(rows) != 2 || rows[0].PodUID != "uid-1" || rows[0].State != StateFailed || rows[0].Wanted || !rows[1].Wanted {
		t.Errorf("rows = %+v", rows)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// A pod without volumes leaves nothing behind when it is deleted.
func TestPodsWithoutVolumesAreForgotten(t *testing.T) {
	manager, err := New(Config{RootDir: filepath.Join(t.TempDir(), "root"), NodeName: "n", Objects: objects.NewStore(), Plugins: plugins.All(), Mounter: fakemount.New()})
	if err != nil {
		t.Fatal(err)
	}
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: "u"}, Spec: v1.PodSpec{Containers: []v1.Container{{Name: "c"}}}}
	if err := manager.PutPod(pod); err != nil {
		t.Fatal(err)
	}
	manager.DeletePod("u")
	if len(manager.entries.pods) != 0 {
		t.Errorf("%d pods are known", len(manager.entries.pods))
	}
}
