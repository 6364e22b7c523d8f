package volumemanager

import (
	"errors"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/util/below"
)

// deviceProblems are devices that are bound for pods of which neither a record
// nor a link is left.
func (m *Manager) deviceProblems(mounted mounts, known map[volumeKey]bool, dirs []volumeKey) (problems []Problem) {
	for target := range mounted.targets {
		path, ok := mounted.shown(target)
		if !ok {
			continue
		}
		rest, ok := below.Cut(filepath.Join(m.host.RootDir, "plugins"), path)
		parts := strings.Split(rest, string(filepath.Separator))
		if !ok || !slices.Contains(parts, "volumeDevices") || explains(parts, known, dirs) {
			continue
		}
		problems = append(problems, Problem{Kind: ProblemStrayMount, Path: path, PodUID: types.UID(parts[len(parts)-1]),
			Err:    errors.New("a device is bound here for a pod of which nothing else is left"),
			Advice: "When nobody needs the device: losetup -j " + path + " shows the loop device that holds it, losetup -d ends that; then umount " + path + "."})
	}
	slices.SortFunc(problems, func(a, b Problem) int { return strings.Compare(a.Path, b.Path) })
	return problems
}

// explains reports whether a volume that is known or has a link is bound at this
// path below plugins/: the pods' binds are named by their UIDs, in a directory
// of the volume; what a plugin stages, by the volume.
func explains(parts []string, known map[volumeKey]bool, dirs []volumeKey) bool {
	last := parts[len(parts)-1]
	fits := func(key volumeKey) bool {
		return slices.Contains(parts, key.spec) && (last == string(key.podUID) || last == key.spec)
	}
	for key := range known {
		if fits(key) {
			return true
		}
	}
	return slices.ContainsFunc(dirs, fits)
}
