package clusterhost_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"math/big"
	"slices"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/record"

	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/util/kubeapi"
	"github.com/podvol/podvol/util/testenv/apiserver"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/clusterhost"
)

// realNode is a node of a cluster with a real API server.
type realNode struct {
	*world                      // its clientset is the node's own identity
	admin  kubernetes.Interface // who may do everything
}

// A node's identity may do what its roles ask for, and no more.
func TestANodesRolesOnARealAPIServer(t *testing.T) {
	apiserver.Run(t, apiserver.Config{}, func(t *testing.T, s *apiserver.Server) {
		inRealCluster(t, s, "tokens", tokensOfANode)
		inRealCluster(t, s, "events", eventsOfANode)
		inRealCluster(t, s, "allocatable", allocatableOfANode)
		inRealCluster(t, s, "volumes in use", reportsOfANode)
		inRealCluster(t, s, "growth", growthOnANode)
		inRealCluster(t, s, "recycler", recyclerOnANode)
		inRealCluster(t, s, "trust bundles", trustBundlesByDefault)
	})
}

func inRealCluster(t *testing.T, s *apiserver.Server, name string, f func(*testing.T, *realNode)) {
	t.Run(name, func(t *testing.T) {
		w := &world{t: t, clientset: userOf(t, s.Kubeconfig(t, "system:node:node1", "system:nodes")), root: t.TempDir(), mounter: fakemount.New()}
		t.Cleanup(func() { must(t, w.mounter.Close()) })
		n := &realNode{world: w, admin: userOf(t, s.Admin(t))}
		core, options := n.admin.CoreV1(), metav1.CreateOptions{}
		_, namespace := core.Namespaces().Create(t.Context(), &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ops"}}, options)
		_, account := core.ServiceAccounts("ops").Create(t.Context(), &v1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "app"}}, options)
		_, node := core.Nodes().Create(t.Context(), &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node1"}}, options)
		for _, err := range []error{namespace, account, node} {
			if !apierrors.IsAlreadyExists(err) { // made by the test before
				must(t, err)
			}
		}
		f(t, n)
	})
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func userOf(t *testing.T, kubeconfig []byte) kubernetes.Interface {
	t.Helper()
	config, err := clientcmd.RESTConfigFromKubeConfig(kubeconfig)
	must(t, err)
	config.QPS = -1 // no limit
	client, err := rest.HTTPClientFor(config)
	must(t, err)
	t.Cleanup(client.CloseIdleConnections)
	set, err := kubernetes.NewForConfigAndClient(config, client)
	must(t, err)
	return set
}

// until asks a server, which tells nobody, until it says so.
func until(t *testing.T, what string, is func() bool) {
	t.Helper()
	again := time.NewTicker(50 * time.Millisecond)
	defer again.Stop()
	for late := time.After(time.Minute); !is(); {
		select {
		case <-again.C:
		case <-late:
			t.Fatalf("not within a minute: %s", what)
		}
	}
}

// audiencePod is a pod whose volume names audiences of tokens.
func (n *realNode) audiencePod(name, node string, audiences ...string) *v1.Pod {
	n.t.Helper()
	var sources []v1.VolumeProjection
	for _, audience := range audiences {
		sources = append(sources, v1.VolumeProjection{ServiceAccountToken: &v1.ServiceAccountTokenProjection{Audience: audience, Path: "token-" + audience}})
	}
	pod, err := n.admin.CoreV1().Pods("ops").Create(n.t.Context(), &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1.PodSpec{
		NodeName: node, ServiceAccountName: "app", Containers: []v1.Container{{Name: "main", Image: "example.com/app", VolumeMounts: []v1.VolumeMount{{Name: "v", MountPath: "/v"}}}},
		Volumes: []v1.Volume{{Name: "v", VolumeSource: v1.VolumeSource{Projected: &v1.ProjectedVolumeSource{Sources: sources}}}},
	}}, metav1.CreateOptions{})
	must(n.t, err)
	return pod
}

func tokensOfANode(t *testing.T, n *realNode) {
	tokens := clusterhost.NewTokens(n.clientset, clusterhost.TokensConfig{})
	ask := func(account string, pod *v1.Pod, audiences ...string) (string, error) {
		answer, err := tokens.RequestToken(t.Context(), "ops", account, &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
			Audiences: audiences, BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID}}})
		if err != nil {
			return "", err
		}
		return answer.Status.Token, nil
	}
	mine, theirs := n.audiencePod("mine", "node1", "vault", ""), n.audiencePod("theirs", "node2", "vault", "")
	for _, audiences := range [][]string{{"vault"}, nil} {
		var token string
		until(t, "a token of its pod", func() bool { // the authorizer hears of pods a little late
			var err error
			token, err = ask("app", mine, audiences...)
			if err != nil && !apierrors.IsForbidden(err) {
				t.Fatal(err)
			}
			return err == nil
		})
		review, err := n.admin.AuthenticationV1().TokenReviews().Create(t.Context(),
			&authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token, Audiences: audiences}}, metav1.CreateOptions{})
		must(t, err)
		if user := review.Status.User; !review.Status.Authenticated || user.Username != "system:serviceaccount:ops:app" || user.Extra["authentication.kubernetes.io/pod-name"][0] != "mine" {
			t.Errorf("the token for %q is that of %+v", audiences, review.Status)
		}
	}
	if again, err := ask("app", mine, "vault"); err != nil || again == "" {
		t.Errorf("the same once more: %v", err)
	}
	for name, err := range map[string]error{
		"another node's pod":             second(ask("app", theirs, "vault")),
		"an audience that nobody names":  second(ask("app", mine, "bank")),
		"an account that the pod is not": second(ask("other", mine, "vault")),
	} {
		refused, ok := errors.AsType[*volume.Failure](err)
		if !ok || !apierrors.IsForbidden(err) || !errors.Is(err, clusterhost.ErrNoToken) || !strings.Contains(refused.Advice(), "audiences") || errors.Is(err, volume.ErrNotFound) {
			t.Errorf("%s: %v", name, err)
		}
	}
	must(t, n.admin.CoreV1().Pods("ops").Delete(t.Context(), "mine", metav1.DeleteOptions{GracePeriodSeconds: new(int64)}))
	tokens.ForgetTokens(mine.UID)
	if _, err := ask("app", mine, "vault"); err == nil {
		t.Error("a token of a pod that is gone")
	}
}

func second[A, B any](_ A, b B) B { return b }

func eventsOfANode(t *testing.T, n *realNode) {
	broadcaster := record.NewBroadcaster()
	defer broadcaster.Shutdown()
	broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: n.clientset.CoreV1().Events("")})
	sink := clusterhost.NewEvents(broadcaster.NewRecorder(scheme.Scheme, v1.EventSource{Component: "podvol", Host: "node1"}))
	pod := n.audiencePod("told", "node1", "")
	for range 3 {
		sink.Event(pod, v1.EventTypeWarning, "FailedMount", "no answer")
	}
	var told v1.Event
	until(t, "one event that has happened three times", func() bool {
		all, err := n.admin.CoreV1().Events("ops").List(t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.uid=" + string(pod.UID)})
		must(t, err)
		if len(all.Items) != 1 || all.Items[0].Count != 3 {
			return false
		}
		told = all.Items[0]
		return true
	})
	about := told.InvolvedObject
	if about.Kind != "Pod" || about.APIVersion != "v1" || about.Name != "told" || told.Reason != "FailedMount" || told.Message != "no answer" || told.Type != v1.EventTypeWarning || told.Source.Host != "node1" {
		t.Errorf("told %+v", told)
	}
	if sink.Dropped() > 0 {
		t.Errorf("%d were dropped", sink.Dropped())
	}
}

func allocatableOfANode(t *testing.T, n *realNode) {
	node, err := n.admin.CoreV1().Nodes().Get(t.Context(), "node1", metav1.GetOptions{})
	must(t, err)
	node.Status.Allocatable = v1.ResourceList{v1.ResourceMemory: resource.MustParse("1Gi")}
	_, err = n.clientset.CoreV1().Nodes().UpdateStatus(t.Context(), node, metav1.UpdateOptions{})
	must(t, err)
	all, err := clusterhost.NewAllocatable(n.source(), "node1").GetAllocatable(t.Context())
	if err != nil || all.Memory().Value() != 1<<30 {
		t.Errorf("allocatable: %v, %v", all, err)
	}
}

// authority is a certificate that API servers take into a bundle.
func authority(t *testing.T) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), NotBefore: time.Now(), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	must(t, err)
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

// trustBundlesByDefault asks a server without flags of its own: Kubernetes 1.37 and
// later serve bundles, as their discovery says, and those before do not. A program that is
// built with older modules knows none of the versions that are served.
func trustBundlesByDefault(t *testing.T, n *realNode) {
	_, err := n.bundles(clusterhost.TrustBundlesConfig{}).GetTrustBundle(t.Context(), "missing")
	notServed := errors.Is(err, clusterhost.ErrNotServed)
	if served := bundlesAreServed(t, n.admin); notServed == served || served && !errors.Is(err, volume.ErrNotFound) {
		t.Errorf("bundles are served: %t; asked for one that is missing: %v", served, err)
	}
}

func bundlesAreServed(t *testing.T, api kubernetes.Interface) bool {
	t.Helper()
	_, all, err := api.Discovery().ServerGroupsAndResources()
	must(t, err)
	return slices.ContainsFunc(all, func(list *metav1.APIResourceList) bool {
		return (list.GroupVersion == kubeapi.TrustBundleVersion().String() || list.GroupVersion == "certificates.k8s.io/v1beta1") &&
			slices.ContainsFunc(list.APIResources, func(r metav1.APIResource) bool { return r.Name == "clustertrustbundles" })
	})
}

func TestTrustBundlesOnARealAPIServer(t *testing.T) {
	flags := []string{"--feature-gates=ClusterTrustBundle=true", "--runtime-config=certificates.k8s.io/v1beta1/clustertrustbundles=true"}
	apiserver.Run(t, apiserver.Config{Flags: flags}, func(t *testing.T, s *apiserver.Server) {
		inRealCluster(t, s, "of a node", func(t *testing.T, n *realNode) {
			client, first, next := n.admin.CertificatesV1beta1().ClusterTrustBundles(), authority(t), authority(t)
			named := &certificatesv1beta1.ClusterTrustBundle{ObjectMeta: metav1.ObjectMeta{Name: "one"}, Spec: certificatesv1beta1.ClusterTrustBundleSpec{TrustBundle: first}}
			signed := &certificatesv1beta1.ClusterTrustBundle{ObjectMeta: metav1.ObjectMeta{Name: "example.com:s:one", Labels: map[string]string{"team": "a"}},
				Spec: certificatesv1beta1.ClusterTrustBundleSpec{SignerName: signer, TrustBundle: first}}
			for _, b := range []*certificatesv1beta1.ClusterTrustBundle{named, signed} {
				_, err := client.Create(t.Context(), b, metav1.CreateOptions{})
				must(t, err)
			}
			bundles := n.bundles(clusterhost.TrustBundlesConfig{})
			changed := make(chan struct{}, 10)
			defer bundles.WatchTrustBundles(func() { changed <- struct{}{} })()
			if got, err := bundles.GetTrustBundle(t.Context(), "one"); err != nil || got != first {
				t.Errorf("by name: %q, %v", got, err)
			}
			if got, err := bundles.GetTrustBundlesBySigner(t.Context(), signer, &metav1.LabelSelector{MatchLabels: map[string]string{"team": "a"}}); err != nil || got != first {
				t.Errorf("by signer: %q, %v", got, err)
			}
			if _, err := bundles.GetTrustBundle(t.Context(), "missing"); !errors.Is(err, volume.ErrNotFound) {
				t.Errorf("one that is not there: %v", err)
			}
			stored, err := client.Get(t.Context(), "one", metav1.GetOptions{})
			must(t, err)
			stored.Spec.TrustBundle = next
			_, err = client.Update(t.Context(), stored, metav1.UpdateOptions{})
			must(t, err)
			for late := time.After(time.Minute); ; {
				got, err := bundles.GetTrustBundle(t.Context(), "one")
				if err == nil && got == next {
					return
				}
				select {
				case <-changed:
				case <-late:
					t.Fatalf("the change is not seen: %q, %v", got, err)
				}
			}
		})
	})
}
