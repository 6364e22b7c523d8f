package clusterhost_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"math/big"
	"net/http"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/podvol/podvol/util/testenv/apiserver"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/clusterhost"
)

const requestsOfOps = "/apis/certificates.k8s.io/v1/namespaces/ops/podcertificaterequests"

// Nodes of real clusters get certificates in each version of the API, for each type of key.
func TestPodCertificatesOnARealAPIServer(t *testing.T) {
	flags := []string{"--feature-gates=PodCertificateRequest=true", "--runtime-config=certificates.k8s.io/v1beta1/podcertificaterequests=true"}
	apiserver.Run(t, apiserver.Config{Flags: flags}, func(t *testing.T, s *apiserver.Server) {
		inRealCluster(t, s, "pod certificates", func(t *testing.T, n *realNode) {
			older := withoutV1(t, s.Kubeconfig(t, "system:node:node1", "system:nodes"))
			for name, set := range map[string]kubernetes.Interface{"v1": n.clientset, "v1beta1": older} {
				t.Run(name, func(t *testing.T) { issueToPods(t, n, set) })
			}
		})
	})
}

// withoutV1 is a client of an API server that does not serve the newest version.
func withoutV1(t *testing.T, kubeconfig []byte) kubernetes.Interface {
	t.Helper()
	config, err := clientcmd.RESTConfigFromKubeConfig(kubeconfig)
	must(t, err)
	config.QPS = -1
	config.Wrap(func(inner http.RoundTripper) http.RoundTripper { return hiding{inner} })
	client, err := rest.HTTPClientFor(config)
	must(t, err)
	t.Cleanup(client.CloseIdleConnections)
	set, err := kubernetes.NewForConfigAndClient(config, client)
	must(t, err)
	return set
}

type hiding struct{ http.RoundTripper }

func (h hiding) RoundTrip(r *http.Request) (*http.Response, error) {
	if strings.HasPrefix(r.URL.Path, requestsOfOps) {
		r = r.Clone(r.Context())
		r.URL.Path = "/apis/certificates.k8s.io/v0/namespaces/ops/podcertificaterequests"
	}
	return h.RoundTripper.RoundTrip(r)
}

func issueToPods(t *testing.T, n *realNode, set kubernetes.Interface) {
	certificates := clusterhost.NewPodCertificates(set, "node1")
	elliptic256, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	modulus3072, err := rsa.GenerateKey(rand.Reader, 3072)
	must(t, err)
	_, edwards, err := ed25519.GenerateKey(rand.Reader)
	must(t, err)
	pod := n.certificatePod("certified-" + strings.ToLower(strings.ReplaceAll(t.Name()[strings.LastIndex(t.Name(), "/")+1:], "_", "-")))
	for name, key := range map[string]crypto.Signer{"ECDSAP256": elliptic256, "RSA3072": modulus3072, "ED25519": edwards} {
		request := volume.PodCertificateRequest{SignerName: signer, MaxExpirationSeconds: new(int32(7200)), UserAnnotations: map[string]string{"example.com/a": "b"}, Key: key}
		made, err := certificates.RequestPodCertificate(t.Context(), pod, request)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		begin := time.Now().Add(time.Hour).Truncate(time.Second)
		chain := make(chan string, 1)
		go func() { chain <- n.sign(t, made, key.Public(), begin) }()
		got, err := certificates.AwaitPodCertificate(t.Context(), "ops", made)
		if want := <-chain; err != nil || got.Chain != want || !got.BeginRefreshAt.Equal(begin) {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
	denied, err := certificates.RequestPodCertificate(t.Context(), pod, volume.PodCertificateRequest{SignerName: signer, Key: edwards})
	must(t, err)
	n.decide(t, denied, map[string]any{"conditions": []metav1.Condition{condition("Denied", "NotYou")}})
	_, err = certificates.AwaitPodCertificate(t.Context(), "ops", denied)
	if !errors.Is(err, volume.ErrPodCertificateRefused) || !strings.Contains(err.Error(), "NotYou") || !strings.Contains(err.Error(), "ops/"+denied) {
		t.Errorf("denied: %v", err)
	}
	if _, err := certificates.AwaitPodCertificate(t.Context(), "ops", "missing"); !errors.Is(err, volume.ErrNotFound) {
		t.Errorf("a request that is not there: %v", err)
	}
	if _, err := certificates.RequestPodCertificate(t.Context(), pod, volume.PodCertificateRequest{SignerName: "example.com/other", Key: edwards}); err == nil {
		t.Error("a signer that no volume of the pod names")
	}
}

// certificatePod is a pod of the node whose volume names the signer.
func (n *realNode) certificatePod(name string) *v1.Pod {
	n.t.Helper()
	source := &v1.PodCertificateProjection{SignerName: signer, KeyType: "ED25519", CredentialBundlePath: "bundle.pem"}
	pod, err := n.admin.CoreV1().Pods("ops").Create(n.t.Context(), &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1.PodSpec{
		NodeName: "node1", ServiceAccountName: "app", Containers: []v1.Container{{Name: "main", Image: "example.com/app", VolumeMounts: []v1.VolumeMount{{Name: "v", MountPath: "/v"}}}},
		Volumes: []v1.Volume{{Name: "v", VolumeSource: v1.VolumeSource{Projected: &v1.ProjectedVolumeSource{Sources: []v1.VolumeProjection{{PodCertificate: source}}}}}},
	}}, metav1.CreateOptions{})
	must(n.t, err)
	return pod
}

func condition(kind, reason string) metav1.Condition {
	return metav1.Condition{Type: kind, Status: metav1.ConditionTrue, Reason: reason, Message: "so it is", LastTransitionTime: metav1.Now()}
}

// sign is the signer.
func (n *realNode) sign(t *testing.T, name string, key any, begin time.Time) (chain string) {
	public, private, err := ed25519.GenerateKey(rand.Reader)
	from := time.Now().Truncate(time.Second)
	leaf := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotBefore: from, NotAfter: from.Add(2 * time.Hour)}
	der, failed := x509.CreateCertificate(rand.Reader, leaf, &x509.Certificate{SerialNumber: big.NewInt(2), PublicKey: public}, key, private)
	if err := errors.Join(err, failed); err != nil {
		t.Error(err)
		return ""
	}
	chain = string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	n.decide(t, name, map[string]any{"conditions": []metav1.Condition{condition("Issued", "Issued")}, "certificateChain": chain,
		"notBefore": metav1.NewTime(leaf.NotBefore), "beginRefreshAt": metav1.NewTime(begin), "notAfter": metav1.NewTime(leaf.NotAfter)})
	return chain
}

// decide writes the status of a request.
func (n *realNode) decide(t *testing.T, name string, status map[string]any) {
	patch, err := json.Marshal(map[string]any{"status": status})
	if err == nil {
		err = n.admin.Discovery().RESTClient().Patch("application/merge-patch+json").AbsPath(requestsOfOps, name, "status").Body(patch).Do(t.Context()).Error()
	}
	if err != nil {
		t.Error(err)
	}
}

// An API server that serves none says so, and one that refuses who asks is not taken for
// it.
func TestPodCertificatesThatAreNotServed(t *testing.T) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	must(t, err)
	for name, tc := range map[string]struct {
		code int
		body string
		is   func(error) bool
	}{
		"not served": {http.StatusNotFound, "404 page not found", func(err error) bool { return errors.Is(err, clusterhost.ErrPodCertificatesNotServed) }},
		"forbidden": {http.StatusForbidden, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403}`, func(err error) bool {
			return apierrors.IsForbidden(err) && strings.Contains(err.Error(), "podcertificaterequests")
		}},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				w.transport.SetHandler(http.HandlerFunc(func(answer http.ResponseWriter, r *http.Request) {
					switch {
					case strings.HasSuffix(r.URL.Path, "/podcertificaterequests"):
						answer.WriteHeader(tc.code)
						answer.Write([]byte(tc.body))
					case strings.Contains(r.URL.Path, "/serviceaccounts/"):
						answer.Header().Set("Content-Type", "application/json")
						answer.Write([]byte(`{"kind":"ServiceAccount","apiVersion":"v1","metadata":{"name":"default","uid":"a"}}`))
					default:
						answer.Header().Set("Content-Type", "application/json")
						answer.Write([]byte(`{"kind":"Node","apiVersion":"v1","metadata":{"name":"node1","uid":"n"}}`))
					}
				}))
				certificates := clusterhost.NewPodCertificates(w.clientset, "node1")
				pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ops", Name: "web", UID: "u"}}
				if _, err := certificates.RequestPodCertificate(t.Context(), pod, volume.PodCertificateRequest{SignerName: signer, Key: key}); !tc.is(err) {
					t.Errorf("request: %v", err)
				}
				if _, err := certificates.AwaitPodCertificate(t.Context(), "ops", "r"); !tc.is(err) {
					t.Errorf("wait: %v", err)
				}
			})
		})
	}
}
