package embedded_test

import "testing"

// With it, the plugin would empty whatever file system a manifest names.
func TestNoManifestSaysThatADiskWasDiscovered(t *testing.T) {
	m := newMachine(t)
	manifest := `{apiVersion: v1, kind: PersistentVolume, metadata: {name: disk, annotations: {podvol.io/local-volume-node: here, podvol.io/local-volume-id: "uuid:1"}},
 spec: {storageClassName: "", capacity: {storage: 1Gi}, accessModes: [ReadWriteOnce], persistentVolumeReclaimPolicy: Delete, local: {path: /home},
  claimRef: {namespace: default, name: nobody, uid: nobody},
  nodeAffinity: {required: {nodeSelectorTerms: [{matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [here]}]}]}}}}`
	for range 2 { // created, and changed
		m.mustApply(manifest)
		got := m.pv("disk").Annotations
		if node, ok := got["podvol.io/local-volume-node"]; ok {
			t.Errorf("it is taken for discovered on node %q", node)
		}
		if got["podvol.io/local-volume-id"] != "uuid:1" {
			t.Errorf("nothing says any more which disk it is: %v", got)
		}
	}
}
