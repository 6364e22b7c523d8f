package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/podvol/podvol/examples/podvol/internal/kubectlget"
)

var printedAt = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

func since(d time.Duration) metav1.Time { return metav1.NewTime(printedAt.Add(-d)) }

func examplePV(name, size string, edit func(*v1.PersistentVolume)) *v1.PersistentVolume {
	pv := &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: since(3*time.Hour + 20*time.Minute)}}
	pv.Spec.Capacity = v1.ResourceList{v1.ResourceStorage: resource.MustParse(size)}
	pv.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadWriteMany, v1.ReadWriteOnce, v1.ReadWriteMany}
	pv.Spec.PersistentVolumeReclaimPolicy = v1.PersistentVolumeReclaimRetain
	pv.Spec.NFS = &v1.NFSVolumeSource{Server: "10.20.172.211", Path: "/nfs"}
	pv.Status.Phase = v1.VolumeAvailable
	if edit != nil {
		edit(pv)
	}
	return pv
}

func examplePVC(namespace, name string, edit func(*v1.PersistentVolumeClaim)) *v1.PersistentVolumeClaim {
	claim := &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, CreationTimestamp: since(90 * time.Second)}}
	claim.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadWriteMany}
	claim.Spec.Resources.Requests = v1.ResourceList{v1.ResourceStorage: resource.MustParse("10Gi")}
	claim.Status.Phase = v1.ClaimPending
	if edit != nil {
		edit(claim)
	}
	return claim
}

func exampleVolumes() []*v1.PersistentVolume {
	return []*v1.PersistentVolume{
		examplePV("nfs211", "10Gi", func(pv *v1.PersistentVolume) {
			pv.Spec.ClaimRef = &v1.ObjectReference{Namespace: "ops-test", Name: "nfs-211"}
			pv.Spec.StorageClassName, pv.Spec.VolumeMode, pv.Status.Phase = "nfs216", new(v1.PersistentVolumeFilesystem), v1.VolumeBound
		}),
		examplePV("old", "1500M", func(pv *v1.PersistentVolume) {
			pv.Annotations = map[string]string{v1.BetaStorageClassAnnotation: "by-annotation"}
			pv.Spec.StorageClassName, pv.Spec.VolumeAttributesClassName = "ignored", new("gold")
			pv.Spec.PersistentVolumeReclaimPolicy, pv.Status.Phase, pv.Status.Reason = v1.PersistentVolumeReclaimDelete, v1.VolumeFailed, "Busy\x1b[31m"
			pv.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadWriteOncePod, v1.ReadOnlyMany}
			pv.CreationTimestamp = metav1.Time{}
		}),
		examplePV("parting", "1Mi", func(pv *v1.PersistentVolume) {
			pv.DeletionTimestamp, pv.CreationTimestamp = new(since(time.Minute)), since(400*24*time.Hour)
			pv.Spec.VolumeMode = new(v1.PersistentVolumeBlock)
		}),
	}
}

func exampleClaims() []*v1.PersistentVolumeClaim {
	return []*v1.PersistentVolumeClaim{
		examplePVC("ops-test", "nfs-211", func(c *v1.PersistentVolumeClaim) {
			c.Spec.VolumeName, c.Spec.StorageClassName, c.Spec.VolumeMode = "nfs211", new("nfs216"), new(v1.PersistentVolumeFilesystem)
			c.Status.Phase, c.Status.AccessModes = v1.ClaimBound, []v1.PersistentVolumeAccessMode{v1.ReadWriteMany}
			c.Status.Capacity = v1.ResourceList{v1.ResourceStorage: resource.MustParse("10Gi")}
		}),
		examplePVC("shop", "data", nil),
		examplePVC("shop", "going", func(c *v1.PersistentVolumeClaim) {
			c.DeletionTimestamp, c.Spec.VolumeName, c.Spec.VolumeAttributesClassName = new(since(0)), "gone", new("gold")
			c.Status.Phase = v1.ClaimLost
		}),
	}
}

// The expected text is laid out as kubectl v1.37 does it.
func TestTablesAreThoseOfKubectl(t *testing.T) {
	users := kubectlget.ClaimUsers{types.NamespacedName{Namespace: "ops-test", Name: "nfs-211"}: {"web-0", "web-1"}}
	tests := map[string]struct {
		table kubectlget.Table
		want  string
	}{
		"volumes": {kubectlget.VolumeColumns(exampleVolumes(), false, printedAt), `
NAME      CAPACITY   ACCESS MODES   RECLAIM POLICY   STATUS        CLAIM              STORAGECLASS    VOLUMEATTRIBUTESCLASS   REASON           AGE
nfs211    10Gi       RWO,RWX        Retain           Bound         ops-test/nfs-211   nfs216          <unset>                                  3h20m
old       1500M      ROX,RWOP       Delete           Failed                           by-annotation   gold                    Busy\u001b[31m   <unknown>
parting   1Mi        RWO,RWX        Retain           Terminating                                      <unset>                                  400d
`},
		"volumes, wide": {kubectlget.VolumeColumns(exampleVolumes()[:1], true, printedAt), `
NAME     CAPACITY   ACCESS MODES   RECLAIM POLICY   STATUS   CLAIM              STORAGECLASS   VOLUMEATTRIBUTESCLASS   REASON   AGE     VOLUMEMODE
nfs211   10Gi       RWO,RWX        Retain           Bound    ops-test/nfs-211   nfs216         <unset>                          3h20m   Filesystem
`},
		"claims": {kubectlget.ClaimColumns(exampleClaims()[1:], false, false, nil, printedAt), `
NAME    STATUS        VOLUME   CAPACITY   ACCESS MODES   STORAGECLASS   VOLUMEATTRIBUTESCLASS   AGE
data    Pending                                                         <unset>                 90s
going   Terminating   gone     0                                        gold                    90s
`},
		"claims of all namespaces, wide": {kubectlget.ClaimColumns(exampleClaims(), true, true, users, printedAt), `
NAMESPACE   NAME      STATUS        VOLUME   CAPACITY   ACCESS MODES   STORAGECLASS   VOLUMEATTRIBUTESCLASS   AGE   VOLUMEMODE   USED BY
ops-test    nfs-211   Bound         nfs211   10Gi       RWX            nfs216         <unset>                 90s   Filesystem   web-0,web-1
shop        data      Pending                                                         <unset>                 90s   <unset>      <none>
shop        going     Terminating   gone     0                                        gold                    90s   <unset>      <none>
`},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			if err := tc.table.Print(&out, false); err != nil {
				t.Fatal(err)
			}
			if want := strings.TrimPrefix(tc.want, "\n"); out.String() != want {
				t.Errorf("got\n%s\nwant\n%s", &out, want)
			}
		})
	}
}

func printedAs[T kubectlget.Object](t *testing.T, format string, kind kubectlget.Kind, all []T, single bool) string {
	t.Helper()
	var out bytes.Buffer
	err := kubectlget.Print(&out, format, kind, all, single, func() kubectlget.Table { return kubectlget.Table{} })
	if err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func TestDocumentsAreThoseOfKubectl(t *testing.T) {
	if got, want := printedAs(t, "name", kubectlget.ClaimKind, exampleClaims(), false), "persistentvolumeclaim/nfs-211\npersistentvolumeclaim/data\npersistentvolumeclaim/going\n"; got != want {
		t.Errorf("names:\n%s", got)
	}
	none := printedAs(t, "json", kubectlget.VolumeKind, []*v1.PersistentVolume{}, false)
	if want := "{\n    \"apiVersion\": \"v1\",\n    \"items\": [],\n    \"kind\": \"List\",\n    \"metadata\": {\n        \"resourceVersion\": \"\"\n    }\n}\n"; none != want {
		t.Errorf("no volumes:\n%s", none)
	}
	var list struct {
		Kind  string
		Items []v1.PersistentVolume
	}
	if err := json.Unmarshal([]byte(printedAs(t, "json", kubectlget.VolumeKind, exampleVolumes(), false)), &list); err != nil ||
		list.Kind != "List" || len(list.Items) != 3 || list.Items[0].Kind != "PersistentVolume" || list.Items[0].APIVersion != "v1" {
		t.Errorf("a list: %v, %+v", err, list)
	}
	var one v1.PersistentVolumeClaim
	if err := yaml.UnmarshalStrict([]byte(printedAs(t, "yaml", kubectlget.ClaimKind, exampleClaims()[:1], true)), &one); err != nil ||
		one.Kind != "PersistentVolumeClaim" || one.Namespace != "ops-test" || one.Spec.VolumeName != "nfs211" {
		t.Errorf("a single claim: %v, %+v", err, one)
	}
}
