package rbd

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"path/filepath"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/format"
	"github.com/podvol/podvol/util/lazyregexp"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/ceph"
	"github.com/podvol/podvol/volume/internal/pluginbase"
)

// source is what the two kinds of sources have in common. [plugin.checked] fills in the rest.
type source struct {
	given               []string // monitors
	pool, image, fsType string
	key                 ceph.KeySource
	// readOnly: the pod must not write. deviceReadOnly: the image is mapped read-only.
	readOnly, deviceReadOnly bool

	monitors []ceph.Monitor
	options  []string
}

func fromInline(v *v1.VolumeSource) *source {
	s := v.RBD
	if s == nil {
		return nil
	}
	to := &source{given: s.CephMonitors, pool: s.RBDPool, image: s.RBDImage, fsType: s.FSType, deviceReadOnly: s.ReadOnly,
		key: ceph.KeySource{User: s.RadosUser, File: s.Keyring, IsInline: true}}
	if s.SecretRef != nil {
		to.key.Secret = s.SecretRef.Name
	}
	return to
}

func fromPersistent(v *v1.PersistentVolumeSource) *source {
	s := v.RBD
	if s == nil {
		return nil
	}
	to := &source{given: s.CephMonitors, pool: s.RBDPool, image: s.RBDImage, fsType: s.FSType, deviceReadOnly: s.ReadOnly,
		key: ceph.KeySource{User: s.RadosUser, File: s.Keyring}}
	if s.SecretRef != nil {
		to.key.Secret, to.key.Namespace = s.SecretRef.Name, s.SecretRef.Namespace
	}
	return to
}

// The forms of names: what a path and a word of the kernel's can hold. The lengths are librbd's
// and those of a path.
var (
	poolName  = lazyregexp.New(`^[[:alnum:]_][[:alnum:]._-]{0,63}$`)
	imageName = lazyregexp.New(`^[[:alnum:]_][[:alnum:]._-]{0,94}$`)
)

// checked returns a spec's source, with Kubernetes' defaults, if all of it can be handed to the
// kernel. Errors are *[volume.InvalidSpecError]s, or those of [pluginbase.Options].
func (p *plugin) checked(spec *volume.Spec) (*source, error) {
	s, err := p.Source(spec)
	if err != nil {
		return nil, err
	}
	if s.monitors, err = ceph.ParseMonitors("rbd.monitors", s.given); err != nil {
		return nil, err
	}
	s.pool, s.fsType = cmp.Or(s.pool, "rbd"), cmp.Or(s.fsType, format.DefaultFSType)
	s.key.Field, s.key.FileField = "rbd", "keyring"
	s.key.User, s.key.File = cmp.Or(s.key.User, "admin"), cmp.Or(s.key.File, "/etc/ceph/keyring")
	if !poolName().MatchString(s.pool) {
		return nil, volume.Invalid("rbd.pool", "%.128q is no name of a pool that a disk can be made of", s.pool)
	}
	if !imageName().MatchString(s.image) {
		return nil, volume.Invalid("rbd.image", "%.128q is no name of an image that a disk can be made of", s.image)
	}
	if err := ceph.CheckUser("rbd.user", s.key.User); err != nil {
		return nil, err
	}
	return s, s.checkAccess(spec)
}

// checkAccess finds out who may write.
func (s *source) checkAccess(spec *volume.Spec) (err error) {
	shared := *spec
	shared.ReadOnly = false // the wish of one pod
	s.deviceReadOnly = s.deviceReadOnly || pluginbase.ReadOnly(&shared)
	if s.options, err = pluginbase.Options(spec, s.deviceReadOnly); err != nil {
		return err
	}
	s.deviceReadOnly = s.deviceReadOnly || slices.Contains(s.options, "ro")
	s.readOnly = s.deviceReadOnly || pluginbase.ReadOnly(spec)
	return nil
}

func (s *source) addresses() (all []string) {
	for _, m := range s.monitors {
		all = append(all, m.String())
	}
	return all
}

func (s *source) volumeName() string {
	return strings.Join(s.addresses(), ",") + ":" + s.pool + "/" + s.image
}

// directory names the image below the plugin's directory: its name, and what tells it from one of
// the same name in another cluster.
func (s *source) directory() string {
	sum := sha256.Sum256([]byte(s.volumeName()))
	return s.pool + "-image-" + s.image + "-" + hex.EncodeToString(sum[:8])
}

// mountsDir has the directories of file systems, and the records of all images.
func (p *plugin) mountsDir() string { return filepath.Join(p.Host.GetPluginDir(PluginName), "mounts") }

// devicePath is where the file system of an image is mounted.
func (p *plugin) devicePath(s *source) string { return filepath.Join(p.mountsDir(), s.directory()) }

// blockDir has the directories of block volumes.
func (p *plugin) blockDir() string {
	return filepath.Join(p.Host.GetPluginDir(PluginName), "volumeDevices")
}

// mapPath is the directory for the pods' binds of a block volume.
func (p *plugin) mapPath(s *source) string { return filepath.Join(p.blockDir(), s.directory()) }

// isPlace reports whether a path is one of these.
func (p *plugin) isPlace(path string) bool {
	dir := filepath.Dir(path)
	return (dir == p.mountsDir() || dir == p.blockDir()) && strings.Contains(filepath.Base(path), "-image-")
}

// recordFile is the record of an image by either of its places.
func (p *plugin) recordFile(place string) string {
	return filepath.Join(p.mountsDir(), filepath.Base(place)+".json")
}

// mountRequest is the mount of the disk.
func (s *source) mountRequest(device, path string) mount.Request {
	return mount.Request{Source: device, Target: path, FSType: s.fsType, Options: s.options}
}
