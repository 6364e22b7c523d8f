package oncepod_test

import (
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/volume/volumemanager/internal/oncepod"
)

func TestWaiting(t *testing.T) {
	var w oncepod.Waiting[string]
	w.Stop("a") // which does not wait
	for _, v := range []string{"a", "b", "c", "b"} {
		w.Add(v, "disk")
	}
	w.Add("d", "other")
	w.Add("c", "other") // and not for the disk any more
	w.Stop("a")
	if got := w.Take("disk"); !slices.Equal(got, []string{"b"}) {
		t.Errorf("for the disk wait %v", got)
	}
	if got := w.Take("disk"); len(got) != 0 {
		t.Errorf("for the disk wait still %v", got)
	}
	got := w.Take("other")
	slices.Sort(got)
	if !slices.Equal(got, []string{"c", "d"}) {
		t.Errorf("for the other wait %v", got)
	}
}

func TestIs(t *testing.T) {
	with := func(modes ...v1.PersistentVolumeAccessMode) *v1.PersistentVolume {
		return &v1.PersistentVolume{Spec: v1.PersistentVolumeSpec{AccessModes: modes}}
	}
	if !oncepod.Is(with(v1.ReadWriteOncePod)) {
		t.Error("several pods may have a volume that is ReadWriteOncePod")
	}
	for _, pv := range []*v1.PersistentVolume{nil, with(), with(v1.ReadWriteOnce), with(v1.ReadWriteOncePod, v1.ReadOnlyMany)} {
		if oncepod.Is(pv) {
			t.Errorf("only one pod may have %v", pv)
		}
	}
}
