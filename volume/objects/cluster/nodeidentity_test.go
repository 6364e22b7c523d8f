package cluster_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/podvol/podvol/util/testenv/apiserver"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/objects/cluster"
)

// A node's identity may see what its pods name, object by object.
func TestANodesIdentityOnARealAPIServer(t *testing.T) {
	apiserver.Run(t, apiserver.Config{}, func(t *testing.T, s *apiserver.Server) {
		c := &realCluster{t: t, admin: withNamespaces(t, s)}
		c.add(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}, &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n2"}},
			named[v1.ServiceAccount]("app"), c.secret("mine"), c.secret("other"), c.secret("later"), configMap("mine"), configMap("other"),
			c.claim("mine", "pv-mine"), c.claim("other", "pv-other"), c.volume("pv-mine", "mine"), c.volume("pv-other", "other"))
		c.add(c.pod("mine", "n1"), c.pod("other", "n2"))
		set, _ := as(t, s.Kubeconfig(t, "system:node:n1", "system:nodes"))
		node := connect(t, set, cluster.Config{Shared: []string{}})
		t.Run("sees what its pods use", func(t *testing.T) { c.seesItsOwn(t, node) })
		t.Run("is told that it may not see the rest", func(t *testing.T) { c.isForbidden(t, node) })
		t.Run("sees what a new pod uses", func(t *testing.T) { c.seesMoreLater(t, node) })
		t.Run("sees its node", func(t *testing.T) { c.seesItsNode(t, node) })
		t.Run("sees its pods", func(t *testing.T) { c.seesItsPods(t, node, set) })
	})
}

// realCluster is a real API server with what an administrator has put there.
type realCluster struct {
	t     *testing.T
	admin kubernetes.Interface
}

func named[T any, P interface {
	*T
	metav1.Object
}](name string) P {
	object := P(new(T))
	object.SetNamespace("ops")
	object.SetName(name)
	return object
}

func (c *realCluster) add(all ...metav1.Object) {
	c.t.Helper()
	admin := connect(c.t, c.admin, cluster.Config{Shared: []string{}})
	for _, object := range all {
		if _, err := admin.Create(c.t.Context(), object); err != nil {
			c.t.Fatal(err)
		}
	}
}

func (c *realCluster) secret(name string) *v1.Secret {
	secret := named[v1.Secret](name)
	secret.Data = map[string][]byte{"key": []byte("value")}
	return secret
}

func (c *realCluster) claim(name, pv string) *v1.PersistentVolumeClaim {
	claim := named[v1.PersistentVolumeClaim](name)
	claim.Spec = v1.PersistentVolumeClaimSpec{AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteMany}, VolumeName: pv, StorageClassName: new(""),
		Resources: v1.VolumeResourceRequirements{Requests: v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")}}}
	return claim
}

func (c *realCluster) volume(name, claim string) *v1.PersistentVolume {
	return &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1.PersistentVolumeSpec{
		AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteMany}, Capacity: v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")},
		ClaimRef:               &v1.ObjectReference{Kind: "PersistentVolumeClaim", Namespace: "ops", Name: claim},
		PersistentVolumeSource: v1.PersistentVolumeSource{NFS: &v1.NFSVolumeSource{Server: "192.0.2.1", Path: "/" + name}},
	}}
}

// pod uses the secret, config map and claim of its name, and the service account.
func (c *realCluster) pod(name, node string) *v1.Pod {
	pod := named[v1.Pod](name)
	app := v1.Container{Name: "main", Image: "example.com/app", VolumeMounts: []v1.VolumeMount{
		{Name: "secret", MountPath: "/secret"}, {Name: "config", MountPath: "/config"}, {Name: "claim", MountPath: "/claim"},
	}}
	pod.Spec = v1.PodSpec{NodeName: node, ServiceAccountName: "app", Containers: []v1.Container{app}, Volumes: []v1.Volume{
		{Name: "secret", VolumeSource: v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: name}}},
		{Name: "config", VolumeSource: v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: v1.LocalObjectReference{Name: name}}}},
		{Name: "claim", VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: name}}},
	}}
	return pod
}

// visible are the kinds that a node sees by its pods; PersistentVolumes by their claims.
func visible(name string) []volume.ObjectRef {
	return []volume.ObjectRef{volume.NewObjectRef("Secret", "ops", name), volume.NewObjectRef("ConfigMap", "ops", name),
		volume.NewObjectRef("PersistentVolumeClaim", "ops", name), volume.NewObjectRef("PersistentVolume", "", "pv-"+name)}
}

// eventually asks until wanted is content, each time that source tells of ref.
func eventually(t *testing.T, source objects.Source, ref volume.ObjectRef, wanted func(metav1.Object, error) bool) {
	t.Helper()
	told := make(chan struct{}, 1)
	defer source.Watch(ref, func(volume.ObjectRef) {
		select {
		case told <- struct{}{}:
		default:
		}
	})()
	for late := time.After(time.Minute); ; {
		object, err := source.Get(t.Context(), ref)
		if wanted(object, err) {
			return
		}
		select {
		case <-told:
		case <-late:
			t.Errorf("%s is not as wanted, but %v, %v", ref, object, err)
			return
		}
	}
}

func isThere(_ metav1.Object, err error) bool { return err == nil }

func (c *realCluster) seesItsOwn(t *testing.T, node *cluster.Client) {
	for _, r := range visible("mine") {
		eventually(t, node, r, isThere) // the authorizer learns of pods a little late
		if _, err := node.Get(t.Context(), r); err != nil {
			t.Errorf("get %s, watched by nobody: %v", r, err)
		}
	}
	if _, err := node.Get(t.Context(), volume.NewObjectRef("Secret", "ops", "mine")); err != nil {
		t.Error(err)
	}
	changed := func(r volume.ObjectRef, change func() error) {
		t.Helper()
		before, err := node.Get(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		stop := node.Watch(r, func(volume.ObjectRef) {})
		defer stop()
		eventually(t, node, r, isThere)
		if err := change(); err != nil {
			t.Fatal(err)
		}
		eventually(t, node, r, func(o metav1.Object, err error) bool {
			return err == nil && o.GetResourceVersion() != before.GetResourceVersion()
		})
	}
	changed(visible("mine")[0], func() error {
		secret := c.secret("mine")
		secret.Data["key"] = []byte("new")
		_, err := c.admin.CoreV1().Secrets("ops").Update(t.Context(), secret, metav1.UpdateOptions{})
		return err
	})
	changed(visible("mine")[2], func() error {
		claim, err := c.admin.CoreV1().PersistentVolumeClaims("ops").Get(t.Context(), "mine", metav1.GetOptions{})
		if err == nil {
			claim.Annotations = map[string]string{"example.com/changed": ""}
			_, err = c.admin.CoreV1().PersistentVolumeClaims("ops").Update(t.Context(), claim, metav1.UpdateOptions{})
		}
		return err
	})
}

// forbidden is true of a refusal that names its reason and says nothing about
// existence.
func forbidden(_ metav1.Object, err error) bool {
	return apierrors.IsForbidden(err) && !errors.Is(err, volume.ErrNotFound) && !errors.Is(err, objects.ErrNotSynced) && strings.Contains(err.Error(), "forbidden") && strings.Contains(err.Error(), "system:node:n1")
}

func (c *realCluster) isForbidden(t *testing.T, node *cluster.Client) {
	for _, name := range []string{"other", "missing"} {
		for _, r := range visible(name) {
			if object, err := node.Get(t.Context(), r); !forbidden(object, err) {
				t.Errorf("get %s: %v, %v; want that it is forbidden", r, object, err)
			}
			stop := node.Watch(r, func(volume.ObjectRef) {})
			if object, err := node.Get(t.Context(), r); !forbidden(object, err) {
				t.Errorf("get %s, watched: %v, %v; want that it is forbidden", r, object, err)
			}
			stop()
		}
	}
	if _, err := node.Live().List(t.Context(), "Secret", "ops"); !apierrors.IsForbidden(err) {
		t.Errorf("list all secrets: %v", err)
	}
}

// seesMoreLater watches a secret from before the pod that uses it is there.
func (c *realCluster) seesMoreLater(t *testing.T, node *cluster.Client) {
	r := volume.NewObjectRef("Secret", "ops", "later")
	stop := node.Watch(r, func(volume.ObjectRef) {})
	defer stop()
	if object, err := node.Get(t.Context(), r); !forbidden(object, err) {
		t.Errorf("before the pod is there: %v, %v", object, err)
	}
	c.add(c.pod("later", "n1"))
	eventually(t, node, r, isThere)
}

func (c *realCluster) seesItsNode(t *testing.T, node *cluster.Client) {
	eventually(t, node, volume.NewObjectRef("Node", "", "n1"), isThere)
	mine, err := objects.Get[*v1.Node](t.Context(), node, volume.NewObjectRef("Node", "", "n1"))
	if err != nil {
		t.Fatal(err)
	}
	next := mine.DeepCopy()
	next.Status.VolumesInUse = []v1.UniqueVolumeName{"kubernetes.io/csi/example.com^v1"}
	if stored, err := node.UpdateStatus(t.Context(), next); err != nil || len(stored.(*v1.Node).Status.VolumesInUse) != 1 {
		t.Errorf("volumes in use: %v, %v", stored, err)
	}
	theirs := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n2"}, Status: next.Status}
	if _, err := node.UpdateStatus(t.Context(), theirs); !apierrors.IsForbidden(err) {
		t.Errorf("another node's volumes in use: %v", err)
	}
}

// seesItsPods watches a pod by its name, and lists those that are the node's.
func (c *realCluster) seesItsPods(t *testing.T, node *cluster.Client, set kubernetes.Interface) {
	eventually(t, node, volume.NewObjectRef("Pod", "ops", "mine"), isThere)
	if object, err := node.Get(t.Context(), volume.NewObjectRef("Pod", "ops", "other")); !forbidden(object, err) {
		t.Errorf("another node's pod: %v, %v", object, err)
	}
	ofNode := func(options *metav1.ListOptions) { options.FieldSelector = "spec.nodeName=n1" }
	factory := informers.NewSharedInformerFactoryWithOptions(set, 0, informers.WithTweakListOptions(ofNode))
	pods := factory.Core().V1().Pods().Informer()
	shared, err := cluster.FromInformers(nil, set, cluster.Config{Shared: []string{}, Informers: map[string]cache.SharedIndexInformer{"Pod": pods}})
	if err != nil {
		t.Fatal(err)
	}
	end := make(chan struct{})
	defer factory.Shutdown()
	defer close(end)
	defer shared.Close()
	factory.Start(end)
	if err := shared.WaitForSync(t.Context()); err != nil {
		t.Fatal(err)
	}
	all, err := shared.List(t.Context(), "Pod", "")
	if err != nil || len(all) != 2 {
		t.Errorf("listed %v, %v; want the node's two", all, err)
	}
	account := volume.NewObjectRef("ServiceAccount", "ops", "app")
	eventually(t, node, account, isThere)
}
