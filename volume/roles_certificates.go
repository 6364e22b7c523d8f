package volume

import (
	"context"
	"crypto"
	"time"

	v1 "k8s.io/api/core/v1"
)

// PodCertificateRequester has signers issue certificates to pods, as the API's
// PodCertificateRequest does (KEP-4317). Its methods are safe for concurrent use and
// change none of their arguments.
type PodCertificateRequester interface {
	// RequestPodCertificate hands a request to its signer, and returns the name of the
	// request in the pod's namespace. An error does not say that there is none: the
	// caller may ask again with the same key.
	RequestPodCertificate(ctx context.Context, pod *v1.Pod, request PodCertificateRequest) (name string, err error)
	// AwaitPodCertificate returns the certificate once the signer has issued it. A
	// request that is denied or has failed is [ErrPodCertificateRefused], one that does
	// not exist any more [ErrNotFound]; both are final. After any other error the caller
	// may wait again, also after the end of ctx, whose cause is the error then.
	AwaitPodCertificate(ctx context.Context, namespace, name string) (PodCertificate, error)
}

// PodCertificateRequest says what a pod asks of a signer.
type PodCertificateRequest struct {
	SignerName string
	// MaxExpirationSeconds is the longest life of the certificate; nil: 24 hours.
	MaxExpirationSeconds *int32
	// UserAnnotations are for the signer, as the pod has them.
	UserAnnotations map[string]string
	// Key is the pod's. The role signs with it to prove that the node has it, and hands
	// on its public half only.
	Key crypto.Signer
}

// PodCertificate is what a signer has issued.
type PodCertificate struct {
	// Chain are PEM certificates: the pod's own, then those that it was issued by. It
	// is checked by the caller.
	Chain string
	// BeginRefreshAt is when the signer wants to be asked for the next one; zero: it
	// does not say.
	BeginRefreshAt time.Time
}

// ErrPodCertificateRefused says that a signer has denied a request, or has failed to
// carry it out. A pod is refused for good, as with the kubelet.
const ErrPodCertificateRefused Cause = "the signer has refused the certificate"
