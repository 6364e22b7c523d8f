package nfs_test

import (
	"maps"
	"os"
	"path/filepath"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/plugins/nfs"
	"github.com/podvol/podvol/volume/volumetest"
)

// storage is on a share that has volumes already.
func storage(t *testing.T, name string, parameters map[string]string) volumetest.StorageCase {
	return volumetest.StorageCase{
		Name: name, Keeps: parameters["onDelete"] != "", NoKernel: "no NFS server is there",
		Prepare: func(n *volumetest.Node) {
			n.Serve("10.0.0.1:/export", map[string]string{"team/notes": "of somebody else"})
			makeBook(t, n.Dir)
		},
		Parameters: func(*volumetest.Node) map[string]string {
			all := map[string]string{"server": "10.0.0.1", "share": "/export"}
			maps.Copy(all, parameters)
			return all
		},
	}
}

// makeBook makes the bookkeeping that the first volume of a share leaves.
func makeBook(t *testing.T, dir string) {
	t.Helper()
	for _, name := range []string{"marks", "parents", "staging", "trash"} {
		if err := os.MkdirAll(filepath.Join(dir, ".podvol", name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
}

func TestConformance(t *testing.T) { conform(t, nfs.Config{}) }

// A plugin that empties volumes itself needs nobody to run pods.
func TestConformanceWithTheEmbeddedRecycler(t *testing.T) {
	conform(t, nfs.Config{Recycle: nfs.RecycleConfig{Embedded: nfs.EmbeddedRecycling{Enabled: true, Action: nfs.RecycleDelete}}})
}

func conform(t *testing.T, config nfs.Config) {
	source := v1.NFSVolumeSource{Server: "10.0.0.1", Path: "/export"}
	serve := func(n *volumetest.Node) { n.Serve("10.0.0.1:/export", map[string]string{"index.html": "hello"}) }
	files := map[string]volumetest.File{"index.html": {Content: "hello"}}
	volumetest.Run(t, func() volume.VolumePlugin { return nfs.New(config) }, volumetest.Suite{
		Working: []volumetest.Case{
			{
				Name: "inline", Spec: volumetest.Inline(v1.VolumeSource{NFS: &source}), Prepare: serve, Shared: true,
				Want:     volumetest.Want{Files: files, Mount: &volumetest.Mount{Source: "10.0.0.1:/export", FSType: "nfs"}},
				NoKernel: "no NFS server is there",
			},
			{
				Name: "persistent", Spec: volumetest.Persistent(v1.PersistentVolumeSource{NFS: &source}, true), Prepare: serve, Shared: true,
				Want:     volumetest.Want{Files: files, ReadOnly: true, Mount: &volumetest.Mount{FSType: "nfs", Options: []string{"ro"}}},
				NoKernel: "no NFS server is there",
			},
			{
				Name: "options", Prepare: serve, Shared: true, NoKernel: "no NFS server is there",
				Spec: func(*volumetest.Node) *volume.Spec {
					return persistent("10.0.0.1", "/export", func(pv *v1.PersistentVolume) { pv.Spec.MountOptions = []string{"noexec", "vers=4.1"} })
				},
				Want: volumetest.Want{Files: files, Mount: &volumetest.Mount{FSType: "nfs", Options: []string{"noexec", "vers=4.1"}}},
			},
		},
		Storage: []volumetest.StorageCase{
			storage(t, "sub-directories", nil),
			storage(t, "a path for each namespace", map[string]string{"subDir": "team/${pvc.metadata.namespace}/${pvc.metadata.name}", "mountPermissions": "0777"}),
			storage(t, "archived", map[string]string{"onDelete": "archive"}),
			storage(t, "retained", map[string]string{"onDelete": "retain"}),
		},
		Waivers: []volumetest.Waiver{{Check: "delete/provisioned", Case: "retained",
			Reason: "what was retained is nobody's any more, so that not even the same claim's volume is given it again"}},
		Refused: []volumetest.RefusedCase{
			{Name: "no server", Spec: volumetest.Inline(v1.VolumeSource{NFS: &v1.NFSVolumeSource{Path: "/export"}}), Because: "nfs.server"},
			{Name: "a relative path", Spec: volumetest.Inline(v1.VolumeSource{NFS: &v1.NFSVolumeSource{Server: "s", Path: "export"}}), Because: "nfs.path"},
		},
	})
}
