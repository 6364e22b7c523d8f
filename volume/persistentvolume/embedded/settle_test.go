package embedded

import (
	"context"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/objects/manifest"
	"github.com/podvol/podvol/volume/plugins"
)

const waitingForItsPod = `
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: disks}
provisioner: kubernetes.io/no-provisioner
volumeBindingMode: WaitForFirstConsumer
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: disk}
spec: {storageClassName: disks, capacity: {storage: 1Gi}, accessModes: [ReadWriteOnce], nfs: {server: s, path: /a}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec: {storageClassName: disks, accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
---
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  containers: [{name: web, image: web, volumeMounts: [{name: data, mountPath: /data}]}]
  volumes: [{name: data, persistentVolumeClaim: {claimName: data}}]
`

// The controller may bind a pod's last claim after the pod was tried and before the outcome
// is known. If such a pod were mounted without being on the node, it would not count as a user
// of its claims, and they could be deleted below it.
func TestAPodIsOnTheNodeOnceItsLastClaimIsBound(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	c, err := Open(ctx, Config{Dir: t.TempDir(), NodeName: "node1", Plugins: plugins.All(), Host: volume.Host{RootDir: t.TempDir()}})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	set, err := manifest.Loader{NodeName: "node1"}.Decode("test", []byte(waitingForItsPod))
	if err != nil {
		t.Fatal(err)
	}
	all, err := set.Objects(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Apply(ctx, all...); err != nil {
		t.Fatal(err)
	}
	if err := c.Idle(ctx); err != nil {
		t.Fatal(err)
	}

	b := newBinding(c, onlyUsed(set.Pods()))
	if !b.place(ctx) {
		t.Fatal("placing the pod has begun nothing")
	}
	changed, stop := c.watch(kindClaim)
	defer stop()
	for !b.allBound(ctx) {
		<-changed
	}
	if err := b.outcome(ctx, nil); err != nil {
		t.Fatal(err)
	}
	pod, err := objects.Get[*v1.Pod](ctx, c.Objects(), volume.NewObjectRef(kindPod, "default", "web"))
	if err != nil || pod.Spec.NodeName != "node1" {
		t.Errorf("the pod is on node %q, %v", pod.Spec.NodeName, err)
	}
}
