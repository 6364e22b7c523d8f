package nfs

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/sharedirs"
)

// ProvisionConfig has what storage classes leave open.
type ProvisionConfig struct {
	// MountPermissions are the mode of a volume's directory where the class has
	// none, in Unix' bits (0o2770): read, write and search, setgid and sticky; the
	// owner must have all three. 0 means 0755, as csi-driver-nfs's directories have
	// in the end. It is safe, since only root can write, or with root_squash the
	// user that root is mapped to; pods that run as others need a class with 0777,
	// or better 2770 and the group of the share as a supplemental group.
	MountPermissions uint32
	// OnDelete is what becomes of a volume's directory where the class does not
	// say it: "delete", "archive" or "retain". Empty means "delete", as with
	// csi-driver-nfs.
	OnDelete string
}

const defaultPermissions = 0o755

func (c ProvisionConfig) check() error {
	if err := sharedirs.CheckMode("Provision.MountPermissions", cmp.Or(c.MountPermissions, defaultPermissions)); err != nil {
		return err
	}
	_, err := sharedirs.ParseOnDelete("Provision.OnDelete", c.OnDelete)
	return err
}

// shareClass is what a storage class says.
type shareClass struct {
	sharedirs.Class
	share export
}

func (p *plugin) parseClass(parameters map[string]string) (shareClass, error) {
	const permissions = "mountPermissions"
	given, err := sharedirs.Parameters(parameters, "server", "share", sharedirs.ParamSubDir, permissions, sharedirs.ParamOnDelete)
	if err != nil {
		return shareClass{}, err
	}
	share, err := parseShare(given["server"], given["share"])
	if err != nil {
		return shareClass{}, err
	}
	if low := strings.ToLower(permissions); strings.Trim(given[low], "0") == "" { // as with csi-driver-nfs, 0 is the default
		delete(given, low)
	}
	config := p.config.Provision
	class, err := sharedirs.ParseClass(given, permissions, cmp.Or(config.MountPermissions, defaultPermissions), config.OnDelete)
	return shareClass{Class: class, share: share}, err
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
	// One spelling only, since paths below it are found by it again.
	e.path = e.normal().path
	if e.path != "/" && sharedirs.CheckRelative(e.path[1:]) != nil {
		return export{}, volume.Invalid("parameters.share", "is %q; it must be a path without \".\" or empty elements", share)
	}
	return e, nil
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
