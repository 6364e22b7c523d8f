package pluginbase_test

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/pluginbase"
)

func pv(annotation string, options ...string) *v1.PersistentVolume {
	pv := &v1.PersistentVolume{}
	pv.Name = "pv1"
	if annotation != "" {
		pv.Annotations = map[string]string{v1.MountOptionAnnotation: annotation}
	}
	pv.Spec.MountOptions = options
	return pv
}

func TestOptions(t *testing.T) {
	tests := map[string]struct {
		pv       *v1.PersistentVolume
		readOnly bool
		want     []string
	}{
		"none":                      {pv: pv("")},
		"read-only":                 {pv(""), true, []string{"ro"}},
		"of the spec":               {pv("", "nfsvers=4.1", "hard"), false, []string{"nfsvers=4.1", "hard"}},
		"of the annotation":         {pv("nfsvers=4.1, hard,"), false, []string{"nfsvers=4.1", "hard"}},
		"both, the spec's last":     {pv("nfsvers=3", "nfsvers=4.1"), false, []string{"nfsvers=3", "nfsvers=4.1"}},
		"each once":                 {pv("hard,ro", "hard", "soft", "ro"), true, []string{"ro", "hard", "soft"}},
		"read-only by option alone": {pv("", "ro"), false, []string{"ro"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			before := test.pv.DeepCopy()
			got, err := pluginbase.Options(volume.NewSpecFromPersistentVolume(test.pv, false), test.readOnly)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("options (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(before, test.pv); diff != "" {
				t.Errorf("the PersistentVolume was changed:\n%s", diff)
			}
		})
	}
}

func TestOptionsOfAnInlineVolume(t *testing.T) {
	got, err := pluginbase.Options(volume.NewSpecFromVolume(&v1.Volume{Name: "v"}), true)
	if diff := cmp.Diff([]string{"ro"}, got); err != nil || diff != "" {
		t.Errorf("%v, options (-want +got):\n%s", err, diff)
	}
}

func TestDangerousOptionsAreRefused(t *testing.T) {
	for _, option := range []string{"bind", "remount", "loop", "X-mount.mkdir", "helper=x", "a\nb"} {
		for _, spec := range []*volume.Spec{
			volume.NewSpecFromPersistentVolume(pv("", "hard", option), false),
			volume.NewSpecFromPersistentVolume(pv("hard,"+option), false),
		} {
			_, err := pluginbase.Options(spec, false)
			if _, ok := errors.AsType[*mount.OptionError](err); !ok || volume.IsUncertain(err) {
				t.Errorf("Options with %q = %v", option, err)
			}
		}
	}
	_, err := pluginbase.Options(volume.NewSpecFromPersistentVolume(pv("", "hard,soft"), false), false)
	if _, ok := errors.AsType[*mount.OptionError](err); !ok {
		t.Errorf("Options with an embedded comma = %v", err)
	}
}

func TestWritableAndReadOnly(t *testing.T) {
	_, err := pluginbase.Options(volume.NewSpecFromPersistentVolume(pv("", "rw"), true), true)
	if _, ok := errors.AsType[*volume.InvalidSpecError](err); !ok {
		t.Errorf("Options = %v", err)
	}
	if got, err := pluginbase.Options(volume.NewSpecFromPersistentVolume(pv("", "rw"), false), false); err != nil || len(got) != 1 {
		t.Errorf("Options = %v, %v", got, err)
	}
}

func TestReadOnly(t *testing.T) {
	tests := map[string]struct {
		modes  []v1.PersistentVolumeAccessMode
		claim  bool
		want   bool
		inline bool
	}{
		"no modes":       {},
		"claim":          {claim: true, want: true},
		"only many read": {modes: []v1.PersistentVolumeAccessMode{v1.ReadOnlyMany}, want: true},
		"read and write": {modes: []v1.PersistentVolumeAccessMode{v1.ReadOnlyMany, v1.ReadWriteMany}},
		"write":          {modes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}},
		"inline":         {inline: true},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			p := pv("")
			p.Spec.AccessModes = test.modes
			spec := volume.NewSpecFromPersistentVolume(p, test.claim)
			if test.inline {
				spec = volume.NewSpecFromVolume(&v1.Volume{Name: "v"})
			}
			if got := pluginbase.ReadOnly(spec); got != test.want {
				t.Errorf("ReadOnly = %v", got)
			}
		})
	}
}

func TestCheckFilesystem(t *testing.T) {
	block, filesystem := v1.PersistentVolumeBlock, v1.PersistentVolumeFilesystem
	p := pv("")
	for _, mode := range []*v1.PersistentVolumeMode{nil, &filesystem} {
		p.Spec.VolumeMode = mode
		if err := pluginbase.CheckFilesystem(volume.NewSpecFromPersistentVolume(p, false), "nfs"); err != nil {
			t.Error(err)
		}
	}
	p.Spec.VolumeMode = &block
	err := pluginbase.CheckFilesystem(volume.NewSpecFromPersistentVolume(p, false), "nfs")
	if e, ok := errors.AsType[*volume.InvalidSpecError](err); !ok || e.Field != "volumeMode" {
		t.Errorf("CheckFilesystem = %v", err)
	}
}
