package main

import (
	"context"
	"errors"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/podvol/podvol/util/testenv/apiserver"
	"github.com/podvol/podvol/volume/attachdetach"
)

// Disks of iSCSI move as those of CSI drivers do, with the rights of the mode's manifest: nobody
// but the controller itself attaches them. The process is killed with SIGKILL meanwhile.
func TestLUNsMoveOnARealAPIServer(t *testing.T) {
	apiserver.Run(t, apiserver.Config{}, func(t *testing.T, s *apiserver.Server) {
		l := newLUNs(t, clientsetOf(t, s.Admin(t)))
		start := attaching(t, s, l.admin)
		l.createLUN("left")
		l.list("two", lunName("left")) // as Kubernetes' controller has left it
		l.use("two", []v1.UniqueVolumeName{lunName("left")})
		first := start()

		l.createLUN("moves")
		l.createPod("one", "moves")
		l.createInline("one", "inline")
		until(t, "the disks are listed on the first node", func() bool { return l.lists("one", "inline", "moves") })
		a := l.attachment("moves")
		if !a.Status.Attached || a.Spec.Attacher != "iscsi.kubernetes.io" || !slices.Contains(a.Finalizers, attachdetach.AttachedFinalizer) {
			t.Errorf("the VolumeAttachment is %+v", a)
		}
		l.use("one", []v1.UniqueVolumeName{lunName("moves"), lunName("inline")})
		l.deletePod("one", "moves")
		l.deletePod("one", "inline")
		if err := first.cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		start()

		l.createPod("two", "moves")
		l.createPod("one", "left")
		until(t, "both pods are told which node has their disk", func() bool {
			return l.told("node one has it; no pod there wants it, but that node still has it mounted") == 1 && l.told("node two has it; no pod there wants it") == 1
		})
		if !l.lists("one", "inline", "moves") || !l.lists("two", "left") {
			t.Errorf("listed: %v, %v", l.listed("one"), l.listed("two"))
		}
		l.use("one", nil)
		l.use("two", nil)
		until(t, "the disks have changed places", func() bool { return l.lists("one", "left") && l.lists("two", "moves") })

		l.deletePod("one", "left")
		l.deletePod("two", "moves")
		until(t, "nothing is attached", func() bool { return l.attached() == 0 && l.lists("one") && l.lists("two") })
		until(t, "the PersistentVolumes are let go", func() bool {
			pv, err := l.admin.CoreV1().PersistentVolumes().Get(t.Context(), "moves", metav1.GetOptions{})
			return err == nil && !slices.Contains(pv.Finalizers, attachdetach.AttachedFinalizer)
		})
	})
}

// luns are disks of iSCSI targets, and two nodes.
type luns struct{ disks }

func newLUNs(t *testing.T, admin kubernetes.Interface) *luns {
	t.Helper()
	_, err := admin.CoreV1().Namespaces().Create(t.Context(), &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ops"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	l := &luns{disks{t: t, admin: admin}}
	l.createNode("one")
	l.createNode("two")
	return l
}

const lunPortal = "192.0.2.1:3260"

func lunTarget(name string) string { return "iqn.2026-11.com.example:" + name }

// lunName is as Kubernetes' controller names the volume.
func lunName(name string) v1.UniqueVolumeName {
	return v1.UniqueVolumeName("kubernetes.io/iscsi/" + lunPortal + ":" + lunTarget(name) + ":0")
}

// createLUN makes a PersistentVolume and the claim that it is bound to.
func (l *luns) createLUN(name string) {
	l.t.Helper()
	ctx, size := l.t.Context(), v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")}
	modes, class := []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}, ""
	claim, err := l.admin.CoreV1().PersistentVolumeClaims("ops").Create(ctx, &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1.PersistentVolumeClaimSpec{VolumeName: name, AccessModes: modes, StorageClassName: &class, Resources: v1.VolumeResourceRequirements{Requests: size}}}, metav1.CreateOptions{})
	if err != nil {
		l.t.Fatal(err)
	}
	_, pvErr := l.admin.CoreV1().PersistentVolumes().Create(ctx, &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1.PersistentVolumeSpec{
		Capacity: size, AccessModes: modes, ClaimRef: &v1.ObjectReference{Namespace: "ops", Name: name, UID: claim.UID},
		PersistentVolumeSource: v1.PersistentVolumeSource{ISCSI: &v1.ISCSIPersistentVolumeSource{TargetPortal: lunPortal, IQN: lunTarget(name)}}}}, metav1.CreateOptions{})
	claim.Status.Phase = v1.ClaimBound
	_, claimErr := l.admin.CoreV1().PersistentVolumeClaims("ops").UpdateStatus(ctx, claim, metav1.UpdateOptions{})
	if apierrors.IsConflict(claimErr) {
		claimErr = nil // a cluster's own controller binds it
	}
	if err := errors.Join(pvErr, claimErr); err != nil {
		l.t.Fatal(err)
	}
}

// createPod makes a pod with the claim of a name.
func (l *luns) createPod(node, name string) {
	l.t.Helper()
	l.create(node, name, v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: name}})
}

// createInline makes a pod that names the disk itself.
func (l *luns) createInline(node, name string) {
	l.t.Helper()
	l.create(node, name, v1.VolumeSource{ISCSI: &v1.ISCSIVolumeSource{TargetPortal: lunPortal, IQN: lunTarget(name)}})
}

func (l *luns) create(node, name string, source v1.VolumeSource) {
	l.t.Helper()
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: node + "-" + name}, Spec: v1.PodSpec{NodeName: node,
		Containers: []v1.Container{{Name: "c", Image: "i"}}, Volumes: []v1.Volume{{Name: "v", VolumeSource: source}}}}
	if _, err := l.admin.CoreV1().Pods("ops").Create(l.t.Context(), pod, metav1.CreateOptions{}); err != nil {
		l.t.Fatal(err)
	}
}

func (l *luns) deletePod(node, name string) {
	l.t.Helper()
	if err := l.admin.CoreV1().Pods("ops").Delete(l.t.Context(), node+"-"+name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)}); err != nil {
		l.t.Fatal(err)
	}
}

// list has a node list disks, without VolumeAttachments.
func (l *luns) list(node string, names ...v1.UniqueVolumeName) {
	l.t.Helper()
	object, err := l.admin.CoreV1().Nodes().Get(l.t.Context(), node, metav1.GetOptions{})
	if err != nil {
		l.t.Fatal(err)
	}
	for _, name := range names {
		object.Status.VolumesAttached = append(object.Status.VolumesAttached, v1.AttachedVolume{Name: name})
	}
	if _, err := l.admin.CoreV1().Nodes().UpdateStatus(l.t.Context(), object, metav1.UpdateOptions{}); err != nil {
		l.t.Fatal(err)
	}
}

// lists reports whether a node is told that it has just these disks.
func (l *luns) lists(node string, names ...string) bool {
	l.t.Helper()
	var want []v1.UniqueVolumeName
	for _, name := range names {
		want = append(want, lunName(name))
	}
	return slices.Equal(l.listed(node), want)
}

// attachment is the VolumeAttachment of a disk.
func (l *luns) attachment(name string) *storagev1.VolumeAttachment {
	l.t.Helper()
	all, err := l.admin.StorageV1().VolumeAttachments().List(context.Background(), metav1.ListOptions{})
	if err != nil {
		l.t.Fatal(err)
	}
	for i := range all.Items {
		if pv := all.Items[i].Spec.Source.PersistentVolumeName; pv != nil && *pv == name {
			return &all.Items[i]
		}
	}
	l.t.Fatalf("no VolumeAttachment is of %s", name)
	return nil
}
