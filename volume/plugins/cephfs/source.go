package cephfs

import (
	"cmp"
	"net/netip"
	"path"
	"slices"
	"strings"
	"unicode"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/ceph"
	"github.com/podvol/podvol/volume/internal/pluginbase"
)

const (
	fsType = "ceph"
	// defaultSecretFile is Kubernetes', for the user admin: admin.secret would not be found.
	defaultSecretFile = "/etc/ceph/user.secret"
)

// source is what the two kinds of sources have in common. [plugin.checked] fills in the rest.
type source struct {
	given    []string // monitors
	path     string
	key      ceph.KeySource
	readOnly bool

	monitors []ceph.Monitor
	options  []string
}

func fromInline(v *v1.VolumeSource) *source {
	s := v.CephFS
	if s == nil {
		return nil
	}
	to := &source{given: s.Monitors, path: s.Path, readOnly: s.ReadOnly, key: ceph.KeySource{User: s.User, File: s.SecretFile, IsInline: true}}
	if s.SecretRef != nil {
		to.key.Secret = s.SecretRef.Name
	}
	return to
}

func fromPersistent(v *v1.PersistentVolumeSource) *source {
	s := v.CephFS
	if s == nil {
		return nil
	}
	to := &source{given: s.Monitors, path: s.Path, readOnly: s.ReadOnly, key: ceph.KeySource{User: s.User, File: s.SecretFile}}
	if s.SecretRef != nil {
		to.key.Secret, to.key.Namespace = s.SecretRef.Name, s.SecretRef.Namespace
	}
	return to
}

// checked returns a spec's source, with Kubernetes' defaults, if all of it can be handed to the
// kernel. Errors are *[volume.InvalidSpecError]s, or those of [pluginbase.Options].
func (p *plugin) checked(spec *volume.Spec) (*source, error) {
	s, err := p.Source(spec)
	if err != nil {
		return nil, err
	}
	if s.monitors, err = ceph.ParseMonitors("cephfs.monitors", s.given); err != nil {
		return nil, err
	}
	s.path = cmp.Or(s.path, "/")
	s.key.Field, s.key.FileField = "cephfs", "secretFile"
	s.key.User, s.key.File = cmp.Or(s.key.User, "admin"), cmp.Or(s.key.File, defaultSecretFile)
	if err := checkPath(s.path); err != nil {
		return nil, err
	}
	if err := ceph.CheckUser("cephfs.user", s.key.User); err != nil {
		return nil, err
	}
	s.readOnly = s.readOnly || pluginbase.ReadOnly(spec)
	if s.options, err = pluginbase.Options(spec, s.readOnly); err != nil {
		return nil, err
	}
	s.readOnly = s.readOnly || slices.Contains(s.options, "ro")
	return s, checkOptions(s.options)
}

const maxPath = 1024

// checkPath refuses a path that the kernel would not take for one of the file system, or that
// leads out of a directory.
func checkPath(given string) error {
	switch {
	case !strings.HasPrefix(given, "/"):
		return volume.Invalid("cephfs.path", "%.128q is not absolute", given)
	case len(given) > maxPath:
		return volume.Invalid("cephfs.path", "has %d bytes, at most %d are allowed", len(given), maxPath)
	case slices.Contains(strings.Split(given, "/"), ".."):
		return volume.Invalid("cephfs.path", `%.128q has an element ".."`, given)
	case strings.ContainsFunc(given, unicode.IsControl):
		return volume.Invalid("cephfs.path", "%.128q has a control character", given)
	}
	return nil
}

// checkOptions refuses options that contradict the source: whose key it is, where the key is, and
// which cluster.
func checkOptions(options []string) error {
	for _, option := range options {
		name, _, _ := strings.Cut(strings.ToLower(option), "=")
		if slices.Contains([]string{"name", "secret", "key", "secretfile", "keyfile", "keyring", "conf", "mon_addr", "mon_host", "source"}, name) {
			return volume.Invalid("mountOptions", "%q is for the fields of cephfs to say", name)
		}
	}
	return nil
}

// describe names the volume, as the mount table does where the monitors are addresses.
func (s *source) describe() string {
	var monitors []string
	for _, m := range s.monitors {
		monitors = append(monitors, m.String())
	}
	return strings.Join(monitors, ",") + ":" + path.Clean(s.path)
}

// splitSource reads the source of a mount, "10.0.0.1:6789,[2001:db8::1]:6789:/path".
func splitSource(text string) (addresses []netip.AddrPort, at string, ok bool) {
	monitors, rest, ok := strings.Cut(text, ":/")
	if !ok {
		return nil, "", false
	}
	addresses, err := ceph.SplitAddresses(monitors)
	return addresses, "/" + rest, err == nil
}
