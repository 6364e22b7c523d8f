// Package rehearsal orders the commands that a rehearsal would have run. They come from many
// goroutines, and two rehearsals of the same manifests must print the same.
package rehearsal

import (
	"cmp"
	"slices"
	"strings"

	"github.com/podvol/podvol/examples/podvol/internal/rows"
	"github.com/podvol/podvol/mount/fakemount"
)

// SortMounts sorts calls by the volumes of their targets, in this order, and those of a target by
// their time. Targets of no volume come first: volumes are mounted from there.
func SortMounts(calls []fakemount.Call, order []rows.Key) {
	pods, volumes := make(map[string]int), make(map[string]int)
	for i, key := range order {
		volumes[string(key.Pod)+"/"+key.Volume] = i + 1
		if pod := string(key.Pod); pods[pod] == 0 {
			pods[pod] = i + 1
		}
	}
	slices.SortStableFunc(calls, func(a, b fakemount.Call) int {
		podA, volumeA := volumeAt(a.Target)
		podB, volumeB := volumeAt(b.Target)
		return cmp.Or(cmp.Compare(pods[podA], pods[podB]), cmp.Compare(volumes[podA+"/"+volumeA], volumes[podB+"/"+volumeB]), strings.Compare(a.Target, b.Target))
	})
}

// volumeAt is the pod's UID and the volume's name in a path …/pods/UID/volumes/PLUGIN/NAME….
func volumeAt(path string) (pod, volume string) {
	parts := strings.Split(path, "/")
	i := slices.Index(parts, "pods")
	if i < 0 || i+1 >= len(parts) {
		return "", ""
	}
	if i+4 < len(parts) {
		volume = parts[i+4]
	}
	return parts[i+1], volume
}

// SortFiles sorts commands by the path at their end, so that a directory is made before what is in
// it, and those of a path by their time.
func SortFiles(commands []string) {
	path := func(command string) string { return command[strings.LastIndexByte(command, ' ')+1:] }
	slices.SortStableFunc(commands, func(a, b string) int { return strings.Compare(path(a), path(b)) })
}
