package containermounts

import (
	"path/filepath"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/util/subpath"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/downward"
)

// SubPaths are the parts of one volume of a pod that are bound for its containers.
type SubPaths struct {
	PodUID types.UID
	// Spec is the name of the volume's spec: of a claim, its PersistentVolume's.
	Spec string
}

// Dir returns the directory below a root directory that they are bound in: the
// kubelet's layout, in which a volume's plugin is no part of its name.
func (s SubPaths) Dir(rootDir string) string {
	return filepath.Join(podsDir(rootDir), string(s.PodUID), "volume-subpaths", s.Spec)
}

func podsDir(rootDir string) string { return filepath.Join(rootDir, "pods") }

// subPath is the part of a volume that a volumeMount asks for, expanded; empty:
// the whole volume.
func (c *container) subPath(i int) (string, error) {
	asked := &c.spec.VolumeMounts[i]
	path, field := asked.SubPath, c.mountField(i)+".subPath"
	if asked.SubPathExpr != "" {
		var missing []string
		field += "Expr"
		path, missing = downward.Expand(asked.SubPathExpr, downward.Map(c.options.Env))
		switch {
		case len(missing) > 0:
			return "", volume.Invalid(field, "%q needs the environment variable %s, which container %q does not have", asked.SubPathExpr, strings.Join(missing, ", "), c.spec.Name)
		case path == "":
			return "", volume.Invalid(field, "%q expands to nothing, which would be the whole volume; give its variables values", asked.SubPathExpr)
		}
	}
	if path == "" {
		return "", nil
	}
	if err := subpath.Check(path); err != nil {
		return "", volume.Invalid(field, "%v", err)
	}
	return filepath.Clean(path), nil
}

// fileIdentity tells a file from every other one that exists at the same time.
type fileIdentity struct {
	device, inode uint64
	dir           bool
}
