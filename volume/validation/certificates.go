package validation

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/podvol/podvol/util/kubeapi"
)

// Bounds of a pod certificate's life in seconds; Kubernetes' own signers give one
// day at most.
const (
	minCertificateSeconds        = 3600
	maxCertificateSeconds        = 91 * 24 * 3600
	maxCertificateSecondsBuiltIn = 24 * 3600
)

// maxSignerPath is the length of <namespace>.<name>, the part after a signer's domain.
const maxSignerPath = validation.DNS1123LabelMaxLength + 1 + validation.DNS1123SubdomainMaxLength

const signerForm = "a signer's name is <domain>/<path>, such as example.com/signer"

// signerName is the API's rule for the names of signers.
func (c *checker) signerName(at, name string) {
	domain, signer, ok := strings.Cut(name, "/")
	switch {
	case name == "":
		c.refuse(at, "must not be empty; %s", signerForm)
		return
	case !ok || strings.Contains(signer, "/"):
		c.refuse(at, "%q must have exactly one slash; %s", name, signerForm)
		return
	case !strings.Contains(domain, "."):
		c.refuse(at, "the domain of %q must have at least two labels; %s", name, signerForm)
		return
	case len(domain) > validation.DNS1123SubdomainMaxLength || len(signer) > maxSignerPath:
		c.refuse(at, "%q is too long: a domain has at most %d bytes, a path %d", name, validation.DNS1123SubdomainMaxLength, maxSignerPath)
		return
	}
	for label := range strings.SplitSeq(domain, ".") {
		if wrong := validation.IsDNS1123Label(label); len(wrong) > 0 {
			c.refuse(at, "the domain of %q is invalid: %s; %s", name, strings.Join(wrong, "; "), signerForm)
			return
		}
	}
	for label := range strings.SplitSeq(signer, ".") {
		if wrong := validation.IsDNS1123Subdomain(label); len(wrong) > 0 {
			c.refuse(at, "the path of %q is invalid: %s; %s", name, strings.Join(wrong, "; "), signerForm)
			return
		}
	}
}

// bundleName is the API's rule for the names of ClusterTrustBundles. The name of
// a signer's bundle begins with the signer's name, its slashes replaced by
// colons.
func (c *checker) bundleName(at, name string) {
	own := name
	if i := strings.LastIndex(name, ":"); i >= 0 {
		own = name[i+1:]
		c.signerName(at, strings.ReplaceAll(name[:i], ":", "/"))
	}
	c.names(at, own, validation.IsDNS1123Subdomain)
}

func (c *fileChecker) trustBundle(at string, s *v1.ClusterTrustBundleProjection) {
	c.file(at+".path", s.Path)
	c.user(at+".user", kubeapi.User(s))
	switch {
	case (s.Name == nil) == (s.SignerName == nil):
		c.refuse(at, "must have exactly one of name and signerName")
	case s.Name != nil && s.LabelSelector != nil:
		c.refuse(at+".labelSelector", "selects among the bundles of a signerName; it cannot be used with name")
	case s.Name != nil:
		c.bundleName(at+".name", *s.Name)
	default:
		c.signerName(at+".signerName", *s.SignerName)
	}
	c.labelSelector(at+".labelSelector", s.LabelSelector)
}

func (c *fileChecker) podCertificate(at string, s *v1.PodCertificateProjection) {
	c.signerName(at+".signerName", s.SignerName)
	oneOf(&c.faults, at+".keyType", s.KeyType, "RSA3072", "RSA4096", "ECDSAP256", "ECDSAP384", "ECDSAP521", "ED25519")
	if life := s.MaxExpirationSeconds; life != nil {
		most := int64(maxCertificateSeconds)
		if domain, _, _ := strings.Cut(s.SignerName, "/"); domain == "kubernetes.io" || strings.HasSuffix(domain, ".kubernetes.io") {
			most = maxCertificateSecondsBuiltIn
		}
		c.between(at+".maxExpirationSeconds", int64(*life), minCertificateSeconds, most)
	}
	c.user(at+".user", kubeapi.User(s))
	given := false
	for _, f := range []struct{ name, path string }{
		{"credentialBundlePath", s.CredentialBundlePath}, {"keyPath", s.KeyPath}, {"certificateChainPath", s.CertificateChainPath},
	} {
		if f.path != "" {
			given = true
			c.file(at+"."+f.name, f.path)
		}
	}
	if !given {
		c.refuse(at, "must have at least one of credentialBundlePath, keyPath and certificateChainPath")
	}
	c.userAnnotations(at+".userAnnotations", kubeapi.UserAnnotations(s))
}

func (c *fileChecker) userAnnotations(at string, annotations map[string]string) {
	for _, key := range slices.Sorted(maps.Keys(annotations)) {
		wrong := validation.IsQualifiedName(strings.ToLower(key))
		if !strings.Contains(key, "/") {
			wrong = append(wrong, "it must have a domain, as in example.com/key")
		}
		if len(wrong) > 0 {
			c.refuse(fmt.Sprintf("%s[%s]", at, key), "%q is no valid key: %s", key, strings.Join(wrong, "; "))
		}
	}
}
