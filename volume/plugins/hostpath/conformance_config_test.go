package hostpath_test

import (
	"maps"
	"os"
	"path/filepath"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/plugins/hostpath"
	"github.com/podvol/podvol/volume/volumetest"
)

// everywhere is below which directories all nodes of the kit have theirs.
func everywhere(t *testing.T) []string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(os.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return []string{dir, "/dev/shm"}
}

// storage is below a directory that has volumes already.
func storage(t *testing.T, name string, parameters map[string]string) volumetest.StorageCase {
	return volumetest.StorageCase{
		Name: name, Keeps: parameters["onDelete"] != "",
		Prepare: func(n *volumetest.Node) {
			n.Write(map[string]string{"team/notes": "of somebody else"})
			for _, name := range []string{"marks", "parents", "staging", "trash"} {
				if err := os.MkdirAll(filepath.Join(n.Dir, ".podvol", name), 0o700); err != nil {
					t.Fatal(err)
				}
			}
		},
		Parameters: func(n *volumetest.Node) map[string]string {
			all := map[string]string{"path": n.Dir}
			maps.Copy(all, parameters)
			return all
		},
	}
}

// A plugin with all that can be opted into.
func TestConformanceWithProvisioningAndRecycling(t *testing.T) {
	config := hostpath.Config{Recycle: hostpath.RecycleConfig{Below: everywhere(t), Action: hostpath.RecycleDelete}}
	for _, dir := range config.Recycle.Below {
		config.Provision.Bases = append(config.Provision.Bases, hostpath.Base{Path: dir})
	}
	given := func(n *volumetest.Node) *volume.Spec { return persistent(filepath.Join(n.Dir, "there")) }
	write := func(n *volumetest.Node) { n.Write(map[string]string{"there/file": "data"}) }
	files := map[string]volumetest.File{"file": {Content: "data"}}
	volumetest.Run(t, func() volume.VolumePlugin { return hostpath.New(config) }, volumetest.Suite{
		Working: []volumetest.Case{
			{Name: "persistent", Spec: given, Prepare: write, Shared: true, Want: volumetest.Want{Files: files}},
			{Name: "inline", Spec: func(n *volumetest.Node) *volume.Spec {
				return inline(filepath.Join(n.Dir, "there"), v1.HostPathDirectory)
			}, Prepare: write, Shared: true, Want: volumetest.Want{Files: files}},
		},
		Storage: []volumetest.StorageCase{
			storage(t, "sub-directories", nil),
			storage(t, "a path for each namespace", map[string]string{"subDir": "team/${pvc.metadata.namespace}/${pvc.metadata.name}", "mode": "2770"}),
			storage(t, "archived", map[string]string{"onDelete": "archive"}),
			storage(t, "retained", map[string]string{"onDelete": "retain"}),
		},
		Waivers: []volumetest.Waiver{{Check: "delete/provisioned", Case: "retained",
			Reason: "what was retained is nobody's any more, so that not even the same claim's volume is given it again"}},
	})
}
