package objects_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/volume/objects"
)

// full is a claim with something in every part that could be shared.
func full(c *v1.PersistentVolumeClaim) {
	c.Labels, c.Annotations = map[string]string{"a": "1"}, map[string]string{"a": "1"}
	c.Finalizers = []string{"example.com/a"}
	c.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}
	c.Status.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}
	c.Status.Conditions = []v1.PersistentVolumeClaimCondition{{Type: "a"}}
}

func scribble(o metav1.Object) {
	c := o.(*v1.PersistentVolumeClaim)
	c.Labels["a"], c.Annotations["a"], c.Finalizers[0] = "x", "x", "x"
	c.Spec.AccessModes[0], c.Status.AccessModes[0], c.Status.Conditions[0].Type = "x", "x", "x"
}

// Versions of an object share memory inside of the store; nobody else shares
// it, be it by what is passed or by what is returned.
func TestWritesShareNothingWithTheirCaller(t *testing.T) {
	for name, write := range map[string]func(*objects.Store, *v1.PersistentVolumeClaim) (metav1.Object, error){
		"update": func(s *objects.Store, c *v1.PersistentVolumeClaim) (metav1.Object, error) {
			c.Labels["b"] = "2"
			return s.Update(t.Context(), c)
		},
		"update of nothing": func(s *objects.Store, c *v1.PersistentVolumeClaim) (metav1.Object, error) {
			return s.Update(t.Context(), c)
		},
		"status": func(s *objects.Store, c *v1.PersistentVolumeClaim) (metav1.Object, error) {
			c.Status.Phase = v1.ClaimBound
			return s.UpdateStatus(t.Context(), c)
		},
		"status of nothing": func(s *objects.Store, c *v1.PersistentVolumeClaim) (metav1.Object, error) {
			return s.UpdateStatus(t.Context(), c)
		},
		"the last finalizer": func(s *objects.Store, c *v1.PersistentVolumeClaim) (metav1.Object, error) {
			if err := s.Delete(t.Context(), claimRef("data"), objects.Preconditions{}); err != nil {
				return nil, err
			}
			c.ResourceVersion, c.Finalizers = "", nil
			last, err := s.Update(t.Context(), c)
			c.Finalizers = []string{""}
			last.SetFinalizers([]string{""})
			return last, err
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := objects.NewStore()
			mine := claim("data", full)
			scribble(create(t, s, mine))
			scribble(mine)
			before := get(t, s, "data")
			copied := before.DeepCopy()
			mine = before.DeepCopy()
			returned, err := write(s, mine)
			if err != nil {
				t.Fatal(err)
			}
			scribble(mine)
			scribble(returned)
			if diff := cmp.Diff(copied, before); diff != "" {
				t.Errorf("an earlier version has changed: %s", diff)
			}
			if after, err := s.Get(t.Context(), claimRef("data")); err == nil {
				c := after.(*v1.PersistentVolumeClaim)
				if c.Labels["a"] != "1" || c.Annotations["a"] != "1" || c.Finalizers[0] != "example.com/a" || c.Spec.AccessModes[0] != v1.ReadWriteOnce ||
					c.Status.AccessModes[0] != v1.ReadWriteOnce || c.Status.Conditions[0].Type != "a" {
					t.Errorf("what is stored has changed: %+v", c)
				}
			}
		})
	}
}

// A sharing writer answers with what is stored, keeps the parts of what it is given, and changes
// nothing of it.
func TestSharingAnswersWithTheStored(t *testing.T) {
	s := objects.NewStore()
	w := objects.Sharing(s)
	mine := claim("data", full)
	writes := map[string]func() (metav1.Object, error){
		"create": func() (metav1.Object, error) { return w.Create(t.Context(), mine) },
		"update": func() (metav1.Object, error) { mine.Labels["b"] = "2"; return w.Update(t.Context(), mine) },
		"status": func() (metav1.Object, error) {
			mine.Status.Phase = v1.ClaimBound
			return w.UpdateStatus(t.Context(), mine)
		},
	}
	for _, name := range []string{"create", "update", "status"} {
		answer, err := writes[name]()
		if err != nil {
			t.Fatal(err)
		}
		if mine.ResourceVersion != "" || mine.Kind != "" || answer == metav1.Object(mine) {
			t.Errorf("%s has changed what it was given to %+v", name, mine)
		}
		if stored, part := get(t, s, "data"), map[string]func(*v1.PersistentVolumeClaim) any{
			"create": func(c *v1.PersistentVolumeClaim) any { return &c.Spec.AccessModes[0] },
			"update": func(c *v1.PersistentVolumeClaim) any { return &c.Finalizers[0] },
			"status": func(c *v1.PersistentVolumeClaim) any { return &c.Status.Conditions[0] },
		}[name]; part(stored) != part(mine) {
			t.Errorf("%s has made a copy", name)
		}
		if stored := get(t, s, "data"); answer != metav1.Object(stored) {
			t.Errorf("%s answers with another object than the stored %p", name, stored)
		}
		mine = mine.DeepCopy()
		mine.ResourceVersion, mine.Kind, mine.APIVersion = "", "", ""
	}
	scribble(mine)
	if stored := get(t, s, "data"); stored.Labels["a"] != "1" || stored.Labels["b"] != "2" || stored.Status.Phase != v1.ClaimBound {
		t.Errorf("stored is %+v", stored)
	}
	if err := w.Delete(t.Context(), claimRef("data"), objects.Preconditions{}); err != nil {
		t.Fatal(err)
	}
	if answer, err := w.Update(t.Context(), mine); answer != nil || err == nil {
		t.Errorf("an update of nothing answers %v, %v", answer, err)
	}
}

// A writer that embeds one that shares is asked itself: it may check or record what is written.
func TestSharingPassesByNoWriter(t *testing.T) {
	for name, w := range map[string]objects.Writer{"store": audited{objects.NewStore()}, "pointer": &audited{objects.NewStore()}} {
		if _, err := objects.Sharing(w).Create(t.Context(), claim("data", full)); !errors.Is(err, errAudited) {
			t.Errorf("%s: err = %v", name, err)
		}
	}
}

type audited struct{ *objects.Store }

var errAudited = errors.New("audited")

func (audited) Create(context.Context, metav1.Object) (metav1.Object, error) { return nil, errAudited }

// BenchmarkStore writes as a controller does that binds claims.
func BenchmarkStore(b *testing.B) {
	s := objects.NewStore()
	c, err := s.Create(b.Context(), claim("data", full))
	if err != nil {
		b.Fatal(err)
	}
	b.Run("update", func(b *testing.B) {
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			c.GetAnnotations()["a"] = fmt.Sprint(i)
			if c, err = s.Update(b.Context(), c); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("status", func(b *testing.B) {
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			c.(*v1.PersistentVolumeClaim).Status.Phase = v1.PersistentVolumeClaimPhase(fmt.Sprint(i))
			if c, err = s.UpdateStatus(b.Context(), c); err != nil {
				b.Fatal(err)
			}
		}
	})
}
