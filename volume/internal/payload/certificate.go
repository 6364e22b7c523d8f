package payload

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/util/clocks"
	"github.com/podvol/podvol/util/kubeapi"
	"github.com/podvol/podvol/volume"
)

const (
	keyBlock         = "PRIVATE KEY"
	certificateBlock = "CERTIFICATE"
	// eventCertificateKept is the reason of the event that tells that a certificate
	// could not be renewed in time and the old one, still valid, is kept.
	eventCertificateKept = "PodCertificateRefreshFailed"
	// maxJitter spreads the renewals of certificates that were issued in one moment.
	maxJitter = 5 * time.Minute
)

// podCertificate adds the files of a certificate that is issued to the pod.
func (c *collector) podCertificate(ctx context.Context, at string, s *v1.PodCertificateProjection) error {
	role, err := volume.Role[volume.PodCertificateRequester](c.host)
	if err != nil {
		return fmt.Errorf("%s: %w", at, err)
	}
	got, err := c.issued.certificates.get(ctx, certificateKey{podUID: c.pod.UID, volume: c.volume, field: at},
		certificateSource{PodCertificateProjection: s, pod: c.pod, role: role, published: c.published})
	if err != nil {
		return fmt.Errorf("%s: no certificate of signer %q: %w", at, s.SignerName, err)
	}
	if got.kept != nil {
		c.warn(eventCertificateKept, fmt.Sprintf("the certificate of signer %q could not be renewed, the old one is kept until it expires at %s: %v",
			s.SignerName, utc(got.expires), got.kept))
	}
	c.due(got.due)
	key, chain := got.files()
	user := kubeapi.User(s)
	var errs []error
	for _, file := range []struct {
		path string
		data []byte
	}{
		{s.CredentialBundlePath, append(bytes.Clone(key), chain...)}, {s.KeyPath, key}, {s.CertificateChainPath, chain},
	} {
		if file.path != "" {
			errs = append(errs, c.addOwned(at, file.path, file.data, user))
		}
	}
	return errors.Join(errs...)
}

// certificateSource is a source with what it is read from.
type certificateSource struct {
	*v1.PodCertificateProjection
	pod       *v1.Pod
	role      volume.PodCertificateRequester
	published func(path string) ([]byte, error)
}

func (s certificateSource) request(key crypto.Signer) volume.PodCertificateRequest {
	return volume.PodCertificateRequest{SignerName: s.SignerName, MaxExpirationSeconds: s.MaxExpirationSeconds,
		UserAnnotations: kubeapi.UserAnnotations(s.PodCertificateProjection), Key: key}
}

// adopt returns the certificate that the volume shows, if it is valid and shown with
// its key: an agent that was started again asks for none.
func (s certificateSource) adopt(now time.Time) *certificate {
	if s.published == nil {
		return nil
	}
	read := func(path string) []byte {
		data, err := s.published(path)
		if err != nil {
			return nil
		}
		return data
	}
	var text []byte
	switch {
	case s.CredentialBundlePath != "":
		text = read(s.CredentialBundlePath)
	case s.KeyPath != "" && s.CertificateChainPath != "":
		text = append(read(s.KeyPath), read(s.CertificateChainPath)...)
	}
	block, chain := pem.Decode(text)
	if block == nil || block.Type != keyBlock {
		return nil
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil
	}
	key, ok := parsed.(crypto.Signer)
	if !ok {
		return nil
	}
	found, err := newCertificate(now, key, volume.PodCertificate{Chain: string(chain)})
	if err != nil {
		return nil
	}
	return found
}

// newKey makes a key of one of the API's types.
func newKey(keyType string) (crypto.Signer, error) {
	switch keyType {
	case "RSA3072":
		return rsa.GenerateKey(rand.Reader, 3072)
	case "RSA4096":
		return rsa.GenerateKey(rand.Reader, 4096)
	case "ECDSAP256":
		return ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	case "ECDSAP384":
		return ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	case "ECDSAP521":
		return ecdsa.GenerateKey(elliptic.P521(), rand.Reader)
	case "ED25519":
		_, key, err := ed25519.GenerateKey(rand.Reader)
		return key, err
	}
	return nil, volume.Invalid("keyType", "%q is no type of key", keyType)
}

// certificate is an issued certificate with its key.
type certificate struct {
	// files returns both as PEM. It is a function since printing, reflection and
	// encoding stop at functions.
	files        func() (key, chain []byte)
	due, expires time.Time
	// refresh is when it was due at first.
	refresh time.Time
	// kept is why it was not renewed although it was due.
	kept error
}

// newCertificate checks what a signer has issued for a key. The API server does so
// too, but not every role has one behind it.
func newCertificate(now time.Time, key crypto.Signer, issued volume.PodCertificate) (*certificate, error) {
	leaf, chain, err := parseChain(issued.Chain)
	if err != nil {
		return nil, err
	}
	public, ok := key.Public().(interface{ Equal(crypto.PublicKey) bool })
	switch {
	case !ok || !public.Equal(leaf.PublicKey):
		return nil, errors.New("the signer's certificate is for another key")
	case !leaf.NotBefore.Before(leaf.NotAfter):
		return nil, fmt.Errorf("the signer's certificate ends at %s, before it begins at %s", utc(leaf.NotAfter), utc(leaf.NotBefore))
	case clocks.IsDue(leaf.NotAfter, now):
		return nil, fmt.Errorf("the signer's certificate has expired at %s, by the clock of this node", utc(leaf.NotAfter))
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	private := pem.EncodeToMemory(&pem.Block{Type: keyBlock, Bytes: der})
	due := refreshTime(now, leaf, issued.BeginRefreshAt)
	return &certificate{files: func() ([]byte, []byte) { return private, chain }, due: due, refresh: due, expires: leaf.NotAfter}, nil
}

// parseChain returns the first certificate of a chain, and all of them as PEM without
// headers and other text, as the kubelet shows it.
func parseChain(text string) (leaf *x509.Certificate, chain []byte, err error) {
	var clean bytes.Buffer
	for block, rest := pem.Decode([]byte(text)); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != certificateBlock {
			return nil, nil, fmt.Errorf("the signer's chain has a block %q, and may have certificates only", block.Type)
		}
		parsed, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, nil, fmt.Errorf("the signer's chain has no valid certificate: %w", err)
		}
		if leaf == nil {
			leaf = parsed
		}
		_ = pem.Encode(&clean, &pem.Block{Type: certificateBlock, Bytes: block.Bytes}) // a Buffer takes everything
	}
	if leaf == nil {
		return nil, nil, errors.New("the signer's chain has no certificate")
	}
	return leaf, clean.Bytes(), nil
}

// refreshTime is when the signer wants to be asked again, else at 80 % of the
// certificate's life, and somewhat later at random, but before it expires.
func refreshTime(now time.Time, leaf *x509.Certificate, wanted time.Time) time.Time {
	if !wanted.After(leaf.NotBefore) || !wanted.Before(leaf.NotAfter) {
		wanted = leaf.NotBefore.Add(leaf.NotAfter.Sub(leaf.NotBefore) / 5 * 4)
	}
	wanted = wanted.Add(mathrand.N(min(maxJitter, leaf.NotAfter.Sub(wanted)/2) + 1))
	if soonest := now.Add(retryIssue); wanted.Before(soonest) {
		wanted = soonest
	}
	return earlier(wanted, leaf.NotAfter)
}

func utc(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 MST") }
