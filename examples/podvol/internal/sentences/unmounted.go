package sentences

import (
	"io"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/examples/podvol/internal/choice"
	"github.com/podvol/podvol/examples/podvol/internal/table"
	"github.com/podvol/podvol/volume/volumemanager"
)

// TellUnmounted says which of the wanted volumes a node that stops leaves unmounted.
func TellUnmounted(w io.Writer, volumes []volumemanager.VolumeStatus) {
	var names []string
	pods := make(map[types.UID]bool)
	for _, v := range volumes {
		if v.Wanted && v.State != volumemanager.StateMounted && v.State != volumemanager.StateUnused {
			names, pods[v.PodUID] = append(names, v.Pod.String()+" "+v.Volume), true
		}
	}
	if len(names) == 0 {
		return
	}
	slices.Sort(names)
	table.Sentence(w, "podvol: %s of %s not mounted, for the next start to try again: %s", Number(len(names), "volume"), Number(len(pods), "pod"), choice.Few(names))
}
