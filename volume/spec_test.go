package volume_test

import (
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/volume"
)

func TestSpec(t *testing.T) {
	v, pv := nfsSpec().Volume, nfsPV()
	inline, persistent := volume.NewSpecFromVolume(v), volume.NewSpecFromPersistentVolume(pv, true)
	if inline.Volume != v || inline.PersistentVolume != nil || inline.ReadOnly {
		t.Errorf("NewSpecFromVolume = %+v", inline)
	}
	if persistent.PersistentVolume != pv || persistent.Volume != nil || !persistent.ReadOnly {
		t.Errorf("NewSpecFromPersistentVolume = %+v", persistent)
	}
	for _, tc := range []struct {
		name       string
		spec       *volume.Spec
		want       string
		expandable bool
	}{
		{"inline", inline, "data", false},
		{"persistent", persistent, "nfs211", true},
		{"nil", nil, "", false},
		{"empty", &volume.Spec{}, "", false},
		{"nameless", volume.NewSpecFromVolume(&v1.Volume{}), "", false},
	} {
		if got := tc.spec.Name(); got != tc.want {
			t.Errorf("%s: Name = %q, want %q", tc.name, got, tc.want)
		}
		if got := tc.spec.IsKubeletExpandable(); got != tc.expandable {
			t.Errorf("%s: IsKubeletExpandable = %v", tc.name, got)
		}
	}
}

func TestIsBlock(t *testing.T) {
	of := func(mode *v1.PersistentVolumeMode) *volume.Spec {
		pv := nfsPV()
		pv.Spec.VolumeMode = mode
		return volume.NewSpecFromPersistentVolume(pv, false)
	}
	for name, tc := range map[string]struct {
		spec *volume.Spec
		want bool
	}{
		"block":       {of(new(v1.PersistentVolumeBlock)), true},
		"file system": {of(new(v1.PersistentVolumeFilesystem)), false},
		"unsaid":      {of(nil), false},
		"inline":      {nfsSpec(), false},
		"nil":         {nil, false},
	} {
		if got := tc.spec.IsBlock(); got != tc.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestObjectRefString(t *testing.T) {
	for want, ref := range map[string]volume.ObjectRef{
		`Secret o\nps/t\"\nls\"`:  volume.NewObjectRef("Secret", "o\nps", "t\"\nls\""),
		"Secret ops/tls":          volume.NewObjectRef("Secret", "ops", "tls"),
		"PersistentVolume nfs211": volume.NewObjectRef("PersistentVolume", "", "nfs211"),
	} {
		if got := ref.String(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
