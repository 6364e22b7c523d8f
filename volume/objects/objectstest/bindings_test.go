package objectstest_test

import (
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume/objects/objectstest"
)

func TestBindings(t *testing.T) {
	claim := func(uid types.UID, volume string) *v1.PersistentVolumeClaim {
		return &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ops", Name: "data", UID: uid},
			Spec: v1.PersistentVolumeClaimSpec{VolumeName: volume}, Status: v1.PersistentVolumeClaimStatus{Phase: v1.ClaimBound}}
	}
	pv := func(name string, claim types.UID) *v1.PersistentVolume {
		return &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name)},
			Spec: v1.PersistentVolumeSpec{ClaimRef: &v1.ObjectReference{Namespace: "ops", Name: "data", UID: claim}}}
	}
	for name, tc := range map[string]struct {
		stored        []metav1.Object
		want, forGood string // what is wrong; empty: nothing is
	}{
		"a claim and its volume":              {stored: []metav1.Object{pv("a", "one"), claim("one", ""), claim("one", "a")}},
		"a claim with a second volume":        {[]metav1.Object{claim("one", "a"), claim("one", "b")}, `had volume "a" and now "b"`, `had volume "a" and now "b"`},
		"a claim that loses its volume":       {[]metav1.Object{claim("one", "a"), claim("one", "")}, `had volume "a" and now ""`, `had volume "a" and now ""`},
		"a volume shown to two":               {[]metav1.Object{pv("a", "one"), claim("one", "a"), claim("two", "a"), pv("a", "two")}, "now shown to data (two)", `given to claim one, and now to "two"`},
		"a volume shown to two after a while": {[]metav1.Object{pv("a", "one"), claim("one", "a"), pv("a", ""), pv("a", "two"), claim("two", "a")}, "now shown to data (two)", `given to claim one, and now to ""`},
		"a volume given to two":               {[]metav1.Object{pv("a", "one"), pv("a", "two")}, "", `given to claim one, and now to "two"`},
		"a claim given two volumes":           {[]metav1.Object{pv("a", "one"), pv("b", "one")}, "", "claim one is given volume b, and has a"},
		"a volume of another making":          {stored: []metav1.Object{pv("a", "one"), claim("one", "a"), claim("two", "b"), pv("b", "two")}},
	} {
		t.Run(name, func(t *testing.T) {
			for forGood, want := range map[bool]string{false: tc.want, true: tc.forGood} {
				b := objectstest.NewBindings(forGood)
				for _, o := range tc.stored {
					b.Observe(o, false)
				}
				if err := b.Err(); err == nil != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
					t.Errorf("for good %v: %v, want %q", forGood, err, want)
				}
			}
		})
	}
	t.Run("once it is empty", func(t *testing.T) {
		b := objectstest.NewBindings(false)
		b.Now([]*v1.PersistentVolumeClaim{claim("one", "a")}, []*v1.PersistentVolume{pv("a", "one")})
		if n := b.Bound(); n != 1 {
			t.Errorf("%d are bound", n)
		}
		b.Observe(claim("one", "a"), true)
		b.Emptied(pv("a", "one"))
		b.Observe(pv("a", "two"), false)
		b.Observe(claim("two", "a"), false)
		if err := b.Err(); err != nil || b.Bound() != 1 {
			t.Errorf("%v, %d are bound", err, b.Bound())
		}
	})
}
