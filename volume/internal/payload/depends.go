package payload

import (
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/validation"
)

// DependsOn returns the objects that the files of a pod's volume come from: config
// maps, secrets and trust bundles, all of these where they are selected by signer,
// and the pod itself where its own fields are shown. Tokens are renewed by time,
// not by change.
func (p *Projection) DependsOn(pod *v1.Pod) []volume.ObjectRef {
	var refs []volume.ObjectRef
	for i := range p.Sources {
		ref, ok := p.Sources[i].dependsOn(pod)
		if ok && !slices.Contains(refs, ref) {
			refs = append(refs, ref)
		}
	}
	return refs
}

func (s *Source) dependsOn(pod *v1.Pod) (volume.ObjectRef, bool) {
	if k, ok := s.keyed(); ok {
		return volume.NewObjectRef(k.kind, pod.Namespace, k.name), true
	}
	switch {
	case s.DownwardAPI != nil:
		return volume.NewObjectRef("Pod", pod.Namespace, pod.Name), true
	case s.ClusterTrustBundle != nil:
		return bundleRef(s.ClusterTrustBundle), true
	}
	return volume.ObjectRef{}, false
}

// Describe names the sources for people: "configmap app-config", "projected: token,
// secret tls".
func (p *Projection) Describe() string {
	var all []string
	for i := range p.Sources {
		all = append(all, p.Sources[i].describe())
	}
	text := strings.Join(all, ", ")
	if len(p.Sources) == 1 && p.Sources[0].Field == p.Field {
		return text // the volume is its source
	}
	return p.Field + ": " + text
}

func (s *Source) describe() string {
	if k, ok := s.keyed(); ok {
		return strings.TrimSpace(strings.ToLower(k.kind) + " " + k.name)
	}
	switch {
	case s.ServiceAccountToken != nil:
		return "token"
	case s.ClusterTrustBundle != nil && s.ClusterTrustBundle.Name != nil:
		return "trust bundle " + *s.ClusterTrustBundle.Name
	case s.ClusterTrustBundle != nil:
		return "trust bundles"
	}
	return strings.Join(validation.ProjectionTypes(&s.VolumeProjection), "+")
}
