package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/podvol/podvol/util/testenv/apiserver"
	"github.com/podvol/podvol/volume/attachdetach"
)

const testDriver = "disk.example.com"

// Disks are attached to the node of their pods, with the rights of the mode's manifest. They
// move to another node when the first has let them go, though the process that worked is
// killed with SIGKILL meanwhile.
func TestDisksMoveOnARealAPIServer(t *testing.T) {
	apiserver.Run(t, apiserver.Config{}, func(t *testing.T, s *apiserver.Server) {
		const n = 20
		admin := clientsetOf(t, s.Admin(t))
		_, err := admin.CoreV1().Namespaces().Create(t.Context(), &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ops"}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		start := attaching(t, s, admin)
		d := &disks{t: t, admin: admin, held: make(map[string]string)}
		d.beAttacher()
		for _, node := range []string{"one", "two"} {
			d.createNode(node)
		}
		first := start()
		d.createPods("one", n)
		until(t, "all disks are attached to the first node", func() bool { return len(d.listed("one")) == n })
		d.use("one", d.listed("one"))
		d.deletePods("one", n)
		if err := first.cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		start()
		d.createPods("two", n)
		until(t, "the pods of the second node are told what they wait for", func() bool { return d.told("node one has it") == n })
		if listed := d.listed("one"); len(listed) != n {
			t.Errorf("the first node, which uses %d disks, is told that it has %d", n, len(listed))
		}
		d.use("one", nil)
		until(t, "all disks are attached to the second node", func() bool { return len(d.listed("two")) == n && len(d.listed("one")) == 0 })
		d.deletePods("two", n)
		until(t, "nothing is attached", func() bool { return d.attached() == 0 && len(d.listed("two")) == 0 })
	})
}

// attacher is the user as whom the mode attach-detach runs.
const attacher = "system:serviceaccount:kube-system:podvol-attach-detach"

// attaching grants the rights of the mode's manifest, and returns what starts a process with
// them.
func attaching(t *testing.T, s *apiserver.Server, admin kubernetes.Interface) (start func() *process) {
	t.Helper()
	grant(t, admin, "testdata/attach-detach.yaml")
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(kubeconfig, s.Kubeconfig(t, attacher, "system:serviceaccounts", "system:serviceaccounts:kube-system"), 0o600); err != nil {
		t.Fatal(err)
	}
	return func() *process {
		return startProcess(t, t.TempDir(), "--kubeconfig="+kubeconfig, "--mode="+modeAttach, "--bind-address=",
			"--leader-elect-lease-duration=5s", "--leader-elect-renew-deadline=3s", "--leader-elect-retry-period=1s")
	}
}

// disks are those of a driver, which knows who has them.
type disks struct {
	t     *testing.T
	admin kubernetes.Interface

	mu   sync.Mutex
	held map[string]string // nodes by disk
}

// beAttacher does what a driver's external-attacher does.
func (d *disks) beAttacher() {
	d.t.Helper()
	factory := informers.NewSharedInformerFactory(d.admin, 0)
	informer := factory.Storage().V1().VolumeAttachments().Informer()
	handle := func(o any) { d.handle(o.(*storagev1.VolumeAttachment).DeepCopy()) }
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: handle, UpdateFunc: func(_, o any) { handle(o) }}); err != nil {
		d.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	factory.Start(ctx.Done())
	d.t.Cleanup(func() {
		cancel()
		factory.Shutdown()
	})
}

func (d *disks) handle(a *storagev1.VolumeAttachment) {
	const finalizer = "external-attacher/disk-example-com"
	ctx, attachments := context.Background(), d.admin.StorageV1().VolumeAttachments()
	disk, held := *a.Spec.Source.PersistentVolumeName, slices.Contains(a.Finalizers, finalizer)
	var err error
	switch {
	case a.DeletionTimestamp == nil && !held:
		a.Finalizers = append(a.Finalizers, finalizer)
		_, err = attachments.Update(ctx, a, metav1.UpdateOptions{})
	case a.DeletionTimestamp == nil && !a.Status.Attached:
		d.hold(disk, a.Spec.NodeName)
		a.Status.Attached = true
		_, err = attachments.UpdateStatus(ctx, a, metav1.UpdateOptions{})
	case a.DeletionTimestamp != nil && held:
		d.hold(disk, "")
		a.Finalizers = nil
		_, err = attachments.Update(ctx, a, metav1.UpdateOptions{})
	}
	if err != nil && !strings.Contains(err.Error(), "the object has been modified") && !strings.Contains(err.Error(), "not found") {
		d.t.Errorf("the attacher cannot write %s: %v", a.Name, err)
	}
}

// hold gives a disk to a node; empty: to none.
func (d *disks) hold(disk, node string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if before := d.held[disk]; node != "" && before != "" && before != node {
		d.t.Errorf("%s is attached to %s while %s has it", disk, node, before)
	}
	d.held[disk] = node
}

func (d *disks) createNode(name string) {
	d.t.Helper()
	node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{attachdetach.ManagedAnnotation: "true"}}}
	if _, err := d.admin.CoreV1().Nodes().Create(d.t.Context(), node, metav1.CreateOptions{}); err != nil {
		d.t.Fatal(err)
	}
}

// createPods makes pods of a node, each with a disk. The disks are made with the first pods.
func (d *disks) createPods(node string, n int) {
	d.t.Helper()
	for i := range n {
		disk := fmt.Sprintf("disk-%02d", i)
		if node == "one" {
			d.createDisk(disk)
		}
		pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: node + "-" + disk}, Spec: v1.PodSpec{NodeName: node, Containers: []v1.Container{{Name: "c", Image: "i"}},
			Volumes: []v1.Volume{{Name: "v", VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: disk}}}}}}
		if _, err := d.admin.CoreV1().Pods("ops").Create(d.t.Context(), pod, metav1.CreateOptions{}); err != nil {
			d.t.Fatal(err)
		}
	}
}

// createDisk makes a PersistentVolume and the claim that it is bound to.
func (d *disks) createDisk(name string) {
	d.t.Helper()
	ctx, size := d.t.Context(), v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")}
	modes, class := []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}, ""
	claim, err := d.admin.CoreV1().PersistentVolumeClaims("ops").Create(ctx, &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1.PersistentVolumeClaimSpec{VolumeName: name, AccessModes: modes, StorageClassName: &class, Resources: v1.VolumeResourceRequirements{Requests: size}}}, metav1.CreateOptions{})
	if err != nil {
		d.t.Fatal(err)
	}
	_, pvErr := d.admin.CoreV1().PersistentVolumes().Create(ctx, &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1.PersistentVolumeSpec{
		Capacity: size, AccessModes: modes, ClaimRef: &v1.ObjectReference{Namespace: "ops", Name: name, UID: claim.UID},
		PersistentVolumeSource: v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{Driver: testDriver, VolumeHandle: name}}}}, metav1.CreateOptions{})
	claim.Status.Phase = v1.ClaimBound
	_, claimErr := d.admin.CoreV1().PersistentVolumeClaims("ops").UpdateStatus(ctx, claim, metav1.UpdateOptions{})
	if err := errors.Join(pvErr, claimErr); err != nil {
		d.t.Fatal(err)
	}
}

func (d *disks) deletePods(node string, n int) {
	d.t.Helper()
	for i := range n {
		if err := d.admin.CoreV1().Pods("ops").Delete(d.t.Context(), fmt.Sprintf("%s-disk-%02d", node, i), metav1.DeleteOptions{GracePeriodSeconds: new(int64)}); err != nil {
			d.t.Fatal(err)
		}
	}
}

// listed are the disks that a node is told it has.
func (d *disks) listed(node string) (names []v1.UniqueVolumeName) {
	d.t.Helper()
	object, err := d.admin.CoreV1().Nodes().Get(d.t.Context(), node, metav1.GetOptions{})
	if err != nil {
		d.t.Fatal(err)
	}
	for _, a := range object.Status.VolumesAttached {
		names = append(names, a.Name)
	}
	return names
}

// use says what a node uses.
func (d *disks) use(node string, names []v1.UniqueVolumeName) {
	d.t.Helper()
	until(d.t, "the node has said what it uses", func() bool {
		object, err := d.admin.CoreV1().Nodes().Get(d.t.Context(), node, metav1.GetOptions{})
		if err != nil {
			return false
		}
		object.Status.VolumesInUse = names
		_, err = d.admin.CoreV1().Nodes().UpdateStatus(d.t.Context(), object, metav1.UpdateOptions{})
		return err == nil
	})
}

// told is how many pods were told something that has these words.
func (d *disks) told(words string) int {
	d.t.Helper()
	events, err := d.admin.CoreV1().Events("ops").List(d.t.Context(), metav1.ListOptions{})
	if err != nil {
		d.t.Fatal(err)
	}
	pods := make(map[string]bool)
	for i := range events.Items {
		if e := &events.Items[i]; strings.Contains(e.Message, words) {
			pods[e.InvolvedObject.Name] = true
		}
	}
	return len(pods)
}

func (d *disks) attached() int {
	d.t.Helper()
	all, err := d.admin.StorageV1().VolumeAttachments().List(d.t.Context(), metav1.ListOptions{})
	if err != nil {
		d.t.Fatal(err)
	}
	return len(all.Items)
}
