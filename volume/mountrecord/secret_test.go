package mountrecord_test

import (
	"encoding/json"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume/mountrecord"
)

// A record needs no secret to undo a mount; the object that it is made of keeps them.
func TestRecordsHoldNoSecretOptions(t *testing.T) {
	const secret = "hunter2hunter2"
	parameters := func() map[string]string { return map[string]string{"share": "x", "password": secret} }
	options := []string{"vers=3.0", "password=" + secret, "user=bob%" + secret, "ro,secret=" + secret}
	for name, r := range map[string]*mountrecord.Record{
		"mount options": {PersistentVolume: &v1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: "v", Annotations: map[string]string{
				v1.MountOptionAnnotation:                 "ro,pass=" + secret,
				"podvol.io/last-applied-configuration":   `{"spec":{"mountOptions":["password=` + secret + `"]}}`,
				v1.LastAppliedConfigAnnotation:           `{"spec":{"flexVolume":{"options":{"passwd":"` + secret + `"}}}}`,
				"pv.kubernetes.io/provisioned-by":        "kubernetes.io/nfs",
				"podvol.io/an-annotation-that-is-broken": "{" + secret,
			}},
			Spec: v1.PersistentVolumeSpec{MountOptions: options},
		}},
		"FlexVolume":        {PersistentVolume: &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "v"}, Spec: v1.PersistentVolumeSpec{PersistentVolumeSource: v1.PersistentVolumeSource{FlexVolume: &v1.FlexPersistentVolumeSource{Options: parameters()}}}}},
		"CSI":               {PersistentVolume: &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "v"}, Spec: v1.PersistentVolumeSpec{PersistentVolumeSource: v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{VolumeAttributes: parameters()}}}}},
		"inline FlexVolume": {InlineVolume: &v1.Volume{Name: "v", VolumeSource: v1.VolumeSource{FlexVolume: &v1.FlexVolumeSource{Options: parameters()}}}},
		"inline CSI":        {InlineVolume: &v1.Volume{Name: "v", VolumeSource: v1.VolumeSource{CSI: &v1.CSIVolumeSource{VolumeAttributes: parameters()}}}},
	} {
		r.PodUID, r.Pod, r.Volumes, r.Plugin, r.Path = "uid", types.NamespacedName{Namespace: "shop", Name: "web"}, []string{"v"}, "example.com/x", "/v"
		before := r.Spec().PersistentVolume.DeepCopy()
		inline := r.InlineVolume.DeepCopy()
		line, err := mountrecord.Encode(r)
		if err != nil || strings.Contains(string(line), secret) {
			t.Errorf("%s: %s, %v", name, line, err)
		}
		if before != nil && !equalJSON(t, before, r.PersistentVolume) || inline != nil && !equalJSON(t, inline, r.InlineVolume) {
			t.Errorf("%s: the record was changed", name)
		}
		got, err := mountrecord.Decode(line, nil)
		if err != nil {
			t.Fatal(err)
		}
		if pv := got.PersistentVolume; name == "mount options" && (pv.Spec.MountOptions[0] != "vers=3.0" || pv.Spec.MountOptions[1] != "password=<masked>" || pv.Annotations["pv.kubernetes.io/provisioned-by"] == "") {
			t.Errorf("%s: %+v", name, pv)
		}
	}
}

func equalJSON(t *testing.T, a, b any) bool {
	t.Helper()
	one, err := json.Marshal(a)
	two, otherErr := json.Marshal(b)
	if err != nil || otherErr != nil {
		t.Fatal(err, otherErr)
	}
	return string(one) == string(two)
}
