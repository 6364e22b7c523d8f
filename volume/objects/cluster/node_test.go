package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects/cluster"
	"github.com/podvol/podvol/volume/objects/cluster/clustertest"
	"github.com/podvol/podvol/volume/plugins"
	"github.com/podvol/podvol/volume/volumemanager"
)

// node is a whole node over the API of a cluster: what outlives its restarts, and
// the manager and the client of now.
type node struct {
	t         testing.TB
	api       *clustertest.Server
	transport *clustertest.Transport
	config    cluster.Config
	root      string
	mounter   mount.Interface
	events    eventLog

	*volumemanager.Manager
	client *cluster.Client
	stop   func()
}

// newNode returns a node, with the fake mounter unless there is another, that is
// not started.
func newNode(t testing.TB, config cluster.Config, mounter mount.Interface) *node {
	api := clustertest.NewServer()
	n := &node{t: t, api: api, transport: clustertest.NewTransport(api), config: config, root: filepath.Join(t.TempDir(), "root"), mounter: mounter}
	if mounter == nil {
		fake := fakemount.New()
		n.mounter = fake
		t.Cleanup(func() {
			if err := fake.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	return n
}

// start runs a new manager with a new client, as a process that has just begun.
func (n *node) start() {
	n.t.Helper()
	set := clustertest.Clientset(n.t, "http://api", n.transport)
	factory := informers.NewSharedInformerFactory(set, 0)
	client, err := cluster.FromInformers(factory, set, n.config)
	if err != nil {
		n.t.Fatal(err)
	}
	manager, err := volumemanager.New(volumemanager.Config{
		RootDir: n.root, NodeName: "node1", Objects: client, Plugins: plugins.All(), Mounter: n.mounter, Events: &n.events, Tokens: tokens{n.transport},
	})
	if err != nil {
		n.t.Fatal(err)
	}
	n.Manager, n.client = manager, client
	ctx, cancel := context.WithCancel(context.Background())
	factory.Start(ctx.Done())
	ended := make(chan error, 1)
	go func() { ended <- manager.Run(ctx) }()
	n.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			n.t.Errorf("Run: %v", err)
		}
		client.Close()
		factory.Shutdown()
	})
	n.t.Cleanup(n.stop)
	if err := manager.WaitForRecovery(context.Background()); err != nil {
		n.t.Fatal(err)
	}
}

// put declares pods.
func (n *node) put(pods ...*v1.Pod) {
	n.t.Helper()
	for _, pod := range pods {
		if err := n.PutPod(pod); err != nil {
			n.t.Fatal(err)
		}
	}
}

// wantMounted waits until the pods' volumes are mounted.
func (n *node) wantMounted(pods ...*v1.Pod) {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	for _, pod := range pods {
		if err := n.WaitForMounted(ctx, pod.UID); err != nil {
			n.t.Fatal(err)
		}
	}
}

// createBound creates a claim and its volume, whose phases say so.
func (n *node) createBound(claim *v1.PersistentVolumeClaim, pv *v1.PersistentVolume) {
	n.t.Helper()
	n.create(claim)
	stored, err := n.api.Store().Get(context.Background(), volume.NewObjectRef("PersistentVolumeClaim", claim.Namespace, claim.Name))
	if err != nil {
		n.t.Fatal(err)
	}
	pv.Spec.ClaimRef.UID = stored.GetUID()
	n.create(pv)
	bound, boundPV := claim.DeepCopy(), pv.DeepCopy()
	bound.UID = ""
	bound.Status.Phase, boundPV.Status.Phase = v1.ClaimBound, v1.VolumeBound
	for _, object := range []metav1.Object{bound, boundPV} {
		if err := n.api.DirectStatus(context.Background(), object); err != nil {
			n.t.Fatal(err)
		}
	}
}

// tearDown says that the pods' containers are gone, and waits until their volumes
// are.
func (n *node) tearDown(pods ...*v1.Pod) {
	n.t.Helper()
	errs := make([]error, len(pods))
	var all sync.WaitGroup
	for i, pod := range pods {
		all.Go(func() { errs[i] = n.TearDownPod(context.Background(), pod.UID) })
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		n.t.Fatal(err)
	}
}

// create and change write past all faults.
func (n *node) create(all ...metav1.Object) { n.direct(http.MethodPost, all...) }
func (n *node) change(all ...metav1.Object) { n.direct(http.MethodPut, all...) }
func (n *node) delete(all ...metav1.Object) { n.direct(http.MethodDelete, all...) }

func (n *node) direct(method string, all ...metav1.Object) {
	n.t.Helper()
	for _, object := range all {
		n.api.Direct(n.t, method, object)
	}
}

// read returns a file of a pod's volume.
func (n *node) read(pod *v1.Pod, plugin, name, file string) string {
	data, err := os.ReadFile(n.path(pod, plugin, name, file))
	if errors.Is(err, os.ErrNotExist) {
		return ""
	}
	if err != nil {
		n.t.Fatal(err)
	}
	return string(data)
}

func (n *node) path(pod *v1.Pod, plugin, name, file string) string {
	return filepath.Join(n.root, "pods", string(pod.UID), "volumes", "kubernetes.io~"+plugin, name, file)
}

// tokens are issued as long as the API can be reached.
type tokens struct{ transport *clustertest.Transport }

func (i tokens) RequestToken(ctx context.Context, namespace, account string, request *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error) {
	url := fmt.Sprintf("http://api/api/v1/namespaces/%s/serviceaccounts/%s/token", namespace, account)
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	response, err := i.transport.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, errors.New(http.StatusText(response.StatusCode))
	}
	request = request.DeepCopy()
	request.Status.Token = fmt.Sprintf("%s of %s", account, request.Spec.BoundObjectRef.UID)
	request.Status.ExpirationTimestamp = metav1.NewTime(time.Now().Add(time.Duration(*request.Spec.ExpirationSeconds) * time.Second))
	return request, nil
}

// eventLog keeps events as "pod: reason message".
type eventLog struct {
	mu  sync.Mutex
	all []string
}

func (l *eventLog) Event(pod *v1.Pod, _, reason, message string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, fmt.Sprintf("%s: %s %s", pod.Name, reason, message))
}

// taken returns the events so far, and forgets them.
func (l *eventLog) taken() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := l.all
	l.all = nil
	return all
}

func podOf(name string, volumes ...v1.Volume) *v1.Pod {
	c := v1.Container{Name: "c", Image: "i"}
	for _, v := range volumes {
		c.VolumeMounts = append(c.VolumeMounts, v1.VolumeMount{Name: v.Name, MountPath: "/" + v.Name})
	}
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ops", Name: name, UID: types.UID("uid-" + name), Labels: map[string]string{"app": name}},
		Spec:       v1.PodSpec{NodeName: "node1", Volumes: volumes, Containers: []v1.Container{c}},
	}
}

func configMapVolume(name, configMap string) v1.Volume {
	return v1.Volume{Name: name, VolumeSource: v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: v1.LocalObjectReference{Name: configMap}}}}
}

func secretVolume(name, secret string) v1.Volume {
	return v1.Volume{Name: name, VolumeSource: v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: secret}}}
}

func claimVolume(name, claim string) v1.Volume {
	return v1.Volume{Name: name, VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: claim}}}
}

// accessVolume is what Kubernetes gives every pod for its service account.
func accessVolume(more ...v1.VolumeProjection) v1.Volume {
	sources := []v1.VolumeProjection{
		{ServiceAccountToken: &v1.ServiceAccountTokenProjection{Path: "token", ExpirationSeconds: new(int64(3607))}},
		{ConfigMap: &v1.ConfigMapProjection{LocalObjectReference: v1.LocalObjectReference{Name: "kube-root-ca.crt"}, Items: []v1.KeyToPath{{Key: "ca.crt", Path: "ca.crt"}}}},
		{DownwardAPI: &v1.DownwardAPIProjection{Items: []v1.DownwardAPIVolumeFile{{Path: "namespace", FieldRef: &v1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "metadata.namespace"}}}}},
	}
	return v1.Volume{Name: "kube-api-access", VolumeSource: v1.VolumeSource{Projected: &v1.ProjectedVolumeSource{Sources: append(sources, more...)}}}
}

func rootCA() *v1.ConfigMap {
	return &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ops", Name: "kube-root-ca.crt"}, Data: map[string]string{"ca.crt": "certificate"}}
}

func secret(name, value string) *v1.Secret {
	return &v1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ops", Name: name}, Data: map[string][]byte{"key": []byte(value)}}
}

func configMapOf(name, value string) *v1.ConfigMap {
	c := configMap(name)
	c.Data["key"] = value
	return c
}

// boundPair is a claim and the NFS volume that it is bound to.
func boundPair(claim, pv string) (*v1.PersistentVolumeClaim, *v1.PersistentVolume) {
	size := v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")}
	modes := []v1.PersistentVolumeAccessMode{v1.ReadWriteMany}
	c := &v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ops", Name: claim, UID: types.UID("claim-" + claim), Annotations: map[string]string{"pv.kubernetes.io/bind-completed": "yes"}},
		Spec:       v1.PersistentVolumeClaimSpec{AccessModes: modes, VolumeName: pv, Resources: v1.VolumeResourceRequirements{Requests: size}},
	}
	v := &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: pv}, Spec: v1.PersistentVolumeSpec{
		Capacity: size, AccessModes: modes, ClaimRef: &v1.ObjectReference{Kind: "PersistentVolumeClaim", Namespace: "ops", Name: claim, UID: c.UID},
		PersistentVolumeSource: v1.PersistentVolumeSource{NFS: &v1.NFSVolumeSource{Server: "192.0.2.1", Path: "/" + pv}}}}
	return c, v
}

// wantAllMounted fails if a volume was unmounted, or so many are not shown as mounted.
func (n *node) wantAllMounted(volumes int) {
	n.t.Helper()
	mounted := 0
	for _, row := range n.Explain() {
		if row.State == volumemanager.StateMounted {
			mounted++
		} else {
			n.t.Errorf("volume %s of pod %s is %s: %v", row.Volume, row.Pod, row.State, row.Err)
		}
	}
	if mounted != volumes {
		n.t.Errorf("%d volumes are mounted, want %d", mounted, volumes)
	}
	if fake, ok := n.mounter.(*fakemount.Mounter); ok {
		for _, call := range fake.Calls() {
			if strings.Contains(call.Op, "unmount") {
				n.t.Errorf("unmounted: %s", call)
			}
		}
	}
}

var _ volume.TokenRequester = tokens{}
