package kubecluster

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"time"
)

// authority signs the certificates of one cluster's servers and users.
type authority struct {
	certificate []byte // PEM
	parsed      *x509.Certificate
	key         key
}

// Pair is a certificate and its key, as PEM.
type Pair struct{ Certificate, Key []byte }

type key struct {
	*ecdsa.PrivateKey
	pem []byte
}

func newKey() (key, error) {
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return key{}, err
	}
	der, err := x509.MarshalECPrivateKey(k)
	if err != nil {
		return key{}, err
	}
	return key{k, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})}, nil
}

func newAuthority() (*authority, error) {
	k, err := newKey()
	if err != nil {
		return nil, err
	}
	template := lasting(pkix.Name{CommonName: "test"})
	template.IsCA, template.BasicConstraintsValid, template.KeyUsage = true, true, x509.KeyUsageCertSign|x509.KeyUsageDigitalSignature
	a := &authority{parsed: template, key: k}
	if a.certificate, err = a.sign(template, k); err != nil {
		return nil, err
	}
	a.parsed, err = parse(a.certificate)
	return a, err
}

// lasting is a template that outlives every test.
func lasting(subject pkix.Name) *x509.Certificate {
	now := time.Now()
	return &x509.Certificate{SerialNumber: big.NewInt(now.UnixNano()), Subject: subject, NotBefore: now.Add(-time.Hour), NotAfter: now.AddDate(0, 0, 7)}
}

func (a *authority) sign(template *x509.Certificate, k key) ([]byte, error) {
	der, err := x509.CreateCertificate(rand.Reader, template, a.parsed, k.Public(), a.key.PrivateKey)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), nil
}

func parse(certificate []byte) (*x509.Certificate, error) {
	block, _ := pem.Decode(certificate)
	return x509.ParseCertificate(block.Bytes)
}

func (a *authority) pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.parsed)
	return pool
}

func (a *authority) issue(template *x509.Certificate, usage x509.ExtKeyUsage) (Pair, error) {
	k, err := newKey()
	if err != nil {
		return Pair{}, err
	}
	template.KeyUsage, template.ExtKeyUsage = x509.KeyUsageDigitalSignature, []x509.ExtKeyUsage{usage}
	certificate, err := a.sign(template, k)
	return Pair{Certificate: certificate, Key: k.pem}, err
}

// server is the pair of a server that is reached at addresses and by names.
func (a *authority) server(name string, addresses []net.IP, names []string) (Pair, error) {
	template := lasting(pkix.Name{CommonName: name})
	template.IPAddresses, template.DNSNames = addresses, names
	return a.issue(template, x509.ExtKeyUsageServerAuth)
}

// client is a user's: the common name is who it is, the organizations are its
// groups.
func (a *authority) client(user string, groups []string) (Pair, error) {
	return a.issue(lasting(pkix.Name{CommonName: user, Organization: groups}), x509.ExtKeyUsageClientAuth)
}
