package hostpath

import (
	"cmp"
	"path/filepath"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/sharedirs"
	"github.com/podvol/podvol/volume/validation"
)

// dirClass is what a storage class says.
type dirClass struct {
	sharedirs.Class
	base Base
	dir  string // base.Path or below it; has the bookkeeping
}

func (p *plugin) parseClass(parameters map[string]string) (dirClass, error) {
	const mode = "mode"
	given, err := sharedirs.Parameters(parameters, "path", sharedirs.ParamSubDir, mode, sharedirs.ParamOnDelete)
	if err != nil {
		return dirClass{}, err
	}
	config := p.config.Provision
	class := dirClass{dir: filepath.Clean(config.Bases[0].Path)}
	if path := given["path"]; path != "" {
		if err := validation.CheckAbsolutePath("parameters.path", path); err != nil {
			return dirClass{}, err
		}
		class.dir = filepath.Clean(path)
	}
	var ok bool
	if class.base, ok = config.baseOf(class.dir); !ok {
		return dirClass{}, volume.Invalid("parameters.path", "is %q, which is neither a directory that this node provides volumes in nor below one; there are %v", class.dir, config.paths())
	}
	if sharedirs.InBook(class.dir) {
		return dirClass{}, volume.Invalid("parameters.path", "is %q; the name \".podvol\" is kept for podvol's own bookkeeping", class.dir)
	}
	class.Class, err = sharedirs.ParseClass(given, mode, cmp.Or(config.Mode, defaultMode), config.OnDelete)
	return class, err
}

func (c ProvisionConfig) paths() (paths []string) {
	for _, b := range c.Bases {
		paths = append(paths, b.Path)
	}
	return paths
}

// provisionable are the access modes that a directory of one node has.
func provisionable() []v1.PersistentVolumeAccessMode {
	return []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce, v1.ReadWriteOncePod}
}

// checkClaim refuses a claim that asks for what a directory of a node cannot do.
func checkClaim(options volume.VolumeOptions) error {
	if len(options.MountOptions) > 0 {
		return volume.Invalid("mountOptions", "of the storage class mean nothing for a directory that is not mounted; drop them")
	}
	return sharedirs.CheckClaim(options, sharedirs.Disk, provisionable())
}
