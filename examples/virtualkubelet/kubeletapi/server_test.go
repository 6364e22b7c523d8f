package kubeletapi

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/podvol/podvol/volume"
)

// authority makes certificates for a test.
type authority struct {
	t           *testing.T
	key         *ecdsa.PrivateKey
	certificate *x509.Certificate
	pem         []byte
}

func newAuthority(t *testing.T) *authority {
	a := &authority{t: t}
	own := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
	var certificate tls.Certificate
	certificate, a.pem, _ = a.sign(own)
	a.certificate, a.key = certificate.Leaf, certificate.PrivateKey.(*ecdsa.PrivateKey)
	return a
}

func (a *authority) sign(template *x509.Certificate) (tls.Certificate, []byte, []byte) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	parent, by := a.certificate, a.key
	if parent == nil {
		parent, by = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, by)
	keyDER, keyErr := x509.MarshalPKCS8PrivateKey(key)
	if err := errors.Join(err, keyErr); err != nil {
		a.t.Fatal(err)
	}
	certPEM := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	keyPEM := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER})
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		a.t.Fatal(err)
	}
	return pair, certPEM, keyPEM
}

func (a *authority) user(name string, groups ...string) tls.Certificate {
	pair, _, _ := a.sign(&x509.Certificate{SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name, Organization: groups},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)})
	return pair
}

// node is what the server shows.
type node struct {
	dir    string
	stream string // where sessions are served

	mu    sync.Mutex
	pods  []*v1.Pod
	asked []string
}

func (n *node) List() []*v1.Pod {
	n.mu.Lock()
	defer n.mu.Unlock()
	var all []*v1.Pod
	for _, p := range n.pods {
		all = append(all, p.DeepCopy())
	}
	return all
}

func (n *node) LogFile(_ types.UID, container string, attempt int32) (dir, name string) {
	return n.dir, fmt.Sprintf("logs/of/%s-%d.log", container, attempt)
}

func (n *node) logs() string { return filepath.Join(n.dir, "logs/of") }

func (n *node) ExecURL(_ context.Context, id string, command []string, s Streams) (string, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.asked = append(n.asked, fmt.Sprintf("exec in %s of %q with %+v", id, command, s))
	return n.stream + "/exec/token", nil
}

func (n *node) AttachURL(_ context.Context, id string, s Streams) (string, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.asked = append(n.asked, fmt.Sprintf("attach to %s with %+v", id, s))
	return n.stream + "/attach/token", nil
}

func (n *node) PortForwardURL(_ context.Context, pod types.UID) (string, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.asked = append(n.asked, fmt.Sprintf("forward ports of %s", pod))
	return n.stream + "/portforward/token", nil
}

func (n *node) Usage(context.Context) (map[string]Usage, error) {
	return map[string]Usage{"containerd://abc": {CPUNanoseconds: 12, WorkingSet: 34, Memory: 56, Resident: 7},
		"containerd://looks": {CPUNanoseconds: 1, Written: 4096, WrittenInodes: 2}}, nil
}

func (n *node) Metrics(_ context.Context, pod types.UID, name string) (*volume.Metrics, error) {
	if pod != "uid-web" || name != "data" {
		return nil, volume.ErrMetricsUnsupported
	}
	return &volume.Metrics{Used: resource.NewQuantity(100, resource.BinarySI), Inodes: resource.NewQuantity(9, resource.DecimalSI)}, nil
}

// serve starts a server of a node with one pod, and returns a client for a user.
func serve(t *testing.T) (n *node, url string, client func(certificates ...tls.Certificate) *http.Client, a *authority) {
	a = newAuthority(t)
	_, cert, key := a.sign(&x509.Certificate{SerialNumber: big.NewInt(3), Subject: pkix.Name{CommonName: "node1"}, DNSNames: []string{"node1"},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)})
	n = &node{dir: t.TempDir()}
	if err := os.MkdirAll(n.logs(), 0o750); err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{"ca": a.pem, "cert": cert, "key": key} {
		if err := os.WriteFile(filepath.Join(n.dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	api := fake.NewClientset()
	api.PrependReactor("create", "subjectaccessreviews", func(action clienttesting.Action) (bool, runtime.Object, error) {
		review := action.(clienttesting.CreateAction).GetObject().(*authorizationv1.SubjectAccessReview)
		what := review.Spec.ResourceAttributes
		review.Status.Allowed = review.Spec.User == "apiserver" && what.Resource == "nodes" && what.Name == "node1" ||
			review.Spec.User == "reader" && what.Verb == "get" && what.Subresource == "stats"
		return true, review, nil
	})
	s, err := Listen(Config{Address: "127.0.0.1:0", CertFile: n.dir + "/cert", KeyFile: n.dir + "/key", ClientCAFile: n.dir + "/ca", Node: "node1",
		API: api, Pods: n, Runtime: n, Volumes: n,
		Metrics: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "volumes 1\n") }),
		Pages:   http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "the page at ", r.URL.Path) }), Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(a.pem)
	client = func(certificates ...tls.Certificate) *http.Client {
		transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: "node1", Certificates: certificates}, DisableKeepAlives: true}
		return &http.Client{Transport: transport}
	}
	running := v1.ContainerState{Running: &v1.ContainerStateRunning{}}
	n.pods = []*v1.Pod{{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "uid-web"},
		Spec: v1.PodSpec{Containers: []v1.Container{{Name: "main"}}, Volumes: []v1.Volume{{Name: "block"},
			{Name: "data", VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "claim"}}}}},
		Status: v1.PodStatus{EphemeralContainerStatuses: []v1.ContainerStatus{{Name: "looking", State: running, ContainerID: "containerd://looks"}}, ContainerStatuses: []v1.ContainerStatus{{Name: "main", RestartCount: 1, State: running, ContainerID: "containerd://abc",
			LastTerminationState: v1.ContainerState{Terminated: &v1.ContainerStateTerminated{}}}, {Name: "waits", State: v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: "ErrImagePull"}}}}}}}
	return n, fmt.Sprintf("https://127.0.0.1:%d", s.Port()), client, a
}

func get(t *testing.T, c *http.Client, url string) (int, string) {
	t.Helper()
	response, err := c.Get(url)
	if err != nil {
		return 0, err.Error()
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Error(err)
	}
	return response.StatusCode, string(body)
}

// Only callers with a certificate get in, and only to what the API server allows them.
func TestAccess(t *testing.T) {
	_, url, client, a := serve(t)
	if code, says := get(t, client(), url+"/pods"); code != 0 || !strings.Contains(says, "certificate") {
		t.Errorf("without a certificate: %d, %s", code, says)
	}
	if code, _ := get(t, client(newAuthority(t).user("apiserver")), url+"/pods"); code != 0 {
		t.Errorf("with another authority's certificate: %d", code)
	}
	if code, says := get(t, client(a.user("apiserver")), url+"/metrics"); code != 200 || says != "volumes 1\n" {
		t.Errorf("metrics: %d, %s", code, says)
	}
	for path, want := range map[string]string{"/podvol/": "the page at /", "/podvol": "the page at /", "/podvol/watch": "the page at /watch"} {
		if code, says := get(t, client(a.user("apiserver")), url+path); code != 200 || says != want {
			t.Errorf("%s: %d, %s", path, code, says)
		}
		if code, says := get(t, client(a.user("reader")), url+path); code != 403 || !strings.Contains(says, "nodes/proxy") {
			t.Errorf("%s, for a user who may only get statistics: %d, %s", path, code, says)
		}
	}
	for user, codes := range map[string][2]int{"apiserver": {200, 200}, "reader": {403, 200}, "nobody": {403, 403}} {
		c := client(a.user(user))
		pods, _ := get(t, c, url+"/pods")
		stats, says := get(t, c, url+"/stats/summary")
		if pods != codes[0] || stats != codes[1] {
			t.Errorf("%s: pods %d, stats %d (%s)", user, pods, stats, says)
		}
	}
}

// The summary has what containers and volumes use, as far as it is known.
func TestSummary(t *testing.T) {
	_, url, client, a := serve(t)
	code, says := get(t, client(a.user("reader")), url+"/stats/summary")
	want := `{"node":{"nodeName":"node1"},"pods":[{"podRef":{"name":"web","namespace":"shop","uid":"uid-web"},"startTime":null,` +
		`"containers":[{"name":"main","startTime":null,"cpu":{"time":null,"usageCoreNanoSeconds":12},"memory":{"time":null,"usageBytes":56,"workingSetBytes":34,"rssBytes":7}},` +
		`{"name":"looking","startTime":null,"cpu":{"time":null,"usageCoreNanoSeconds":1},"memory":{"time":null,"usageBytes":0,"workingSetBytes":0,"rssBytes":0},"rootfs":{"time":null,"usedBytes":4096,"inodesUsed":2}}],` +
		`"volume":[{"name":"data","pvcRef":{"name":"claim","namespace":"shop"},"time":null,"usedBytes":100,"inodes":9}]}]}`
	if code != 200 || strings.TrimSpace(says) != want {
		t.Errorf("%d, %s", code, says)
	}
}

// A session is handed on to the runtime with its protocol, both ways. A terminal has one
// output; whether there is one is decided by the request of exec, and by the container
// that is attached to.
func TestSessionsAreHandedOn(t *testing.T) {
	n, url, client, a := serve(t)
	n.stream = streamServer(t)
	n.pods[0].Spec.Containers = append(n.pods[0].Spec.Containers, v1.Container{Name: "shell", TTY: true})
	status := n.pods[0].Status.ContainerStatuses[0]
	status.Name, status.ContainerID = "shell", "containerd://def"
	n.pods[0].Status.ContainerStatuses = append(n.pods[0].Status.ContainerStatuses, status)
	for _, test := range []struct{ path, asked string }{
		{"/exec/shop/web/main?command=ls&command=-l&output=1&error=1", `exec in abc of ["ls" "-l"] with {In:false Out:true Err:true TTY:false}`},
		{"/exec/shop/web/main?command=sh&input=1&output=1&error=1&tty=1", `exec in abc of ["sh"] with {In:true Out:true Err:false TTY:true}`},
		{"/attach/shop/web/main?output=1&error=1&tty=1", `attach to abc with {In:false Out:true Err:true TTY:false}`},
		{"/attach/shop/web/shell?output=1&error=1", `attach to def with {In:false Out:true Err:false TTY:true}`},
		{"/portForward/shop/web", "forward ports of uid-web"},
	} {
		n.asked = nil
		if said := talk(t, client(a.user("apiserver")), url+test.path); said != "you said hello" {
			t.Errorf("%s: %q", test.path, said)
		}
		if len(n.asked) != 1 || n.asked[0] != test.asked {
			t.Errorf("%s asked: %q", test.path, n.asked)
		}
	}
}

// The runtime is on this machine: its sessions go through no proxy.
func TestSessionsGoThroughNoProxy(t *testing.T) {
	n, _, _, _ := serve(t)
	s, err := Listen(Config{Address: "127.0.0.1:0", CertFile: n.dir + "/cert", KeyFile: n.dir + "/key", ClientCAFile: n.dir + "/ca"})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if transport, ok := s.sessions.(*http.Transport); !ok || transport.Proxy != nil {
		t.Errorf("sessions are handed on by %T, with a proxy", s.sessions)
	}
}

// No session begins without the permission to change the container.
func TestSessionsAreRefused(t *testing.T) {
	n, url, client, a := serve(t)
	n.stream = streamServer(t)
	for _, path := range []string{"/exec/shop/web/main?command=ls&output=1", "/attach/shop/web/main?output=1", "/portForward/shop/web"} {
		if said := talk(t, client(a.user("reader")), url+path); said != "403 Forbidden" {
			t.Errorf("%s: %q", path, said)
		}
		if said := talk(t, client(a.user("")), url+path); said != "401 Unauthorized" {
			t.Errorf("%s without a user's name: %q", path, said)
		}
	}
	if len(n.asked) > 0 {
		t.Errorf("the runtime was asked: %q", n.asked)
	}
}

// streamServer is the runtime's: it repeats a line.
func streamServer(t *testing.T) string {
	stream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasSuffix(r.URL.Path, "/token") || r.URL.RawQuery != "" || r.Header.Get("X-Stream-Protocol-Version") != "v4.channel.k8s.io" {
			t.Errorf("the runtime was asked for %s with %v", r.URL, r.Header)
		}
		connection, both, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer connection.Close()
		fmt.Fprint(both, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n")
		both.Flush()
		line, _ := both.ReadString('\n')
		fmt.Fprintf(both, "you said %s", line)
		both.Flush()
	}))
	t.Cleanup(stream.Close)
	return stream.URL
}

// talk begins a session, says hello, and returns the answer, or the status of a refusal.
func talk(t *testing.T, client *http.Client, url string) string {
	t.Helper()
	request, err := http.NewRequest(http.MethodPost, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header = http.Header{"Connection": {"Upgrade"}, "Upgrade": {"SPDY/3.1"}, "X-Stream-Protocol-Version": {"v4.channel.k8s.io"}}
	response, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	both, ok := response.Body.(io.ReadWriter)
	if response.StatusCode != http.StatusSwitchingProtocols || !ok {
		return response.Status
	}
	if _, err := io.WriteString(both, "hello\n"); err != nil {
		t.Fatal(err)
	}
	said, err := io.ReadAll(both)
	if err != nil {
		t.Error(err)
	}
	return string(bytes.TrimSpace(said))
}
