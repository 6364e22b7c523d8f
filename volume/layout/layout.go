// Package layout has the names on a node's disk that plugins and tools share. They are the
// kubelet's.
package layout

import (
	"path/filepath"
	"strings"

	"k8s.io/apimachinery/pkg/types"
)

// DeletingPrefix begins the name of a directory whose contents are being removed.
// Such directories are beside the volumes. No volume's name can begin so. After a
// crash the next teardown of the volume removes the rest.
const DeletingPrefix = "deleting~"

// EscapeQualifiedName replaces the slash of a qualified name by "~". Directories
// below pods/ are named so.
func EscapeQualifiedName(name string) string { return strings.ReplaceAll(name, "/", "~") }

// UnescapeQualifiedName undoes [EscapeQualifiedName].
func UnescapeQualifiedName(name string) string { return strings.ReplaceAll(name, "~", "/") }

// podPluginDirs is the part of a volume host that knows where a pod's directory is.
type podPluginDirs interface {
	GetPodPluginDir(podUID types.UID, plugin string) string
}

// GetPodVolumeDeviceDir returns <root>/pods/<uid>/volumeDevices/<plugin~>. The
// links to the devices of a pod's block volumes are there.
func GetPodVolumeDeviceDir(host podPluginDirs, podUID types.UID, plugin string) string {
	pod := filepath.Dir(filepath.Dir(host.GetPodPluginDir(podUID, plugin)))
	return filepath.Join(pod, "volumeDevices", EscapeQualifiedName(plugin))
}
