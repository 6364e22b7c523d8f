package embedded_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/claimbinding"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/persistentvolume"
	"github.com/podvol/podvol/volume/persistentvolume/embedded"
)

func podNode(t *testing.T, m *machine, name string) string {
	t.Helper()
	pod, err := objects.Get[*v1.Pod](t.Context(), m.Objects(), volume.NewObjectRef("Pod", "default", name))
	if err != nil {
		t.Fatal(err)
	}
	return pod.Spec.NodeName
}

func TestBindMakesVolumesAndFindsThemAgain(t *testing.T) {
	m := newMachine(t)
	m.run()
	m.mustBind(dirsClass + claimOfDirs + web)
	name := m.claim("data").Spec.VolumeName
	if made := m.made(); len(made) != 1 || !strings.HasSuffix(made[0], name) || podNode(t, m, "web") != "node1" {
		t.Errorf("made %v for volume %q, the pod is on %q", made, name, podNode(t, m, "web"))
	}
	m.restart()
	if m.exists("Pod", "web") || m.claim("data").Spec.VolumeName != name || m.pv(name).Status.Phase != v1.VolumeBound {
		t.Error("after a restart there are pods, or other volumes")
	}
	m.run()
	m.mustBind(dirsClass + claimOfDirs + web)
	if m.claim("data").Spec.VolumeName != name || len(m.made()) != 1 {
		t.Errorf("the claim has %q, and there are %v", m.claim("data").Spec.VolumeName, m.made())
	}
}

// Volumes that are declared with a claim are taken before any is made, in
// whatever order they come, also while the cluster runs.
func TestDeclaredVolumesComeBeforeMadeOnes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // a busy disk takes none of the time that claims wait for them
		m := newMachine(t)
		m.run()
		m.mustApply(strings.Replace(dirsClass, "WaitForFirstConsumer", "Immediate", 1))
		for i := range 20 {
			name := fmt.Sprintf("data%d", i)
			m.mustBind(strings.ReplaceAll(claimOfDirs+strings.NewReplacer("static", name, "capacity", "storageClassName: dirs, capacity").Replace(static)+web, "data}", name+"}"))
			if got := m.claim(name).Spec.VolumeName; got != name {
				t.Fatalf("claim %s has volume %q", name, got)
			}
		}
	})
}

func TestBindSaysWhyNot(t *testing.T) {
	const affinity = `nodeAffinity: {required: {nodeSelectorTerms: [{matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [node2]}]}]}}`
	local := func(more string) string {
		return `
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: local}
provisioner: kubernetes.io/no-provisioner
volumeBindingMode: WaitForFirstConsumer
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: disk}
spec: {storageClassName: local, capacity: {storage: 1Gi}, accessModes: [ReadWriteOnce], local: {path: /mnt/disks/a}, ` + more + `}
---` + strings.Replace(claimOfDirs, "dirs", "local", 1)
	}
	for name, tc := range map[string]struct {
		manifests string
		says      string
		is        error
	}{
		"no volume":          {claimOfStatic, "there is no PersistentVolume; create one", claimbinding.ErrUnbound},
		"no claim":           {static, "PersistentVolumeClaim default/data not found", volume.ErrNotFound},
		"too small":          {static + strings.Replace(claimOfStatic, "1Gi", "2Gi", 1), "too small (static: 1Gi of 2Gi)", claimbinding.ErrUnbound},
		"selector":           {static + strings.Replace(claimOfStatic, "acc", "selector: {matchLabels: {mine: other}}, acc", 1), "labels do not match the selector (static", claimbinding.ErrUnbound},
		"contradiction":      {static + strings.Replace(claimOfStatic, "acc", "selector: {matchLabels: {mine: '1'}, matchExpressions: [{key: mine, operator: DoesNotExist}]}, acc", 1), "labels do not match the selector (static", claimbinding.ErrUnbound},
		"named, missing":     {strings.Replace(claimOfStatic, "acc", "volumeName: nas, acc", 1), `PersistentVolume "nas", which it is for, does not exist; create it`, claimbinding.ErrUnbound},
		"other node":         {local(affinity), "not reachable from this node (disk: not on node1)", claimbinding.ErrUnbound},
		"other node, named":  {strings.Replace(local(affinity), "resources:", "volumeName: disk, resources:", 1), "not reachable from this node (disk: not on node1)", claimbinding.ErrUnbound},
		"no class":           {strings.Replace(claimOfStatic, `""`, "none", 1), `storageclass.storage.k8s.io "none" not found`, claimbinding.ErrUnbound},
		"elsewhere":          {strings.Replace(dirsClass, "kubernetes.io/host-path", "example.com/csi", 1) + claimOfDirs, `the provisioner of storage class "dirs", example.com/csi, does not run here; write the PersistentVolume, with storageClassName: dirs`, claimbinding.ErrUnbound},
		"elsewhere, at once": {strings.NewReplacer("kubernetes.io/host-path", "example.com/csi", "WaitForFirstConsumer", "Immediate").Replace(dirsClass) + claimOfDirs, "does not run here", claimbinding.ErrUnbound},
		"cannot be made":     {dirsClass + strings.Replace(claimOfDirs, "accessModes", "volumeMode: Block, accessModes", 1), "failed to provision volume with StorageClass", claimbinding.ErrUnbound},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			m.run()
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			m.mustApply(tc.manifests)
			err := m.Bind(ctx, load(t, web).Pods()...)
			failed, ok := errors.AsType[*embedded.BindError](err)
			if !ok || len(failed.Unbound) != 1 || ctx.Err() != nil {
				t.Fatalf("err = %v", err)
			}
			if text := err.Error(); !strings.HasPrefix(text, `pod "default/web": bind PersistentVolumeClaim "default/data": `) || !strings.Contains(text, tc.says) || !errors.Is(err, tc.is) {
				t.Errorf("err = %v", err)
			}
			if podNode(t, m, "web") != "" {
				t.Error("the pod is on the node")
			}
		})
	}
}

// A pod is placed with all its claims or not at all.
func TestAClaimIsNotBoundWhileAnotherKeepsItsPod(t *testing.T) {
	m := newMachine(t)
	m.run()
	err := m.bind(dirsClass + claimOfDirs + strings.Replace(strings.Replace(claimOfDirs, "dirs", "none", 1), "name: data", "name: more", 1) +
		strings.NewReplacer("volumes: [", "volumes: [{name: w, persistentVolumeClaim: {claimName: more}}, ", "volumeMounts: [", "volumeMounts: [{name: w, mountPath: /w}, ").Replace(web))
	failed, ok := errors.AsType[*embedded.BindError](err)
	if !ok || len(failed.Unbound) != 2 || len(m.made()) > 0 {
		t.Fatalf("made %v, err = %v", m.made(), err)
	}
	if text := err.Error(); !strings.Contains(text, `"default/data": the claim is not bound: it waits for a pod, which waits for PersistentVolumeClaim "default/more"`) {
		t.Errorf("err = %v", err)
	}
}

func TestAReadWriteOncePodClaimIsForTheFirstPod(t *testing.T) {
	m := newMachine(t)
	m.run()
	claim := strings.Replace(claimOfDirs, "ReadWriteOnce", "ReadWriteOncePod", 1)
	second := strings.Replace(web, "name: web", "name: second", 1)
	err := m.bind(dirsClass + claim + web + second)
	failed, ok := errors.AsType[*embedded.BindError](err)
	if !ok || len(failed.Unbound) != 1 || failed.Unbound[0].Pod.Name != "second" || !errors.Is(err, persistentvolume.ErrUsedByOtherPod) {
		t.Fatalf("err = %v", err)
	}
	// It is the second one's that has it mounted when the agent starts again.
	m.setMounted([]embedded.Mounted{{Pod: failed.Unbound[0].Pod, PodUID: failed.Unbound[0].PodUID, Claim: failed.Unbound[0].Claim, Volume: m.claim("data").Spec.VolumeName}})
	m.restart()
	m.run()
	err = m.bind(dirsClass + claim + web + second)
	failed, ok = errors.AsType[*embedded.BindError](err)
	if !ok || len(failed.Unbound) != 1 || failed.Unbound[0].Pod.Name != "web" {
		t.Fatalf("err = %v", err)
	}
}

func TestEphemeralVolumesGetTheirClaims(t *testing.T) {
	m := newMachine(t)
	m.run()
	m.PodsComplete()
	const pod = `
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  containers: [{name: c, image: i, volumeMounts: [{name: scratch, mountPath: /scratch}]}]
  volumes:
  - name: scratch
    ephemeral: {volumeClaimTemplate: {spec: {storageClassName: dirs, accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}}
---`
	m.mustBind(dirsClass + pod)
	if claim := m.claim("web-scratch"); claim.Status.Phase != v1.ClaimBound || len(m.made()) != 1 {
		t.Errorf("claim %v, made %v", claim, m.made())
	}
	if err := m.Prune(t.Context(), embedded.Declared{Objects: objectsOf(t, dirsClass+pod)}); err != nil || !m.exists("PersistentVolumeClaim", "web-scratch") {
		t.Errorf("err = %v", err)
	}
	if err := m.PodGone(t.Context(), load(t, pod).Pods()[0].UID); err != nil {
		t.Fatal(err)
	}
	m.eventually("claim and volume are gone", func() bool {
		return !m.exists("PersistentVolumeClaim", "web-scratch") && len(m.made()) == 0
	})
}

// A server that does not answer costs the wait that the caller grants, and no
// other pod's.
func TestBindWaitsForAHangingServerOnlyAsLongAsItMay(t *testing.T) {
	m := newMachine(t)
	release := make(chan struct{})
	m.mounter.Inject(fakemount.Fault{Match: func(c fakemount.Call) bool { return strings.Contains(c.String(), "s:/export") }, Nth: 1, Release: release})
	m.run()
	const hanging = `
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: dirs}
provisioner: kubernetes.io/nfs
parameters: {server: s, share: /export}
---`
	m.mustApply(hanging + claimOfDirs)
	const isMade = "its volume is being made"
	m.eventually(isMade, func() bool {
		err := m.Explain(t.Context(), refOf("PersistentVolumeClaim", "data").NamespacedName)
		return err != nil && strings.Contains(err.Error(), isMade)
	})
	ctx, expire := context.WithCancelCause(t.Context())
	defer expire(nil)
	ended, pods := make(chan error, 1), load(t, web).Pods()
	go func() { ended <- m.Bind(ctx, pods...) }()
	m.eventually("it waits for the claim of the pod", func() bool { return m.exists("Pod", "web") })
	expire(context.DeadlineExceeded)
	if err := <-ended; !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), isMade) {
		t.Errorf("err = %v", err)
	}
	other := strings.NewReplacer("name: data", "name: other", "claimName: data", "claimName: other", "name: web", "name: quick")
	m.mustBind(static + other.Replace(claimOfStatic+web))
	close(release)
	m.mustBind(web)
}

// What no container uses is not mounted, and so its claim is not waited for; once
// one does, it is.
func TestAClaimThatNoContainerUses(t *testing.T) {
	m := newMachine(t)
	m.run()
	m.mustBind(strings.Replace(web, "{name: v, mountPath: /v}", "", 1))
	if podNode(t, m, "web") != "node1" {
		t.Error("the pod is not on the node")
	}
	err := m.bind(web)
	if failed, ok := errors.AsType[*embedded.BindError](err); !ok || len(failed.Unbound) != 1 {
		t.Errorf("err = %v", err)
	}
}
