package main

import (
	"strings"
	"testing"
)

// Who has copied a class from a cluster whose provisioner does not run here is
// told so, and what to write instead.
func TestClaimsOfClassesWithProvisioners(t *testing.T) {
	const (
		advice  = `; the provisioner of storage class "share", example.com/nfs, does not run here; write the PersistentVolume, with storageClassName: share`
		missing = "there is no PersistentVolume; create one"
		nfs     = "example.com/nfs"
		small   = "---\napiVersion: v1\nkind: PersistentVolume\nmetadata: {name: small}\nspec: {capacity: {storage: 1Ki}, accessModes: [ReadWriteMany], storageClassName: share, hostPath: {path: /srv}}\n"
	)
	for name, tc := range map[string]struct {
		provisioner, annotations, claim, more string
		want                                  string
		advised                               bool
	}{
		"by name":               {nfs, "", "storageClassName: share, ", "", missing, true},
		"by default":            {nfs, `storageclass.kubernetes.io/is-default-class: "true"`, "", "", missing, true},
		"what is there is none": {nfs, "", "storageClassName: share, ", small, "too small (small: 1Ki of 1Gi)", true},
		"no class":              {nfs, "", `storageClassName: "", `, "", missing, false},
		"no such class":         {nfs, "", "storageClassName: other, ", "", `storageclass.storage.k8s.io "other" not found; create it, or a volume of this class that fits`, false},
		"no provisioner":        {"kubernetes.io/no-provisioner", "", "storageClassName: share, ", "", missing, false},
		"a certain volume":      {nfs, "", "storageClassName: share, volumeName: mine, ", "", "PersistentVolume mine not found", false},
	} {
		t.Run(name, func(t *testing.T) {
			file := manifestFile(t, `
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: share, annotations: {`+tc.annotations+`}}
provisioner: `+tc.provisioner+`
parameters: {server: 10.0.0.1, share: /export}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec: {`+tc.claim+`accessModes: [ReadWriteMany], resources: {requests: {storage: 1Gi}}}
---
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  containers: [{name: c, image: i, volumeMounts: [{name: v, mountPath: /v}]}]
  volumes: [{name: v, persistentVolumeClaim: {claimName: data}}]
`+tc.more)
			_, errOut := mustPodvol(t, exitFailed, "mount", "--fake", "-f", file)
			if !strings.Contains(errOut, tc.want) || strings.Contains(errOut, "does not run here") != tc.advised || tc.advised && !strings.Contains(errOut, tc.want+advice) {
				t.Errorf("advised: want %t, with %q:\n%s", tc.advised, tc.want, errOut)
			}
		})
	}
}
