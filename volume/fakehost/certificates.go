package fakehost

import (
	"context"
	"crypto/ed25519"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/volume"
)

// defaultCertificateSeconds is the longest life that is asked for where a pod says none.
const defaultCertificateSeconds = 24 * 60 * 60

// certificateRole is a signer of every name: it issues what is asked for, with a chain
// of two certificates, and wants to be asked again at half of their life. Faults of
// AwaitPodCertificate stand for signers that deny, wait or are gone.
type certificateRole struct{ host *Host }

// signer has the requests of a host.
type signer struct {
	mu       sync.Mutex
	requests []volume.PodCertificateRequest
	leaves   []x509.Certificate // templates of the answers, in the same order
}

// RequestPodCertificate implements [volume.PodCertificateRequester].
func (r certificateRole) RequestPodCertificate(ctx context.Context, pod *v1.Pod, request volume.PodCertificateRequest) (string, error) {
	return answer(ctx, r.host, RoleCall{"RequestPodCertificate", pod.Namespace, request.SignerName}, func() (string, error) {
		s := &r.host.signer
		s.mu.Lock()
		defer s.mu.Unlock()
		s.requests = append(s.requests, request)
		s.leaves = append(s.leaves, x509.Certificate{SerialNumber: big.NewInt(int64(len(s.requests))),
			Subject: pkix.Name{CommonName: pod.Namespace + "/" + pod.Name}, DNSNames: []string{pod.Name + ".example.com"}})
		return requestName(len(s.requests)), nil
	})
}

func requestName(n int) string { return fmt.Sprintf("req-%d", n) }

// AwaitPodCertificate implements [volume.PodCertificateRequester].
func (r certificateRole) AwaitPodCertificate(ctx context.Context, namespace, name string) (volume.PodCertificate, error) {
	return answer(ctx, r.host, RoleCall{"AwaitPodCertificate", namespace, name}, func() (volume.PodCertificate, error) {
		s := &r.host.signer
		s.mu.Lock()
		defer s.mu.Unlock()
		for i := range s.requests {
			if requestName(i+1) == name {
				return sign(s.requests[i], &s.leaves[i], r.host.Now())
			}
		}
		return volume.PodCertificate{}, &volume.ObjectNotFoundError{Ref: volume.NewObjectRef("PodCertificateRequest", namespace, name)}
	})
}

// sign issues a certificate by an authority of its own.
func sign(request volume.PodCertificateRequest, leaf *x509.Certificate, now time.Time) (volume.PodCertificate, error) {
	seconds := int32(defaultCertificateSeconds)
	if request.MaxExpirationSeconds != nil {
		seconds = *request.MaxExpirationSeconds
	}
	leaf.NotBefore = now.Truncate(time.Second)
	leaf.NotAfter = leaf.NotBefore.Add(time.Duration(seconds) * time.Second)
	authority := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: request.SignerName},
		NotBefore: leaf.NotBefore, NotAfter: leaf.NotAfter, IsCA: true, BasicConstraintsValid: true}
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		return volume.PodCertificate{}, err
	}
	root, err := x509.CreateCertificate(nil, authority, authority, public, private)
	if err != nil {
		return volume.PodCertificate{}, err
	}
	own, err := x509.CreateCertificate(nil, leaf, authority, request.Key.Public(), private)
	if err != nil {
		return volume.PodCertificate{}, err
	}
	var chain []byte
	for _, der := range [][]byte{own, root} {
		chain = append(chain, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})...)
	}
	return volume.PodCertificate{Chain: string(chain), BeginRefreshAt: leaf.NotBefore.Add(leaf.NotAfter.Sub(leaf.NotBefore) / 2)}, nil
}
