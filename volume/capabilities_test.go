package volume_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/volumesource"
)

func TestSupportsMountOption(t *testing.T) {
	for _, tc := range []struct {
		name   string
		plugin volume.VolumePlugin
		want   bool
	}{
		{"says yes", &capable{takesOpts: true}, true},
		{"says no", &capable{}, false},
		{"says nothing", &basic{}, false},
	} {
		if got := volume.SupportsMountOption(tc.plugin); got != tc.want {
			t.Errorf("a plugin that %s: %v", tc.name, got)
		}
	}
}

func TestDependsOn(t *testing.T) {
	pod := &v1.Pod{}
	pod.Namespace = "ops"
	if diff := cmp.Diff([]volume.ObjectRef{volume.NewObjectRef("Secret", "ops", "s")}, volume.DependsOn(&capable{}, nfsSpec(), pod)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if refs := volume.DependsOn(&basic{}, nfsSpec(), pod); len(refs) != 0 {
		t.Errorf("a plugin that says nothing depends on %v", refs)
	}
}

func TestDescribeSource(t *testing.T) {
	for _, tc := range []struct {
		name   string
		plugin volume.VolumePlugin
		want   string
	}{
		{"its own words", &capable{basic: basic{dataName: "unused"}}, "source of data"},
		{"the name of the data", &basic{dataName: "10.0.0.1/export"}, "10.0.0.1/export"},
		{"the name of the volume", &basic{dataName: "unused", nameErr: errors.New("not mine")}, "data"},
	} {
		if got := volumesource.Describe(tc.plugin, nfsSpec()); got != tc.want {
			t.Errorf("%s: %q, want %q", tc.name, got, tc.want)
		}
	}
}

func TestRefreshAfter(t *testing.T) {
	at := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	if got := volume.RefreshAfter(expiringMounter{at: at}); !got.Equal(at) {
		t.Errorf("got %v, want %v", got, at)
	}
	if got := volume.RefreshAfter(plainMounter{}); !got.IsZero() {
		t.Errorf("a mounter whose contents do not expire: %v", got)
	}
}

func TestNoMetrics(t *testing.T) {
	if m, err := (volume.NoMetrics{}).GetMetrics(t.Context()); m != nil || !errors.Is(err, volume.ErrMetricsUnsupported) {
		t.Errorf("got %v, %v", m, err)
	}
}

func TestSharesData(t *testing.T) {
	for name, tc := range map[string]struct {
		plugin volume.VolumePlugin
		a, b   string
		want   bool
	}{
		"same name":    {plugin: namedBySpec{&basic{}}, a: "x", b: "x", want: true},
		"other name":   {plugin: namedBySpec{&basic{}}, a: "x", b: "x/y"},
		"its own idea": {plugin: nesting{namedBySpec{&basic{}}}, a: "x", b: "x/y", want: true},
	} {
		got, err := volumesource.SharesData(tc.plugin, named(tc.a), named(tc.b))
		if err != nil || got != tc.want {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
	failing := &basic{nameErr: errors.New("no name")}
	if got, err := volumesource.SharesData(failing, named("x"), named("x")); err == nil || got {
		t.Errorf("without names: %v, %v", got, err)
	}
}

func named(name string) *volume.Spec { return volume.NewSpecFromVolume(&v1.Volume{Name: name}) }

// namedBySpec is a plugin whose data is named like the volume.
type namedBySpec struct{ volume.VolumePlugin }

func (namedBySpec) GetVolumeName(spec *volume.Spec) (string, error) { return spec.Name(), nil }

// nesting is one whose volumes lie within one another by their names.
type nesting struct{ namedBySpec }

func (nesting) SharesData(a, b *volume.Spec) (bool, error) {
	return strings.HasPrefix(b.Name(), a.Name()), nil
}
