package iscsi

import (
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/util/lazyregexp"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/pluginbase"
	"github.com/podvol/podvol/volume/plugins/iscsi/internal/openiscsi"
)

// source is what the two kinds of sources have in common. [plugin.checked] fills in the rest.
type source struct {
	v1.ISCSIVolumeSource
	// inline: the secret is in the pod's namespace; else it is in secretNamespace.
	inline          bool
	secretNamespace string

	// portals are as the kubelet writes them.
	portals []string
	// face is the interface in the names of directories, base the one that the volume names.
	face, base string
	// readOnly: the pod must not write. deviceReadOnly: the device is mounted read-only.
	readOnly, deviceReadOnly bool
	options                  []string
	lun                      openiscsi.LUN
}

func fromInline(v *v1.VolumeSource) *source {
	if v.ISCSI == nil {
		return nil
	}
	return &source{ISCSIVolumeSource: *v.ISCSI, inline: true}
}

func fromPersistent(v *v1.PersistentVolumeSource) *source {
	s := v.ISCSI
	if s == nil {
		return nil
	}
	to := &source{ISCSIVolumeSource: v1.ISCSIVolumeSource{
		TargetPortal: s.TargetPortal, IQN: s.IQN, Lun: s.Lun, ISCSIInterface: s.ISCSIInterface, FSType: s.FSType, ReadOnly: s.ReadOnly,
		Portals: s.Portals, DiscoveryCHAPAuth: s.DiscoveryCHAPAuth, SessionCHAPAuth: s.SessionCHAPAuth, InitiatorName: s.InitiatorName,
	}}
	if s.SecretRef != nil {
		to.SecretRef, to.secretNamespace = &v1.LocalObjectReference{Name: s.SecretRef.Name}, s.SecretRef.Namespace
	}
	return to
}

// maxPortals bounds what one volume may ask for.
const maxPortals = 16

// checked returns a spec's source, if all of it can be named in a path and to a program. The
// error is a *[volume.InvalidSpecError].
func (p *plugin) checked(spec *volume.Spec) (*source, error) {
	s, err := p.Source(spec)
	if err != nil {
		return nil, err
	}
	if len(s.Portals) >= maxPortals {
		return nil, volume.Invalid("iscsi.portals", "are %d, at most %d are allowed", len(s.Portals), maxPortals-1)
	}
	for n, given := range append([]string{s.TargetPortal}, s.Portals...) {
		name, portal, err := parsePortal(given)
		if err != nil {
			field := "iscsi.targetPortal"
			if n > 0 {
				field = fmt.Sprintf("iscsi.portals[%d]", n-1)
			}
			return nil, volume.Invalid(field, "%.128q %v", given, err)
		}
		if !slices.Contains(s.lun.Portals, portal) {
			s.portals, s.lun.Portals = append(s.portals, name), append(s.lun.Portals, portal)
		}
	}
	if err := s.check(spec); err != nil {
		return nil, err
	}
	return s, s.checkAccess(spec)
}

const maxLUN = 255 // the API's, too

// check looks at what is no portal, and names the directories.
func (s *source) check(spec *volume.Spec) error {
	if err := checkIQN("iscsi.iqn", s.IQN); err != nil {
		return err
	}
	if s.Lun < 0 || s.Lun > maxLUN {
		return volume.Invalid("iscsi.lun", "%d is not between 0 and %d", s.Lun, maxLUN)
	}
	s.base = s.ISCSIInterface
	if s.base == "" {
		s.base = "default"
	}
	if !interfaceName().MatchString(s.base) {
		return volume.Invalid("iscsi.iscsiInterface", "%.128q is no name of an interface of open-iscsi", s.base)
	}
	s.face = s.base
	s.lun.IQN, s.lun.Number, s.lun.Interface = s.IQN, int(s.Lun), openiscsi.Interface{Name: s.base}
	if s.InitiatorName != nil && *s.InitiatorName != "" {
		if err := checkIQN("iscsi.initiatorName", *s.InitiatorName); err != nil {
			return err
		}
		s.face = s.portals[0] + ":" + spec.Name()
		if !ownInterfaceName().MatchString(s.face) {
			return volume.Invalid("iscsi.initiatorName", "needs an interface named %.128q, which open-iscsi cannot have: use a volume's name of letters, digits, '-' and '.', and at most 64 bytes", s.face)
		}
		s.lun.Interface = openiscsi.Interface{Name: s.face, InitiatorName: *s.InitiatorName, Base: s.base}
	}
	if s.SessionCHAPAuth && (s.SecretRef == nil || s.SecretRef.Name == "") {
		return volume.Invalid("iscsi.secretRef", "is missing, and chapAuthSession asks for it")
	}
	if of, ok := parsePath(filepath.Join(s.path()...)); !ok || of.portal != s.portals[0] || of.iqn != s.IQN {
		return volume.Invalid("iscsi.targetPortal", "%.128q makes the volume's directory read as another target's", s.TargetPortal)
	}
	for _, part := range s.path() {
		if err := volume.CheckPathSegment("iscsi", part); err != nil {
			return err
		}
	}
	return nil
}

// checkAccess finds out who may write.
func (s *source) checkAccess(spec *volume.Spec) (err error) {
	shared := *spec
	shared.ReadOnly = false // the wish of one pod
	s.deviceReadOnly = s.ReadOnly || pluginbase.ReadOnly(&shared)
	if s.options, err = pluginbase.Options(spec, s.deviceReadOnly); err != nil {
		return err
	}
	s.deviceReadOnly = s.deviceReadOnly || slices.Contains(s.options, "ro")
	s.readOnly = s.deviceReadOnly || pluginbase.ReadOnly(spec)
	return nil
}

// The forms of names: what a path and an argument can hold, and nothing that begins with a
// hyphen or a dot.
var (
	iscsiName        = lazyregexp.New(`^(iqn\.\d{4}-\d{2}\.[[:alnum:]][[:alnum:].-]*(:[[:alnum:]._:+-]+)?|eui\.[[:xdigit:]]{16}|naa\.([[:xdigit:]]{16}|[[:xdigit:]]{32}))$`)
	interfaceName    = lazyregexp.New(`^[[:alnum:]][[:alnum:]._:-]{0,63}$`)
	ownInterfaceName = lazyregexp.New(`^[[:alnum:][][][[:alnum:]._:%-]{0,63}$`)
	hostName         = lazyregexp.New(`^[[:alnum:]][[:alnum:].-]{0,252}$`)
	zoneName         = lazyregexp.New(`^[[:alnum:]._-]{1,15}$`)
)

const maxIQN = 223 // RFC 7143

func checkIQN(field, name string) error {
	if len(name) > maxIQN || !iscsiName().MatchString(name) || strings.Contains(name, "..") {
		return volume.Invalid(field, "%.128q is no iSCSI name; one is iqn.2001-04.com.example:storage.disk1, eui.02004567A425678D or naa. with 16 or 32 digits", name)
	}
	return nil
}

const defaultPort = 3260

// parsePortal returns a portal as the kubelet writes it in paths, and its parts. An IPv6
// address may be in brackets.
func parsePortal(given string) (name string, portal openiscsi.Portal, err error) {
	name = given
	if !strings.Contains(given, ":") {
		name = net.JoinHostPort(given, strconv.Itoa(defaultPort))
	}
	host, port := given, strconv.Itoa(defaultPort)
	bare := strings.TrimSuffix(strings.TrimPrefix(given, "["), "]")
	if isIPv6(bare) {
		host = bare
	} else if strings.Contains(given, ":") {
		if host, port, err = net.SplitHostPort(given); err != nil {
			return "", portal, fmt.Errorf("is no host and port")
		}
	}
	number, err := strconv.ParseUint(port, 10, 16)
	if err != nil || number == 0 {
		return "", portal, fmt.Errorf("has no port between 1 and 65535")
	}
	if !isIPv6(host) && !hostName().MatchString(host) {
		return "", portal, fmt.Errorf("has neither an IP address nor the name of a host")
	}
	return name, openiscsi.Portal{Host: host, Port: int(number)}, nil
}

func isIPv6(host string) bool {
	ip, zone, zoned := strings.Cut(host, "%")
	return strings.Contains(ip, ":") && net.ParseIP(ip) != nil && (!zoned || zoneName().MatchString(zone))
}

func (s *source) volumeName() string { return fmt.Sprintf("%s:%s:%d", s.TargetPortal, s.IQN, s.Lun) }

// path has the two directories that name the volume below the plugin's, the kubelet's.
func (s *source) path() []string {
	return []string{"iface-" + s.face, fmt.Sprintf("%s-%s-lun-%d", s.portals[0], s.IQN, s.Lun)}
}

// devicePath is where the device of a file system is mounted.
func (p *plugin) devicePath(s *source) string {
	return filepath.Join(append([]string{p.Host.GetPluginDir(PluginName)}, s.path()...)...)
}

// mapPath is the directory for the pods' binds of a block volume.
func (p *plugin) mapPath(s *source) string {
	return filepath.Join(append([]string{p.blockDir()}, s.path()...)...)
}

// named is what a directory's path says of its volume.
type named struct {
	face, portal, iqn string
	lun               int
}

var (
	facePart   = lazyregexp.New(`^iface-(.+)$`)
	volumePart = lazyregexp.New(`^(.+?)-((?:iqn|eui|naa)\..+)-lun-(\d{1,3})$`)
)

// parsePath reads the names in a path that devicePath or mapPath made.
func parsePath(path string) (named, bool) {
	face := facePart().FindStringSubmatch(filepath.Base(filepath.Dir(path)))
	of := volumePart().FindStringSubmatch(filepath.Base(path))
	if face == nil || of == nil {
		return named{}, false
	}
	lun, err := strconv.Atoi(of[3])
	return named{face: face[1], portal: of[1], iqn: of[2], lun: lun}, err == nil
}

// spec is a source whose volume has the same directory.
func (n named) spec(volumeName string) *v1.ISCSIPersistentVolumeSource {
	s := &v1.ISCSIPersistentVolumeSource{TargetPortal: n.portal, IQN: n.iqn, Lun: int32(n.lun), ISCSIInterface: n.face}
	if n.face == n.portal+":"+volumeName { // the name of the initiator is not to be seen
		s.ISCSIInterface, s.InitiatorName = "", &s.IQN
	}
	return s
}
