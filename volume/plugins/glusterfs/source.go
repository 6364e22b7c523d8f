package glusterfs

import (
	"context"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/volume"
)

// source is a volume's source, of either kind.
type source struct {
	endpoints, path string
	namespace       string // of the Endpoints; empty: the pod's
	readOnly        bool
}

func inlineSource(s *v1.VolumeSource) *source {
	if s.Glusterfs == nil {
		return nil
	}
	return &source{endpoints: s.Glusterfs.EndpointsName, path: s.Glusterfs.Path, readOnly: s.Glusterfs.ReadOnly}
}

func persistentSource(s *v1.PersistentVolumeSource) *source {
	g := s.Glusterfs
	if g == nil {
		return nil
	}
	found := &source{endpoints: g.EndpointsName, path: g.Path, readOnly: g.ReadOnly}
	if g.EndpointsNamespace != nil {
		found.namespace = *g.EndpointsNamespace
	}
	return found
}

// untrusted is the error for a volume whose servers are of the pod's namespace.
func untrusted(spec *volume.Spec) error {
	const why = "a volume's servers decide what root's client does on the node, and users of the pod's namespace would choose them"
	const allow = "allow this where all who make pods may be root on the node (glusterfs.Config.TrustPodNamespaces)"
	if spec.PersistentVolume != nil {
		return volume.Invalid("glusterfs.endpointsNamespace", "must be a namespace whose users are trusted: %s; set it, or %s", why, allow)
	}
	return volume.NothingDone(&volume.UnsupportedError{
		Volume: spec.Name(), Type: "glusterfs", Reason: why,
		Replacement: "use a PersistentVolume with an endpointsNamespace, or " + allow,
	})
}

// check refuses what would lead a request for the Endpoints, or the mount helper, to
// something else.
func (s *source) check() error {
	if err := volume.CheckPathSegment("glusterfs.endpoints", s.endpoints); err != nil {
		return err
	}
	if err := volume.CheckPathSegment("glusterfs.endpointsNamespace", s.namespace); err != nil {
		return err
	}
	if !isVolumePath(s.path) {
		return volume.Invalid("glusterfs.path", "%q must be a Gluster volume's name, or that and a directory in it, of letters, digits and ._~@=+- only", s.path)
	}
	return nil
}

// isVolumePath reports whether the mount helper takes a path for a volume, and a directory
// in it, and nothing else.
func isVolumePath(path string) bool {
	elements := strings.Split(strings.TrimPrefix(path, "/"), "/")
	return isPlain(path) && !strings.HasPrefix(elements[0], "-") && !strings.Contains(path, ":") &&
		!slices.ContainsFunc(elements, func(e string) bool { return e == "" || e == "." || e == ".." })
}

// isPlain reports whether a string goes through the mount helper's shell unchanged.
func isPlain(s string) bool {
	other := func(r rune) bool {
		return !('a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || strings.ContainsRune("._~/:@=+-", r))
	}
	return !strings.ContainsFunc(s, other)
}

// servers returns the volume's servers, of which there is at least one.
func (s *source) servers(ctx context.Context, host volume.VolumeHost) ([]string, error) {
	role, err := volume.Role[volume.EndpointsGetter](host)
	if err != nil {
		return nil, volume.NothingDone(err)
	}
	addresses, err := role.GetEndpointAddresses(ctx, s.namespace, s.endpoints)
	if err != nil {
		return nil, volume.NothingDone(fmt.Errorf("the servers of the volume: %w", err))
	}
	if len(addresses) == 0 {
		return nil, volume.NothingDone(fmt.Errorf("the Endpoints %s of namespace %s have no ready addresses: give them those of the Gluster servers", s.endpoints, s.namespace))
	}
	for _, a := range addresses {
		if err := checkAddress(a); err != nil {
			return nil, volume.NothingDone(fmt.Errorf("the Endpoints %s of namespace %s: %w", s.endpoints, s.namespace, err))
		}
	}
	return addresses, nil
}

// checkAddress refuses what Kubernetes' API refuses in Endpoints, too. The node's own
// services must not be reached by an object of some namespace.
func checkAddress(address string) error {
	ip, err := netip.ParseAddr(address)
	if err != nil {
		return volume.Invalid("subsets.addresses.ip", "%q is not an IP address", address)
	}
	real := ip.Unmap()
	if ip.Zone() != "" || real.IsUnspecified() || real.IsLoopback() || real.IsLinkLocalUnicast() || real.IsMulticast() {
		return volume.Invalid("subsets.addresses.ip", "%s must not be unspecified, loopback, link-local or multicast", address)
	}
	return nil
}

// splitSource splits a source of the mount table into server and path.
func splitSource(source string) (server, path string) {
	i := strings.LastIndexByte(source, ':')
	return source[:max(i, 0)], source[i+1:]
}

// isVolume reports whether an entry of the mount table is the volume. Its server is one of
// those that the Endpoints had when it was mounted.
func (s *source) isVolume(e mount.Entry) bool {
	_, path := splitSource(e.Source)
	return isGluster(e) && strings.TrimPrefix(path, "/") == strings.TrimPrefix(s.path, "/")
}

// isGluster tells the type that the kernel shows, and that which the mount was asked for.
func isGluster(e mount.Entry) bool { return e.FSType == "fuse."+fsType || e.FSType == fsType }

// isUnknownOption finds in the helper's output that it does not know an option.
func isUnknownOption(output, option string) bool {
	return regexp.MustCompile(`(?i)invalid option:? ` + regexp.QuoteMeta(option)).MatchString(output)
}
