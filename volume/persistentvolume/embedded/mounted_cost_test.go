package embedded_test

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/persistentvolume/embedded"
	"github.com/podvol/podvol/volume/plugins"
)

// countedNode is a node with many volumes, which counts what is asked of it.
type countedNode struct {
	all       []embedded.Mounted
	everybody int // times that all was asked for
	looks     int // times that some was
	rows      int // that were looked through for that
}

func (n *countedNode) mounted(context.Context) ([]embedded.Mounted, error) {
	n.everybody++
	return n.all, nil
}

func (n *countedNode) mountedFor(_ context.Context, pod types.UID, claims []types.NamespacedName) (some []embedded.Mounted, err error) {
	n.looks++
	for _, m := range n.all {
		if m.PodUID == pod || slices.Contains(claims, m.Claim) {
			some = append(some, m)
		}
	}
	n.rows += len(some)
	return some, nil
}

// TestPlacingCostsThePodAndNotTheNode counts what pods have a node asked that has
// few volumes, or many.
func TestPlacingCostsThePodAndNotTheNode(t *testing.T) {
	const manifests = `
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: shared, namespace: default}
spec: {accessModes: [ReadWriteMany], resources: {requests: {storage: 1Gi}}, storageClassName: ""}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: sole, namespace: default}
spec: {accessModes: [ReadWriteOncePod], resources: {requests: {storage: 1Gi}}, storageClassName: ""}
---
apiVersion: v1
kind: Pod
metadata: {name: none, namespace: default}
spec: {containers: [{name: c, image: i, volumeMounts: [{name: v, mountPath: /v}]}], volumes: [{name: v, emptyDir: {}}]}
---
apiVersion: v1
kind: Pod
metadata: {name: with-shared, namespace: default}
spec: {containers: [{name: c, image: i, volumeMounts: [{name: v, mountPath: /v}]}], volumes: [{name: v, persistentVolumeClaim: {claimName: shared}}]}
---
apiVersion: v1
kind: Pod
metadata: {name: with-sole, namespace: default}
spec: {containers: [{name: c, image: i, volumeMounts: [{name: v, mountPath: /v}]}], volumes: [{name: v, persistentVolumeClaim: {claimName: sole}}]}
`
	cost := make(map[int]countedNode)
	for _, n := range []int{500, 4000} {
		node := &countedNode{}
		fake := fakemount.New()
		dir := t.TempDir()
		cluster, err := embedded.Open(t.Context(), embedded.Config{
			Dir: filepath.Join(dir, "claims"), NodeName: "node1", Plugins: plugins.All(), Host: volume.Host{RootDir: dir, Mounter: fake},
			Mounted: node.mounted, MountedFor: node.mountedFor,
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- cluster.Run(ctx) }()
		for i := range n { // mounted from now on, of one volume each, and all of the shared claim
			uid := types.UID(fmt.Sprintf("uid-%d", i))
			name := types.NamespacedName{Namespace: "default", Name: fmt.Sprintf("p%d", i)}
			node.all = append(node.all, embedded.Mounted{Pod: name, PodUID: uid, Volume: "v"},
				embedded.Mounted{Pod: name, PodUID: uid, Volume: "pv", Claim: types.NamespacedName{Namespace: "default", Name: "shared"}})
		}
		node.everybody = 0
		set := load(t, manifests)
		declared, err := set.Objects(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for range 2 { // made, and applied again
			if err := cluster.Apply(t.Context(), declared...); err != nil {
				t.Fatal(err)
			}
			for _, pod := range set.Pods() {
				_ = cluster.Place(t.Context(), pod) // no volume fits these claims
			}
		}
		cost[n] = countedNode{everybody: node.everybody, looks: node.looks, rows: node.rows}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if err := cluster.Close(); err != nil {
			t.Error(err)
		}
		if err := fake.Close(); err != nil {
			t.Error(err)
		}
	}
	few, many := cost[500], cost[4000]
	t.Logf("asked for all %d and %d times, for some %d and %d times with %d and %d rows", few.everybody, many.everybody, few.looks, many.looks, few.rows, many.rows)
	if few.everybody != 0 || many.everybody != 0 || few.looks != many.looks || few.rows != many.rows || few.looks == 0 {
		t.Errorf("beside 500 pods: %+v; beside 4,000: %+v; want the same, and nobody to be asked for all", few, many)
	}
}
