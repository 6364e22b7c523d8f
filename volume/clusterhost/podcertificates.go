package clusterhost

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/podvol/podvol/volume"
)

const (
	requestKind = "PodCertificateRequest"
	// defaultCertificateSeconds is the API's default for maxExpirationSeconds.
	defaultCertificateSeconds int32 = 24 * 60 * 60
	// watchSeconds is how long one watch of a request lasts before it is listed again.
	watchSeconds = "300"
)

// ErrPodCertificatesNotServed says that the API server serves no PodCertificateRequests.
const ErrPodCertificatesNotServed volume.Cause = "the API server serves no PodCertificateRequests: they need Kubernetes 1.37, or the feature gate PodCertificateRequest and " +
	"--runtime-config=certificates.k8s.io/v1beta1/podcertificaterequests=true (1.35; v1alpha1 in 1.34)"

// PodCertificates is a [volume.PodCertificateRequester] over the API's
// PodCertificateRequests, of certificates.k8s.io/v1 (Kubernetes 1.37), v1beta1 (1.35) or
// v1alpha1 (1.34), the newest that the API server has, whatever version of client-go is
// built in. All methods are safe for concurrent use. It keeps nothing.
type PodCertificates struct {
	clientset kubernetes.Interface
	node      types.NodeName
}

var _ volume.PodCertificateRequester = (*PodCertificates)(nil)

// NewPodCertificates returns a requester for the pods of a node. It makes no request yet.
func NewPodCertificates(clientset kubernetes.Interface, node types.NodeName) *PodCertificates {
	return &PodCertificates{clientset: clientset, node: node}
}

// podCertificateRequest is the API's object, as JSON has it in each version: the Go
// types differ between the supported minors of k8s.io/api.
type podCertificateRequest struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              podCertificateSpec   `json:"spec"`
	Status            podCertificateStatus `json:"status"`
}

type podCertificateSpec struct {
	SignerName                string            `json:"signerName"`
	PodName                   string            `json:"podName"`
	PodUID                    types.UID         `json:"podUID"`
	ServiceAccountName        string            `json:"serviceAccountName"`
	ServiceAccountUID         types.UID         `json:"serviceAccountUID"`
	NodeName                  types.NodeName    `json:"nodeName"`
	NodeUID                   types.UID         `json:"nodeUID"`
	MaxExpirationSeconds      int32             `json:"maxExpirationSeconds"`
	UnverifiedUserAnnotations map[string]string `json:"unverifiedUserAnnotations,omitempty"`
	// StubPKCS10Request proves that the node has the key, in v1.
	StubPKCS10Request []byte `json:"stubPKCS10Request,omitempty"`
	// PKIXPublicKey and ProofOfPossession prove it in the versions before.
	PKIXPublicKey     []byte `json:"pkixPublicKey,omitempty"`
	ProofOfPossession []byte `json:"proofOfPossession,omitempty"`
}

type podCertificateStatus struct {
	Conditions       []metav1.Condition `json:"conditions,omitempty"`
	CertificateChain string             `json:"certificateChain,omitempty"`
	BeginRefreshAt   *metav1.Time       `json:"beginRefreshAt,omitempty"`
}

// requestVersion is a version of the API, with its proof of possession.
type requestVersion struct {
	name  string
	prove func(*podCertificateSpec, crypto.Signer) error
}

func requestVersions() []requestVersion {
	return []requestVersion{{"v1", proveByRequest}, {"v1beta1", proveBySignature}, {"v1alpha1", proveBySignature}}
}

// RequestPodCertificate implements [volume.PodCertificateRequester]. The request belongs
// to the pod, so that it goes with it. The error is a [volume.Failure] where there is
// something to do about it.
func (p *PodCertificates) RequestPodCertificate(ctx context.Context, pod *v1.Pod, request volume.PodCertificateRequest) (string, error) {
	spec, err := p.spec(ctx, pod, request)
	if err != nil {
		return "", err
	}
	for _, version := range requestVersions() {
		name, err := p.create(ctx, version, pod, spec, request.Key)
		if missingKind(err) != "?" {
			return name, p.explain(ctx, err)
		}
	}
	return "", ErrPodCertificatesNotServed
}

// spec looks up who the pod's account and node are.
func (p *PodCertificates) spec(ctx context.Context, pod *v1.Pod, request volume.PodCertificateRequest) (podCertificateSpec, error) {
	account := pod.Spec.ServiceAccountName
	if account == "" {
		account = "default"
	}
	serviceAccount, err := p.clientset.CoreV1().ServiceAccounts(pod.Namespace).Get(ctx, account, metav1.GetOptions{})
	if err != nil {
		return podCertificateSpec{}, p.explain(ctx, fmt.Errorf("the pod's service account %q cannot be read: %w", pod.Namespace+"/"+account, err))
	}
	node, err := p.clientset.CoreV1().Nodes().Get(ctx, string(p.node), metav1.GetOptions{})
	if err != nil {
		return podCertificateSpec{}, p.explain(ctx, fmt.Errorf("this node's object cannot be read: %w", err))
	}
	seconds := defaultCertificateSeconds
	if request.MaxExpirationSeconds != nil {
		seconds = *request.MaxExpirationSeconds
	}
	return podCertificateSpec{
		SignerName: request.SignerName, PodName: pod.Name, PodUID: pod.UID, ServiceAccountName: account, ServiceAccountUID: serviceAccount.UID,
		NodeName: p.node, NodeUID: node.UID, MaxExpirationSeconds: seconds, UnverifiedUserAnnotations: request.UserAnnotations,
	}, nil
}

func (p *PodCertificates) create(ctx context.Context, version requestVersion, pod *v1.Pod, spec podCertificateSpec, key crypto.Signer) (string, error) {
	if err := version.prove(&spec, key); err != nil {
		return "", fmt.Errorf("the key cannot be proven: %w", err)
	}
	body, err := json.Marshal(podCertificateRequest{
		TypeMeta: metav1.TypeMeta{APIVersion: "certificates.k8s.io/" + version.name, Kind: requestKind},
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, GenerateName: "req-",
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID}}},
		Spec: spec,
	})
	if err != nil {
		return "", err
	}
	answer, err := onRequests(p.client().Post(), version.name, pod.Namespace).SetHeader("Content-Type", "application/json").Body(body).Do(ctx).Raw()
	if err != nil {
		return "", err
	}
	var created podCertificateRequest
	if err := json.Unmarshal(answer, &created); err != nil {
		return "", err
	}
	if created.Name == "" {
		return "", errors.New("the API answered without a PodCertificateRequest")
	}
	return created.Name, nil
}

func (p *PodCertificates) client() rest.Interface { return p.clientset.Discovery().RESTClient() }

func onRequests(r *rest.Request, version, namespace string) *rest.Request {
	return r.AbsPath("/apis/certificates.k8s.io", version, "namespaces", namespace, "podcertificaterequests").SetHeader("Accept", "application/json")
}

// proveByRequest signs an empty certificate signing request.
func proveByRequest(spec *podCertificateSpec, key crypto.Signer) (err error) {
	spec.StubPKCS10Request, err = x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	return err
}

// proveBySignature signs the pod's UID.
func proveBySignature(spec *podCertificateSpec, key crypto.Signer) (err error) {
	if spec.PKIXPublicKey, err = x509.MarshalPKIXPublicKey(key.Public()); err != nil {
		return err
	}
	message := []byte(spec.PodUID)
	digest := sha256.Sum256(message)
	switch key.Public().(type) {
	case ed25519.PublicKey:
		spec.ProofOfPossession, err = key.Sign(rand.Reader, message, crypto.Hash(0))
	case *ecdsa.PublicKey:
		spec.ProofOfPossession, err = key.Sign(rand.Reader, digest[:], crypto.SHA256)
	case *rsa.PublicKey:
		spec.ProofOfPossession, err = key.Sign(rand.Reader, digest[:], &rsa.PSSOptions{SaltLength: rsa.PSSSaltLengthAuto, Hash: crypto.SHA256})
	default:
		err = fmt.Errorf("%T is no key that the API knows", key.Public())
	}
	return err
}

// AwaitPodCertificate implements [volume.PodCertificateRequester], by a watch of the one
// request. A request that is denied or has failed is a [volume.Failure] with the signer,
// its reason and its message.
func (p *PodCertificates) AwaitPodCertificate(ctx context.Context, namespace, name string) (volume.PodCertificate, error) {
	for _, version := range requestVersions() {
		issued, err := p.await(ctx, version.name, namespace, name)
		if missingKind(err) != "?" {
			return issued, p.explain(ctx, err)
		}
	}
	return volume.PodCertificate{}, ErrPodCertificatesNotServed
}

// await lists and watches, since a node may read no request by its name at once: its
// right to do so comes later.
func (p *PodCertificates) await(ctx context.Context, version, namespace, name string) (volume.PodCertificate, error) {
	for {
		selected := func() *rest.Request {
			return onRequests(p.client().Get(), version, namespace).Param("fieldSelector", "metadata.name="+name+",spec.nodeName="+string(p.node))
		}
		answer, err := selected().Do(ctx).Raw()
		if err != nil {
			return volume.PodCertificate{}, err
		}
		var list struct {
			metav1.ListMeta `json:"metadata"`
			Items           []podCertificateRequest `json:"items"`
		}
		if err := json.Unmarshal(answer, &list); err != nil {
			return volume.PodCertificate{}, err
		}
		if len(list.Items) == 0 {
			return volume.PodCertificate{}, &volume.ObjectNotFoundError{Ref: volume.NewObjectRef(requestKind, namespace, name)}
		}
		if issued, decided, err := decision(&list.Items[0]); decided {
			return issued, err
		}
		issued, err := watched(ctx, selected().Param("watch", "true").Param("timeoutSeconds", watchSeconds).Param("resourceVersion", list.ResourceVersion))
		if !errors.Is(err, errWatchEnded) {
			return issued, err
		}
		if !pausedFor(ctx, time.Second) {
			return volume.PodCertificate{}, context.Cause(ctx)
		}
	}
}

// errWatchEnded says that a watch has ended before the signer's decision, or that the
// request is gone. The next list tells.
var errWatchEnded = errors.New("the watch has ended")

// watched reads a watch until the signer has decided.
func watched(ctx context.Context, request *rest.Request) (volume.PodCertificate, error) {
	stream, err := request.Stream(ctx)
	if err != nil {
		return volume.PodCertificate{}, errors.Join(errWatchEnded, err)
	}
	defer stream.Close()
	for events := json.NewDecoder(stream); ; {
		var event struct {
			Type   string                `json:"type"`
			Object podCertificateRequest `json:"object"`
		}
		if err := events.Decode(&event); err != nil || event.Type != "MODIFIED" {
			return volume.PodCertificate{}, errWatchEnded
		}
		if issued, decided, err := decision(&event.Object); decided {
			return issued, err
		}
	}
}

// decision reads the condition that ends a request.
func decision(r *podCertificateRequest) (issued volume.PodCertificate, decided bool, err error) {
	for _, c := range r.Status.Conditions {
		switch c.Type {
		case "Issued":
			issued.Chain = r.Status.CertificateChain
			if r.Status.BeginRefreshAt != nil {
				issued.BeginRefreshAt = r.Status.BeginRefreshAt.Time
			}
			return issued, true, nil
		case "Denied", "Failed":
			verb := map[string]string{"Denied": "has denied", "Failed": "could not carry out"}[c.Type]
			return issued, true, &volume.Failure{Cause: volume.ErrPodCertificateRefused, Subject: r.Namespace + "/" + r.Name,
				What: fmt.Sprintf("the signer %s PodCertificateRequest %s/%s, for reason %s: %q", verb, r.Namespace, r.Name, c.Reason, c.Message),
				Next: "change what the pod asks for, or what the signer allows, and create the pod anew"}
		}
	}
	return volume.PodCertificate{}, false, nil
}

// explain says why a call ended with ctx, and what a refusal needs.
func (p *PodCertificates) explain(ctx context.Context, err error) error {
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil && !errors.Is(err, context.Cause(ctx)):
		return fmt.Errorf("%w (%w)", err, context.Cause(ctx))
	case apierrors.IsForbidden(err):
		return &volume.Failure{Cause: err, Err: err, Subject: string(p.node), What: err.Error(),
			Next: "this identity needs the verbs create, list and watch for podcertificaterequests, and get for the pod's serviceaccount; a node (system:node:<name>) has them for its own pods where the feature gate PodCertificateRequest is on"}
	}
	return err
}
