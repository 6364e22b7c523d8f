package volume_test

import (
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/volume"
)

// sourceField is one source type of the API version in use.
type sourceField struct {
	name string // as manifests spell it
	spec *volume.Spec
}

// sourceFields finds every source of the API by reflection, so that a new API
// version's types are tested without anybody thinking of them.
func sourceFields(t *testing.T) []sourceField {
	t.Helper()
	var all []sourceField
	inline := reflect.TypeFor[v1.VolumeSource]()
	for i := range inline.NumField() {
		v := &v1.Volume{Name: "vol"}
		setField(t, reflect.ValueOf(&v.VolumeSource).Elem(), i)
		all = append(all, sourceField{manifestName(inline.Field(i)), volume.NewSpecFromVolume(v)})
	}
	persistent := reflect.TypeFor[v1.PersistentVolumeSource]()
	for i := range persistent.NumField() {
		pv := &v1.PersistentVolume{}
		pv.Name = "vol"
		setField(t, reflect.ValueOf(&pv.Spec.PersistentVolumeSource).Elem(), i)
		all = append(all, sourceField{manifestName(persistent.Field(i)), volume.NewSpecFromPersistentVolume(pv, false)})
	}
	if len(all) < 40 {
		t.Fatalf("only %d source types were found", len(all))
	}
	return all
}

func setField(t *testing.T, source reflect.Value, i int) {
	t.Helper()
	field := source.Field(i)
	if field.Kind() != reflect.Pointer {
		t.Fatalf("%s is no pointer: SourceTypes does not see it", source.Type().Field(i).Name)
	}
	field.Set(reflect.New(field.Type().Elem()))
}

func manifestName(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	return name
}

// podvolHasPlugin are the types that plugins of this module mount, so that no
// reason is known why they should be missing.
func podvolHasPlugin(sourceType string) bool {
	return slices.Contains([]string{
		"cephfs", "configMap", "downwardAPI", "emptyDir", "flexVolume", "glusterfs", "hostPath", "iscsi", "local", "nfs", "projected", "rbd", "secret",
	}, sourceType)
}

func TestEverySourceTypeIsAnswered(t *testing.T) {
	generic := volume.NewUnsupportedError("", "aTypeOfTheFuture")
	m := newMgr(t)
	for _, field := range sourceFields(t) {
		t.Run(field.name, func(t *testing.T) {
			if diff := cmp.Diff([]string{field.name}, volume.SourceTypes(field.spec)); diff != "" {
				t.Errorf("SourceTypes (-want +got):\n%s", diff)
			}
			p, err := m.FindPluginBySpec(field.spec)
			unsupported, ok := errors.AsType[*volume.UnsupportedError](err)
			if !ok || p != nil || volume.IsUncertain(err) {
				t.Fatalf("got %v, %v", p, err)
			}
			if unsupported.Type != field.name || unsupported.Volume != "vol" {
				t.Errorf("the error is about type %q of volume %q", unsupported.Type, unsupported.Volume)
			}
			for _, part := range []string{field.name, `"vol"`, unsupported.Reason, unsupported.Replacement} {
				if part == "" || !strings.Contains(err.Error(), part) {
					t.Errorf("%q lacks %q", err, part)
				}
			}
			if unsupported.Reason == generic.Reason && !podvolHasPlugin(field.name) {
				t.Errorf("%s has no reason of its own: %q", field.name, err)
			}
		})
	}
}

func TestOwnPluginForAnUnsupportedTypeTakesPrecedence(t *testing.T) {
	for _, field := range sourceFields(t) {
		own := &basic{name: "example.com/own", source: field.name}
		if p, err := newMgr(t, own).FindPluginBySpec(field.spec); err != nil || p != volume.VolumePlugin(own) {
			t.Errorf("%s: got %v, %v", field.name, p, err)
		}
	}
}

func TestSourceTypes(t *testing.T) {
	two := nfsSpec()
	two.Volume.Secret = &v1.SecretVolumeSource{}
	got := volume.SourceTypes(two)
	slices.Sort(got)
	if diff := cmp.Diff([]string{"nfs", "secret"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for _, spec := range []*volume.Spec{nil, {}, volume.NewSpecFromVolume(&v1.Volume{Name: "v"})} {
		if got := volume.SourceTypes(spec); len(got) != 0 {
			t.Errorf("%+v has the sources %v", spec, got)
		}
	}
}
