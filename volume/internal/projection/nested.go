package projection

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/util/pathin"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/fileset"
)

const nestedMode fs.FileMode = 0o755

// nestedMountPoints returns the directories, relative to the volume, at which
// containers of the pod mount other volumes inside this one. The volume is
// read-only to the container runtime, so it could not make them. A directory
// below another volume's mount point is that volume's affair.
func nestedMountPoints(volumeName string, pod *v1.Pod) ([]string, error) {
	var all []string
	for mounts := range volumeMounts(pod) {
		for _, outer := range mounts {
			if outer.Name != volumeName || outer.SubPath != "" || outer.SubPathExpr != "" {
				continue
			}
			all = append(all, mountedInside(outer, mounts)...)
		}
	}
	slices.Sort(all)
	all = slices.Compact(all)
	for _, dir := range all {
		if err := fileset.CheckPath(dir); err != nil {
			return nil, volume.Invalid("volumeMounts", "%q cannot be a mount point inside volume %q: %v", dir, volumeName, err)
		}
	}
	return all, nil
}

// volumeMounts yields the mounts of each container.
func volumeMounts(pod *v1.Pod) func(yield func([]v1.VolumeMount) bool) {
	return func(yield func([]v1.VolumeMount) bool) {
		for _, list := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
			for i := range list {
				if !yield(list[i].VolumeMounts) {
					return
				}
			}
		}
		for i := range pod.Spec.EphemeralContainers {
			if !yield(pod.Spec.EphemeralContainers[i].VolumeMounts) {
				return
			}
		}
	}
}

func mountedInside(outer v1.VolumeMount, mounts []v1.VolumeMount) (inside []string) {
	for _, inner := range mounts {
		relative, ok := pathin.Cut(inContainer(outer), inContainer(inner))
		if ok && relative != "" && !slices.ContainsFunc(mounts, func(m v1.VolumeMount) bool {
			return pathin.Strictly(inContainer(outer), inContainer(m)) && pathin.Strictly(inContainer(m), inContainer(inner))
		}) {
			inside = append(inside, relative)
		}
	}
	return inside
}

// inContainer is where a mount goes; ".." stops at the container's root.
func inContainer(m v1.VolumeMount) string { return path.Clean("/" + m.MountPath) }

// makeMountPoints makes the directories in the volume. One whose first element is
// the name of a published file or directory is left out: that one serves as the
// mount point, or the container runtime refuses it.
func makeMountPoints(dir string, mountPoints []string, files map[string]fileset.File) error {
	if len(mountPoints) == 0 {
		return nil
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	published := map[string]bool{}
	for name := range files {
		published[firstElement(name)] = true
	}
	for _, m := range mountPoints {
		if published[firstElement(m)] {
			continue
		}
		if err := makeMountPoint(root, m); err != nil {
			return fmt.Errorf("cannot make the mount point %q of another volume: %w", m, err)
		}
	}
	return nil
}

func makeMountPoint(root *os.Root, relative string) error {
	dir := ""
	for element := range strings.SplitSeq(relative, "/") {
		dir = path.Join(dir, element)
		err := root.Mkdir(dir, nestedMode)
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err == nil {
			err = root.Chmod(dir, nestedMode) // whatever the umask
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func firstElement(p string) string {
	first, _, _ := strings.Cut(p, "/")
	return first
}
