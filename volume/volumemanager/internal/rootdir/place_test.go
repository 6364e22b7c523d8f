package rootdir

import (
	"testing"

	"k8s.io/apimachinery/pkg/types"
)

// A volume may have any name, also that of the directory that volumes are in.
func TestKeyOfPathOfAVolumeCalledVolumes(t *testing.T) {
	for _, name := range []string{"data", "volumes"} {
		want := Key{PodUID: types.UID("u"), Plugin: "kubernetes.io/nfs", Spec: name}
		if key, ok := KeyOfPath("/r", "/r/pods/u/volumes/kubernetes.io~nfs/"+name); !ok || key != want {
			t.Errorf("KeyOfPath of volume %q: %v, %v", name, key, ok)
		}
	}
}
