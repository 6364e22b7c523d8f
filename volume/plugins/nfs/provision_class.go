package nfs

import (
	"cmp"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/sharedirs"
)

// ProvisionConfig has what storage classes leave open.
type ProvisionConfig struct {
	// MountPermissions are those of a volume's directory where the class has
	// none, in Unix' bits (0o2770): read, write and search, setgid and sticky;
	// the owner must have all three of his. 0 means 0755: what csi-driver-nfs's
	// directories have in the end. It is safe, since nobody but root can write,
	// or with root_squash whom the server takes it for; pods that run as others
	// need a class with 0777, or better 2770 and the group of the share as a
	// supplemental group.
	MountPermissions uint32
	// OnDelete is what becomes of a volume's directory where the class does not
	// say it: "delete", "archive" or "retain". Empty means "delete", as with
	// csi-driver-nfs.
	OnDelete string
}

const defaultPermissions = 0o755

func (c ProvisionConfig) check() error {
	if err := checkMode("Provision.MountPermissions", cmp.Or(c.MountPermissions, defaultPermissions)); err != nil {
		return err
	}
	if _, ok := sharedirs.ParseOnDelete(c.OnDelete); c.OnDelete != "" && !ok {
		return volume.Invalid("Provision.OnDelete", "is %q; it can be delete, archive or retain", c.OnDelete)
	}
	return nil
}

// Parameters of a storage class, in lower case.
const (
	paramServer      = "server"
	paramShare       = "share"
	paramSubDir      = "subdir"
	paramPermissions = "mountpermissions"
	paramOnDelete    = "ondelete"
)

// shareClass is what a storage class says.
type shareClass struct {
	share    export
	subDir   string
	mode     uint32
	onDelete sharedirs.OnDelete
}

func (p *plugin) parseClass(parameters map[string]string) (shareClass, error) {
	given := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(parameters)) {
		low := strings.ToLower(name)
		if !slices.Contains([]string{paramServer, paramShare, paramSubDir, paramPermissions, paramOnDelete}, low) {
			return shareClass{}, volume.Invalid("parameters."+name, "is not known; there are server, share, subDir, mountPermissions and onDelete")
		}
		if _, twice := given[low]; twice {
			return shareClass{}, volume.Invalid("parameters."+name, "is given twice")
		}
		given[low] = parameters[name]
	}
	share, err := parseShare(given[paramServer], given[paramShare])
	if err != nil {
		return shareClass{}, err
	}
	config := p.config.Provision
	mode, err := parseMode(given[paramPermissions], cmp.Or(config.MountPermissions, defaultPermissions))
	if err != nil {
		return shareClass{}, err
	}
	onDelete, ok := sharedirs.ParseOnDelete(cmp.Or(given[paramOnDelete], config.OnDelete, string(sharedirs.Delete)))
	if !ok {
		return shareClass{}, volume.Invalid("parameters.onDelete", "is %q; it can be delete, archive or retain", onDelete)
	}
	return shareClass{share: share, subDir: cmp.Or(given[paramSubDir], "${"+sharedirs.VolumeName+"}"), mode: mode, onDelete: onDelete}, nil
}

func parseShare(server, share string) (export, error) {
	if server == "" {
		return export{}, volume.Invalid("parameters.server", "is required: the name or address of the NFS server")
	}
	if share == "" {
		return export{}, volume.Invalid("parameters.share", "is required: the path that the server exports")
	}
	e, err := parseExport(&v1.NFSVolumeSource{Server: server, Path: share})
	if err != nil {
		return export{}, fmt.Errorf("server and share of the storage class: %w", err)
	}
	// One spelling only, for what is below it is found by it again.
	e.path = e.normal().path
	if e.path != "/" && sharedirs.CheckRelative(e.path[1:]) != nil {
		return export{}, volume.Invalid("parameters.share", "is %q; it must be a path without \".\" or empty elements", share)
	}
	return e, nil
}

// parseMode reads an octal mode; what is empty or 0 is the default.
func parseMode(s string, otherwise uint32) (uint32, error) {
	mode := otherwise
	if s != "" {
		given, err := strconv.ParseUint(s, 8, 32)
		if err != nil {
			return 0, volume.Invalid("parameters.mountPermissions", "is %q; it must be an octal number such as 0770", s)
		}
		mode = cmp.Or(uint32(given), otherwise)
	}
	return mode, checkMode("parameters.mountPermissions", mode)
}

func checkMode(field string, mode uint32) error {
	const owner, allowed = 0o700, uint32(fs.ModePerm) | 0o3000
	if mode&^allowed != 0 || mode&owner != owner {
		return volume.Invalid(field, "is %#o; it must be between 0700 and 3777, with all permissions for the owner, who could not delete the directory else", mode)
	}
	return nil
}

// dirFor returns the path below the share for a claim.
func (c *shareClass) dirFor(options volume.VolumeOptions) (string, error) {
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

// workOptions are those with which the agent mounts a share to change it: not
// read-only, whatever its pods get, and without trust in what it saw before,
// since other nodes make and delete directories too (nfs(5), "DATA AND METADATA
// COHERENCE"). The last of contradicting options counts.
func workOptions(class []string) ([]string, error) {
	if err := mount.CheckOptions(class); err != nil {
		return nil, volume.NothingDone(fmt.Errorf("mountOptions of the storage class: %w", err))
	}
	options := slices.DeleteFunc(slices.Clone(class), func(o string) bool { return o == "ro" })
	return lastOptions(options, "lookupcache=none", "actimeo=0"), nil
}

// lastOptions puts options at the end, where nothing outdoes them.
func lastOptions(options []string, last ...string) []string {
	kept := slices.DeleteFunc(slices.Clone(options), func(o string) bool { return slices.Contains(last, o) })
	return append(kept, last...)
}
