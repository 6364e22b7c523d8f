package hostpath

import (
	"cmp"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/sharedirs"
	"github.com/podvol/podvol/volume/validation"
)

// Parameters of a storage class, in lower case.
const (
	paramPath     = "path"
	paramSubDir   = "subdir"
	paramMode     = "mode"
	paramOnDelete = "ondelete"
)

// dirClass is what a storage class says.
type dirClass struct {
	base     Base
	dir      string // base.Path or below it; has the bookkeeping
	subDir   string // a template
	mode     uint32
	onDelete sharedirs.OnDelete
}

func (p *plugin) parseClass(parameters map[string]string) (dirClass, error) {
	given := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(parameters)) {
		low := strings.ToLower(name)
		if !slices.Contains([]string{paramPath, paramSubDir, paramMode, paramOnDelete}, low) {
			return dirClass{}, volume.Invalid("parameters."+name, "is not known; there are path, subDir, mode and onDelete")
		}
		if _, twice := given[low]; twice {
			return dirClass{}, volume.Invalid("parameters."+name, "is given twice")
		}
		given[low] = parameters[name]
	}
	config := p.config.Provision
	class := dirClass{
		dir:    filepath.Clean(config.Bases[0].Path),
		subDir: cmp.Or(given[paramSubDir], "${"+sharedirs.VolumeName+"}"),
	}
	if path := given[paramPath]; path != "" {
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
	var err error
	if class.mode, err = parseMode(given[paramMode], cmp.Or(config.Mode, defaultMode)); err != nil {
		return dirClass{}, err
	}
	class.onDelete, ok = sharedirs.ParseOnDelete(cmp.Or(given[paramOnDelete], config.OnDelete, string(sharedirs.Delete)))
	if !ok {
		return dirClass{}, volume.Invalid("parameters.onDelete", "is %q; it can be delete, archive or retain", class.onDelete)
	}
	return class, nil
}

func (c ProvisionConfig) paths() (paths []string) {
	for _, b := range c.Bases {
		paths = append(paths, b.Path)
	}
	return paths
}

// parseMode reads an octal mode; empty is the default.
func parseMode(s string, otherwise uint32) (uint32, error) {
	mode := otherwise
	if s != "" {
		given, err := strconv.ParseUint(s, 8, 32)
		if err != nil {
			return 0, volume.Invalid("parameters.mode", "is %q; it must be an octal number such as 0770", s)
		}
		mode = uint32(given)
	}
	return mode, checkMode("parameters.mode", mode)
}

// dirFor returns the path below the class's directory for a claim.
func (c *dirClass) dirFor(options volume.VolumeOptions) (string, error) {
	dir, err := sharedirs.Expand(c.subDir, map[string]string{
		sharedirs.ClaimName:      options.PVC.Name,
		sharedirs.ClaimNamespace: options.PVC.Namespace,
		sharedirs.VolumeName:     options.PVName,
	})
	if err == nil {
		err = sharedirs.CheckPath(dir)
	}
	if err != nil {
		return "", volume.Invalid("parameters.subDir", "%v", err)
	}
	return dir, nil
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
